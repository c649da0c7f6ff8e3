//! The engine's journals: what is whole in them, and how they are cut.
//!
//! The engine's journal is a row of batches, each closed by a checksum and fsynced before the next is
//! begun. So what follows the last whole batch of the newest journal was never acknowledged, unless something else
//! tells that it was (see [`crate::inspect`]): a crash may leave anything there, and it is cut before the engine sees it
//! (which would refuse to open for some of it).
//!
//! A batch's checksum covers its items but not its number, by which the engine orders writes. Numbers
//! grow from batch to batch, so one that does not, or leaps, is damage too. Ordinals, which we write ourselves, have no
//! holes: a batch that is missing is damage as well.
//!
//! ```text
//! batch = 1 count:u32 seqno:u64, item*, 3 checksum:u64 "FJL3"        (little-endian)
//! item  = 2 type:u8 compression:u8 space:u64 key:u16 value:u32 stored:u32 key-bytes value-bytes | 4 space:u64
//! ```

use crate::{
    embedded::OpenError,
    folder::{Folder, sync_folder, write_durably},
    kv::BATCH_KEY,
    problem::{Damage, Problem, Remedy},
    rows::number_at,
    tables::file_name,
};
use std::{
    collections::BTreeMap,
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
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Where the last whole batch before any damage ends.
    pub whole: usize,
    /// Whole batches after the damage.
    pub later: usize,
    pub length: usize,
    /// Ordinals of the first and the last whole batch before any damage that have one.
    pub first_batch: Option<u64>,
    pub last_batch: Option<u64>,
    /// The engine's number of the last whole batch before any damage, and of the last one that wrote to each space.
    pub last_number: Option<u64>,
    pub last_numbers: BTreeMap<u64, u64>,
}

impl Scan {
    pub(crate) fn is_damaged(&self) -> bool {
        self.whole < self.length
    }

    fn take_in(&mut self, batch: &WholeBatch) {
        self.whole = batch.end;
        self.first_batch = self.first_batch.or(batch.ordinal);
        self.last_batch = batch.ordinal.or(self.last_batch);
        self.last_number = Some(batch.number);
        // Without an ordinal it was written by an earlier version, whose newest row of a space may be gone from its tables.
        let spaces = batch.ordinal.map_or(0, |_| batch.spaces);
        for space in (0..64).filter(|space| spaces & 1 << space != 0) {
            self.last_numbers.insert(space, batch.number);
        }
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
    /// None in what was written before there were ordinals.
    ordinal: Option<u64>,
    /// The engine's numbers of the spaces that it wrote to, one bit each.
    spaces: u64,
}

/// The batch before the one that is looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Before {
    pub number: Option<u64>,
    pub ordinal: Option<u64>,
}

impl WholeBatch {
    fn may_follow(&self, before: Before) -> bool {
        let numbered = before.number.is_none_or(|before| self.number > before && self.number - before < NUMBER_LEAP);
        numbered && self.is_next_after(before)
    }

    fn is_next_after(&self, before: Before) -> bool {
        self.ordinal.zip(before.ordinal).is_none_or(|(ordinal, before)| ordinal == before + 1)
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
    let (mut ordinal, mut spaces) = (None, 0);
    for _ in 0..count {
        match *take(bytes, at, 1)?.first()? {
            ITEM => {
                take(bytes, at, 2)?;
                let space = number(take(bytes, at, 8)?);
                let key = number(take(bytes, at, 2)?) as usize;
                take(bytes, at, 4)?;
                let value = number(take(bytes, at, 4)?) as usize;
                let (key, value) = take(bytes, at, key.checked_add(value)?)?.split_at(key);
                if key == BATCH_KEY {
                    ordinal = ordinal.or(number_at(value, 0));
                }
                spaces |= 1_u64.checked_shl(space.try_into().unwrap_or(u32::MAX)).unwrap_or(0);
            }
            CLEAR => drop(take(bytes, at, 8)?),
            _ => return None,
        }
    }
    let checksum = xxhash_rust::xxh3::xxh3_64(&bytes[items..*at]);
    let closed =
        take(bytes, at, 1)? == [END] && number(take(bytes, at, 8)?) == checksum && take(bytes, at, 4)? == TRAILER;
    closed.then_some(WholeBatch { end: *at, number: batch_number, ordinal, spaces })
}

/// Looks through what was written of a journal. `before` is the batch before it, and afterwards its last whole one.
pub(crate) fn scan(bytes: &[u8], before: &mut Before) -> Scan {
    scan_below(bytes, before, u64::MAX)
}

/// The same where no batch of this number or a higher one counts: what such a one holds is damage.
fn scan_below(bytes: &[u8], before: &mut Before, end: u64) -> Scan {
    let counts = |batch: &WholeBatch, before| batch.number < end && batch.may_follow(before);
    let mut scan = Scan { length: bytes.len(), ..Scan::default() };
    while let Some(batch) = batch_at(bytes, scan.whole).filter(|batch| counts(batch, *before)) {
        scan.take_in(&batch);
        *before = Before { number: Some(batch.number), ordinal: batch.ordinal.or(before.ordinal) };
    }
    // Not within a batch that does not count: what somebody wrote there is no batch, whatever it looks like. One that is
    // out of turn tells that those between are missing, or that this is a copy.
    let out_of_turn = batch_at(bytes, scan.whole);
    scan.later += usize::from(out_of_turn.is_some_and(|batch| batch.number < end && !batch.is_next_after(*before)));
    let mut at = out_of_turn.map_or(scan.whole + 1, |batch| batch.end);
    while at < bytes.len() {
        match batch_at(bytes, at) {
            Some(batch) => {
                scan.later += usize::from(batch.number < end);
                at = batch.end;
            }
            None => at += 1,
        }
    }
    scan
}

/// Whether the first batch of a journal has this number or a higher one. Of one that is being written.
pub(crate) fn begins_from(journal: &Path, lowest: u64) -> io::Result<bool> {
    let mut head = [0; 13];
    File::open(journal)?.read_exact(&mut head)?;
    Ok(head[0] == START && number(&head[5..]) >= lowest)
}

/// What was written to a journal. The engine sets space aside in advance, and zeros to the end of
/// the file are no damage; a batch never ends with one.
pub(crate) fn read_written(path: &Path) -> io::Result<Vec<u8>> {
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
pub(crate) fn journals(engine: &Path) -> io::Result<Vec<PathBuf>> {
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
pub(crate) fn number_in(path: &Path, before: &str, after: &str) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Journals and how much was written to each, for the mark of an orderly close.
pub(crate) fn lengths(engine: &Path) -> io::Result<Vec<(String, u64)>> {
    journals(engine)?.iter().map(|path| Ok((name_of(path), read_written(path)?.len() as u64))).collect()
}

/// Cuts what the engine was told to write from this number on, when it has ended after a write that failed. Unlike
/// after a crash it is known what was acknowledged: all that is numbered lower, in whichever journal (the engine may
/// have begun another one since), and nothing else.
///
/// What is left is written as a new file. A thread of the engine may still be at its end, and the last one writes what
/// it holds of the failed write to the file that it has open: one that is no part of the store any more.
pub(crate) fn cut_refused(folder: &Folder, refused_from: u64) -> Result<(), OpenError> {
    let mut before = Before::default();
    let mut looked_at = Vec::new();
    for path in journals(&folder.engine_path())? {
        let bytes = read_written(&path)?;
        let scan = scan_below(&bytes, &mut before, refused_from);
        if scan.is_damaged() && scan.later > 0 {
            let (at, later) = (scan.whole, scan.later);
            let why = format!("{later} whole batches follow: what is damaged was acknowledged");
            let what = format!("the journal is damaged at byte {at} and {why}");
            let problem = Problem { file: file_name(&path), what, remedy: Remedy::Lose };
            return Err(OpenError::Damaged(Damage(vec![problem])));
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
pub(crate) fn cut(folder: &Folder, journal: &Path, bytes: &[u8], at: usize) -> io::Result<()> {
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

#[cfg(test)]
mod tests;
