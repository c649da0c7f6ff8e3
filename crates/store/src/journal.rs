//! What may be cut from a damaged journal, and what may not.
//!
//! The engine's journal is a row of batches, each closed by a checksum and fsynced before the next is
//! begun. So what follows the last whole batch of the newest journal was never acknowledged: a
//! crash may leave anything there, and it is cut before the engine sees it (which would refuse to
//! open for some of it). Damage that a whole batch follows, damage in an older journal, and any damage
//! at all after an orderly close is a loss of acknowledged data: that is for an operator to decide.
//!
//! A batch's checksum covers its items but not its number, by which the engine orders writes. Numbers
//! grow from batch to batch, so one that does not, or leaps, is damage too.
//!
//! ```text
//! batch = 1 count:u32 seqno:u64, item*, 3 checksum:u64 "FJL3"        (little-endian)
//! item  = 2 type:u8 compression:u8 space:u64 key:u16 value:u32 stored:u32 key-bytes value-bytes | 4 space:u64
//! ```

use crate::{
    embedded::OpenError,
    folder::{ClosedMark, Folder, sync_folder, write_durably},
};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

const TRAILER: &[u8] = b"FJL\x03";
const START: u8 = 1;
const ITEM: u8 = 2;
const END: u8 = 3;
const CLEAR: u8 = 4;

/// Batches are numbered nearly in a row (the engine takes a number for itself now and then). A gap like
/// this is a flipped bit, and would push all later numbers up for good.
const NUMBER_LEAP: u64 = 1 << 32;

/// Pieces kept of what was cut; older ones go, lest a machine that crashes often fills its disk.
const PIECES_KEPT: usize = 16;

/// What a look through a journal found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Scan {
    /// Where the last whole batch before any damage ends.
    whole: usize,
    /// Whole batches after the damage.
    later: usize,
    length: usize,
}

impl Scan {
    fn is_damaged(self) -> bool {
        self.whole < self.length
    }
}

fn take<'a>(bytes: &'a [u8], at: &mut usize, n: usize) -> Option<&'a [u8]> {
    let taken = bytes.get(*at..at.checked_add(n)?)?;
    *at += n;
    Some(taken)
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u64::from(*byte))
}

/// A batch that is complete and whose checksum holds.
#[derive(Debug, Clone, Copy)]
struct WholeBatch {
    end: usize,
    number: u64,
}

impl WholeBatch {
    fn may_follow(self, before: Option<u64>) -> bool {
        before.is_none_or(|before| self.number > before && self.number - before < NUMBER_LEAP)
    }
}

/// The whole batch that begins at `at`, if there is one.
fn batch_at(bytes: &[u8], mut at: usize) -> Option<WholeBatch> {
    let at = &mut at;
    if take(bytes, at, 1)? != [START] {
        return None;
    }
    let count = number(take(bytes, at, 4)?);
    let batch_number = number(take(bytes, at, 8)?);
    let items = *at;
    for _ in 0..count {
        match *take(bytes, at, 1)?.first()? {
            ITEM => {
                take(bytes, at, 2 + 8)?;
                let key = number(take(bytes, at, 2)?) as usize;
                take(bytes, at, 4)?;
                let value = number(take(bytes, at, 4)?) as usize;
                take(bytes, at, key.checked_add(value)?)?;
            }
            CLEAR => drop(take(bytes, at, 8)?),
            _ => return None,
        }
    }
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[items..*at]);
    let closed =
        take(bytes, at, 1)? == [END] && number(take(bytes, at, 8)?) == checksum && take(bytes, at, 4)? == TRAILER;
    closed.then_some(WholeBatch { end: *at, number: batch_number })
}

/// Looks through what was written of a journal. `before` is the number of the batch before it, and
/// afterwards of its last whole one.
fn scan(bytes: &[u8], before: &mut Option<u64>) -> Scan {
    scan_below(bytes, before, u64::MAX)
}

/// The same where no batch of this number or a higher one counts: what such a one holds is damage.
fn scan_below(bytes: &[u8], before: &mut Option<u64>, end: u64) -> Scan {
    let counts = |batch: &WholeBatch, before| batch.number < end && batch.may_follow(before);
    let mut whole = 0;
    while let Some(batch) = batch_at(bytes, whole).filter(|batch| counts(batch, *before)) {
        whole = batch.end;
        *before = Some(batch.number);
    }
    let mut later = 0;
    // Not within a batch that does not count: what somebody wrote there is no batch, whatever it looks like.
    let mut at = batch_at(bytes, whole).map_or(whole + 1, |batch| batch.end);
    while at < bytes.len() {
        match batch_at(bytes, at) {
            Some(batch) => {
                later += usize::from(batch.number < end);
                at = batch.end;
            }
            None => at += 1,
        }
    }
    Scan { whole, later, length: bytes.len() }
}

/// What was written to a journal. The engine sets space aside in advance, and zeros to the end of
/// the file are no damage; a batch never ends with one.
fn read_written(path: &Path) -> io::Result<Vec<u8>> {
    const BLOCK: usize = 1024 * 1024;
    let mut file = File::open(path)?;
    let mut block = vec![0; BLOCK];
    let zeros = vec![0; BLOCK];
    let mut length = file.metadata()?.len();
    while length > 0 {
        let start = (length - 1) / BLOCK as u64 * BLOCK as u64;
        let piece = &mut block[..(length - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(piece)?;
        // Blocks are compared whole because tens of MiB of zeros are usual.
        if *piece != zeros[..piece.len()] {
            length = start + piece.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
            break;
        }
        length = start;
    }
    let mut written = Vec::with_capacity(length as usize);
    file.seek(SeekFrom::Start(0))?;
    file.take(length).read_to_end(&mut written)?;
    Ok(written)
}

/// The journals of an engine's folder, oldest first.
fn journals(engine: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(engine) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        let path = entry?.path();
        found.extend(number_in(&path, "", ".jnl").map(|number| (number, path)));
    }
    found.sort();
    Ok(found.into_iter().map(|(_, path)| path).collect())
}

/// The number that stands between these in a file's name.
fn number_in(path: &Path, before: &str, after: &str) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Journals and how much was written to each, for the mark of an orderly close.
pub(crate) fn lengths(engine: &Path) -> io::Result<Vec<(String, u64)>> {
    journals(engine)?.iter().map(|path| Ok((name_of(path), read_written(path)?.len() as u64))).collect()
}

/// Journals that are shorter than they were at the orderly close: what they have, and what they had.
fn shortened(engine: &Path, closed: Option<&ClosedMark>) -> io::Result<Vec<(String, u64, u64)>> {
    let mut shortened = Vec::new();
    for (name, length) in closed.map_or(&[][..], |mark| &mark.journals) {
        let path = engine.join(name);
        let found = if path.exists() { read_written(&path)?.len() as u64 } else { 0 };
        if found < *length {
            shortened.push((name.clone(), found, *length));
        }
    }
    Ok(shortened)
}

/// Cuts an unacknowledged damaged tail before the engine opens, or refuses.
pub(crate) fn mend_tail(folder: &Folder, closed: Option<&ClosedMark>) -> Result<(), OpenError> {
    let engine = folder.engine_path();
    let journals = journals(&engine)?;
    if let Some((name, found, length)) = shortened(&engine, closed)?.first() {
        let message = format!("journal {name} has {found} bytes of the {length} that it had when it was closed");
        return Err(OpenError::Damaged(message));
    }
    let Some(newest) = journals.last() else { return Ok(()) };
    let mut number = None;
    for path in &journals {
        let bytes = read_written(path)?;
        let scan = scan(&bytes, &mut number);
        if !scan.is_damaged() {
            continue;
        }
        let (name, at) = (name_of(path), scan.whole);
        let why = match (path == newest, scan.later, closed) {
            (false, ..) => "the journal is not the newest: everything in it was acknowledged".to_owned(),
            (_, later @ 1.., _) => format!("{later} whole batches follow: what is damaged was acknowledged"),
            (_, _, Some(_)) => "the store was closed in order: everything in it was acknowledged".to_owned(),
            (true, 0, None) => {
                cut(folder, path, &bytes, at)?;
                tracing::warn!(
                    journal = name,
                    at,
                    bytes = bytes.len() - at,
                    "cut an unacknowledged tail from the journal"
                );
                continue;
            }
        };
        return Err(OpenError::Damaged(format!("journal {name} is damaged at byte {at} and {why}")));
    }
    Ok(())
}

/// Cuts what the engine was told to write from this number on, when it has ended after a write that failed. Unlike
/// after a crash it is known what was acknowledged: all that is numbered lower, in whichever journal (the engine may
/// have begun another one since), and nothing else.
///
/// What is left is written as a new file. A thread of the engine may still be at its end, and the last one writes what
/// it holds of the failed write to the file that it has open: one that is no part of the store any more.
pub(crate) fn cut_refused(folder: &Folder, refused_from: u64) -> Result<(), OpenError> {
    let mut number = None;
    let mut looked_at = Vec::new();
    for path in journals(&folder.engine_path())? {
        let bytes = read_written(&path)?;
        let scan = scan_below(&bytes, &mut number, refused_from);
        if scan.is_damaged() && scan.later > 0 {
            let (name, at, later) = (name_of(&path), scan.whole, scan.later);
            let why = format!("{later} whole batches follow: what is damaged was acknowledged");
            return Err(OpenError::Damaged(format!("journal {name} is damaged at byte {at} and {why}")));
        }
        looked_at.push((path, bytes, scan));
    }
    // The engine wrote to the last of them that holds anything, or was about to write to one after that.
    let last = looked_at.iter().rposition(|(_, _, scan)| scan.length > 0).unwrap_or(0);
    for (at, (path, bytes, scan)) in looked_at.iter().enumerate() {
        let (kept, refused) = bytes.split_at(scan.whole);
        if !refused.is_empty() {
            keep_or_warn(folder, path, refused);
            let (journal, bytes) = (name_of(path), refused.len());
            tracing::warn!(journal, at = scan.whole, bytes, "cut what was refused from the journal");
        }
        if at >= last || !refused.is_empty() {
            replace(path, kept)?;
        }
    }
    Ok(())
}

/// Needs room for what is written, which what it replaces gives back.
fn replace(journal: &Path, bytes: &[u8]) -> io::Result<()> {
    write_durably(journal, bytes).inspect_err(|_| {
        // Lest a full disk stays full of it.
        fs::remove_file(journal.with_extension("new")).ok();
    })
}

/// Keeps what is cut beside the store, as `damaged-<journal>.bin`, and shortens the journal.
fn cut(folder: &Folder, journal: &Path, bytes: &[u8], at: usize) -> io::Result<()> {
    keep_or_warn(folder, journal, &bytes[at..]);
    let file = File::options().write(true).open(journal)?;
    file.set_len(at as u64)?;
    file.sync_all()?;
    sync_folder(&folder.engine_path())
}

fn keep_or_warn(folder: &Folder, journal: &Path, piece: &[u8]) {
    if let Err(error) = keep_piece(folder, journal, piece) {
        // A full disk is one way to come here, and no reason not to open.
        tracing::warn!(%error, journal = name_of(journal), "what is cut from the journal could not be kept");
    }
}

fn keep_piece(folder: &Folder, journal: &Path, piece: &[u8]) -> io::Result<()> {
    let number = number_in(journal, "", ".jnl").unwrap_or(0);
    fs::write(folder.path.join(format!("damaged-{number}.bin")), piece)?;
    let mut pieces = Vec::new();
    for entry in fs::read_dir(&folder.path)? {
        let path = entry?.path();
        pieces.extend(number_in(&path, "damaged-", ".bin").map(|number| (number, path)));
    }
    pieces.sort();
    let old = pieces.len().saturating_sub(PIECES_KEPT);
    pieces.iter().take(old).try_for_each(|(_, path)| fs::remove_file(path))
}

/// What a repair dropped from one journal.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Repaired {
    pub journal: String,
    /// Where it was cut.
    pub at: u64,
    pub bytes_dropped: u64,
    /// Whole batches among what was dropped: they had been acknowledged.
    pub batches_dropped: usize,
}

/// Cuts every journal at its first damage, whatever was acknowledged after it. The way out when
/// `open` refuses; what is lost is reported. The store gets a new epoch: positions that were cut will be
/// given out again, and a cursor from before must not be trusted.
pub fn repair(path: &Path) -> Result<Vec<Repaired>, OpenError> {
    let folder = Folder::take(path)?;
    let closed = folder.closed_mark();
    let missing = shortened(&folder.engine_path(), closed.as_ref())?;
    let mut repaired = Vec::new();
    // First, so that a repair that is cut short leaves no store whose cursors are trusted.
    folder.ask_new_epoch()?;
    let mut number = None;
    for journal in journals(&folder.engine_path())? {
        let bytes = read_written(&journal)?;
        let scan = scan(&bytes, &mut number);
        if scan.is_damaged() {
            cut(&folder, &journal, &bytes, scan.whole)?;
            repaired.push(Repaired {
                journal: name_of(&journal),
                at: scan.whole as u64,
                bytes_dropped: (bytes.len() - scan.whole) as u64,
                batches_dropped: scan.later,
            });
        }
    }
    for (journal, at, length) in missing {
        if repaired.iter().all(|cut: &Repaired| cut.journal != journal) {
            repaired.push(Repaired { journal, at, bytes_dropped: length - at, batches_dropped: 0 });
        }
    }
    folder.remove_closed_mark()?;
    if repaired.is_empty() {
        folder.new_epoch_given()?;
    }
    Ok(repaired)
}

#[cfg(test)]
mod tests;
