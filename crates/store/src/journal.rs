//! The engine's journals: finding the whole batches in them, and cutting off the rest.
//!
//! A journal is a sequence of batches, each closed by a checksum and fsynced before the next one begins. So the bytes
//! behind the last whole batch of the newest journal were never acknowledged, unless another witness says so (see
//! [`crate::inspect`]). A crash may leave anything there. We cut these bytes before the engine opens, because it refuses to
//! open with some of them.
//!
//! A batch's checksum covers its items but not its seqno, by which the engine orders writes. Seqnos grow from batch to
//! batch, so one that falls or leaps is damage too. Ordinals, which we write ourselves, have no holes: a batch that is
//! missing is damage as well.
//!
//! ```text
//! batch = 1 count:u32 seqno:u64, item*, 3 checksum:u64 "FJL3"        (little-endian)
//! item  = 2 type:u8 compression:u8 space:u64 key:u16 value:u32 stored:u32 key-bytes value-bytes | 4 space:u64
//! ```

use crate::{
    damage::{DamageReport, FileFault, Remedy},
    errors::OpenError,
    files::{name_of, number_in, sync_folder, write_durably},
    folder::Folder,
    kv::BATCH_KEY,
    rows::number_at,
    tables::file_name,
    zeros_ahead::is_written_in_place,
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

/// The length of a batch without its items.
pub(crate) const BATCH_BYTES: u64 = 1 + 4 + 8 + 1 + 8 + TRAILER.len() as u64;

/// The length of an item that is not compressed.
pub(crate) fn item_bytes(key: &[u8], value: &[u8]) -> u64 {
    (1 + 1 + 1 + 8 + 2 + 4 + 4 + key.len() + value.len()) as u64
}

/// A gap between two seqnos that is damage. Seqnos follow each other closely (the engine takes one for itself now and
/// then), so a gap like this is a flipped bit; it would push all later seqnos up for good.
const SEQNO_GAP_MAX: u64 = 1 << 32;

/// Files of cut bytes that are kept; older ones are removed, lest a machine that crashes often fills its disk.
const CUT_FILES_MAX: usize = 16;

/// The result of a scan through a journal.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Scan {
    /// Where the last whole batch before any damage ends.
    pub whole_bytes: usize,
    /// The number of whole batches behind the damage.
    pub later_batches: usize,
    pub length: usize,
    /// Ordinals of the first and the last whole batch before any damage that have one.
    pub first_batch: Option<u64>,
    pub last_batch: Option<u64>,
    /// The seqno of the last whole batch before any damage, and by space id that of the last one that wrote to the space.
    pub last_seqno: Option<u64>,
    pub last_seqnos: BTreeMap<u64, u64>,
}

impl Scan {
    pub(crate) fn is_damaged(&self) -> bool {
        self.whole_bytes < self.length
    }

    fn add(&mut self, batch: &WholeBatch) {
        self.whole_bytes = batch.end;
        self.first_batch = self.first_batch.or(batch.ordinal);
        self.last_batch = batch.ordinal.or(self.last_batch);
        self.last_seqno = Some(batch.seqno);
        // A batch without an ordinal was written by an earlier version. It has no row under `BATCH_KEY`, so its seqno may
        // be gone from the tables once its rows were removed: nothing may be expected there.
        let spaces = batch.ordinal.map_or(0, |_| batch.spaces);
        for space in (0..64).filter(|space| spaces & 1 << space != 0) {
            self.last_seqnos.insert(space, batch.seqno);
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
    seqno: u64,
    /// `None` in a batch of a version that wrote no ordinals.
    ordinal: Option<u64>,
    /// The ids of the spaces that the batch wrote to, one bit each.
    spaces: u64,
}

/// The last whole batch before the one that is examined, across journals.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct PreviousBatch {
    pub seqno: Option<u64>,
    pub ordinal: Option<u64>,
}

impl WholeBatch {
    fn may_follow(&self, previous: PreviousBatch) -> bool {
        let is_seqno_next =
            previous.seqno.is_none_or(|previous| self.seqno > previous && self.seqno - previous < SEQNO_GAP_MAX);
        is_seqno_next && self.is_ordinal_next(previous)
    }

    fn is_ordinal_next(&self, previous: PreviousBatch) -> bool {
        self.ordinal.zip(previous.ordinal).is_none_or(|(ordinal, previous)| ordinal == previous + 1)
    }
}

/// The whole batch that begins at `at`, if there is one.
fn batch_at(bytes: &[u8], mut at: usize) -> Option<WholeBatch> {
    let at = &mut at;
    if take(bytes, at, 1)? != [START] {
        return None;
    }
    let count = number(take(bytes, at, 4)?);
    let seqno = number(take(bytes, at, 8)?);
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
    closed.then_some(WholeBatch { end: *at, seqno, ordinal, spaces })
}

/// Scans the written bytes of a journal. `previous` is the last batch of the journal before; the scan moves it on to the
/// last whole batch of this one.
pub(crate) fn scan(bytes: &[u8], previous: &mut PreviousBatch) -> Scan {
    scan_below(bytes, previous, u64::MAX)
}

/// Like [`scan`], but a batch whose seqno is `end` or higher counts as damage.
fn scan_below(bytes: &[u8], previous: &mut PreviousBatch, end: u64) -> Scan {
    let counts = |batch: &WholeBatch, previous| batch.seqno < end && batch.may_follow(previous);
    let mut scan = Scan { length: bytes.len(), ..Scan::default() };
    while let Some(batch) = batch_at(bytes, scan.whole_bytes).filter(|batch| counts(batch, *previous)) {
        scan.add(&batch);
        *previous = PreviousBatch { seqno: Some(batch.seqno), ordinal: batch.ordinal.or(previous.ordinal) };
    }
    // A whole batch may stand here that does not count. The search for later batches goes on behind it, not inside: a
    // user's message may look like a batch. An ordinal out of turn shows that the batches between are missing, or that
    // this file is a copy.
    let out_of_turn = batch_at(bytes, scan.whole_bytes);
    let is_later = |batch: WholeBatch| batch.seqno < end && !batch.is_ordinal_next(*previous);
    scan.later_batches += usize::from(out_of_turn.is_some_and(is_later));
    let mut at = out_of_turn.map_or(scan.whole_bytes + 1, |batch| batch.end);
    while at < bytes.len() {
        match batch_at(bytes, at) {
            Some(batch) => {
                scan.later_batches += usize::from(batch.seqno < end);
                at = batch.end;
            }
            None => at += 1,
        }
    }
    scan
}

/// Whether the first batch of a journal has this seqno or a higher one. Works for the journal that the engine appends to.
pub(crate) fn begins_from(journal: &Path, lowest: u64) -> io::Result<bool> {
    let mut head = [0; 13];
    File::open(journal)?.read_exact(&mut head)?;
    Ok(head[0] == START && number(&head[5..]) >= lowest)
}

/// The written bytes of a journal. The engine preallocates the file, so zeros up to its end are no damage; a batch never
/// ends with a zero.
pub(crate) fn read_written(path: &Path) -> io::Result<Vec<u8>> {
    const BLOCK: usize = 64 * 1024;
    let mut file = File::open(path)?;
    let mut block = vec![0; BLOCK];
    let zeros = vec![0; BLOCK];
    let mut length = end_of_data(&file)?;
    while length > 0 {
        let start = (length - 1) / BLOCK as u64 * BLOCK as u64;
        let chunk = &mut block[..(length - start) as usize];
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(chunk)?;
        // Whole blocks are compared, since a MiB of zeros is usual, and tens where holes are read.
        if *chunk != zeros[..chunk.len()] {
            length = start + chunk.iter().rposition(|byte| *byte != 0).map_or(0, |at| at as u64 + 1);
            break;
        }
        length = start;
    }
    let mut written = Vec::with_capacity(length as usize);
    file.seek(SeekFrom::Start(0))?;
    file.take(length).read_to_end(&mut written)?;
    Ok(written)
}

/// Where the hole at the end of a file begins, if it has one, or else its length. Only of file systems that are known to report holes as
/// they are: OpenZFS has called data a hole that was not on the disk yet.
fn end_of_data(file: &File) -> io::Result<u64> {
    use rustix::{
        fs::{SeekFrom, seek},
        io::Errno,
    };
    let length = file.metadata()?.len();
    if !is_written_in_place(file) {
        return Ok(length);
    }
    let mut end = 0;
    loop {
        let hole = match seek(file, SeekFrom::Data(end)) {
            // Nothing but a hole from there on.
            Err(Errno::NXIO) => return Ok(end),
            data => data.and_then(|data| seek(file, SeekFrom::Hole(data))),
        };
        match hole {
            Ok(hole) if hole > end && hole < length => end = hole,
            // The data reaches the end, or the file system does not tell.
            _ => return Ok(length),
        }
    }
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

/// The journals and how many bytes were written to each, for the marker of a clean shutdown.
pub(crate) fn lengths(engine: &Path) -> io::Result<Vec<(String, u64)>> {
    journals(engine)?.iter().map(|path| Ok((name_of(path), read_written(path)?.len() as u64))).collect()
}

/// Cuts the batches of a refused write: those from this seqno on. The engine has closed by then. Unlike after a crash we
/// know exactly which batches were acknowledged: those with lower seqnos, in whichever journal (the engine may have begun
/// another one since).
///
/// The batches that stay are written as a new file. A thread of the engine may not have ended yet; the last one to end
/// writes its buffered rest of the refused batch to the file that it has open, which is no part of the store any more.
///
/// # Errors
/// Whole batches follow the damage in a journal, so acknowledged batches are damaged: nothing was cut.
pub(crate) fn cut_refused(folder: &Folder, refused_from_seqno: u64) -> Result<(), OpenError> {
    let mut previous = PreviousBatch::default();
    let mut scanned = Vec::new();
    for path in journals(&folder.engine_path())? {
        let bytes = read_written(&path)?;
        let scan = scan_below(&bytes, &mut previous, refused_from_seqno);
        if scan.is_damaged() && scan.later_batches > 0 {
            let (at, later) = (scan.whole_bytes, scan.later_batches);
            let why = format!("{later} whole batches follow: the damaged bytes were acknowledged");
            let what = format!("the journal is damaged at byte {at} and {why}");
            let fault = FileFault { file: file_name(&path), what, remedy: Remedy::LossyRepair };
            return Err(OpenError::Damaged(DamageReport(vec![fault])));
        }
        scanned.push((path, bytes, scan));
    }
    // The engine appended to the last journal that is not empty, or was about to append to one behind it.
    let last = scanned.iter().rposition(|(_, _, scan)| scan.length > 0).unwrap_or(0);
    for (at, (path, bytes, scan)) in scanned.iter().enumerate() {
        let (kept, refused) = bytes.split_at(scan.whole_bytes);
        if !refused.is_empty() {
            save_or_warn(folder, path, refused);
            let (journal, bytes) = (name_of(path), refused.len());
            tracing::warn!(journal, at = scan.whole_bytes, bytes, "cut a refused write from the journal");
        }
        if at >= last || !refused.is_empty() {
            replace(path, kept)?;
        }
    }
    Ok(())
}

/// Replaces a journal. Takes room for the new file until the old one is gone.
fn replace(journal: &Path, bytes: &[u8]) -> io::Result<()> {
    write_durably(journal, bytes).inspect_err(|_| {
        // Frees the room that the unfinished file takes on a full disk.
        fs::remove_file(journal.with_extension("new")).ok();
    })
}

/// Cuts a journal at a byte, and saves the cut bytes as `damaged-<journal>.bin` in the data folder.
pub(crate) fn cut(folder: &Folder, journal: &Path, bytes: &[u8], at: usize) -> io::Result<()> {
    save_or_warn(folder, journal, &bytes[at..]);
    let file = File::options().write(true).open(journal)?;
    file.set_len(at as u64)?;
    file.sync_all()?;
    sync_folder(&folder.engine_path())
}

fn save_or_warn(folder: &Folder, journal: &Path, cut_bytes: &[u8]) {
    if let Err(error) = save_cut_bytes(folder, journal, cut_bytes) {
        // The disk may be full, which is no reason to refuse the open.
        tracing::warn!(%error, journal = name_of(journal), "the bytes cut from the journal could not be saved");
    }
}

fn save_cut_bytes(folder: &Folder, journal: &Path, cut_bytes: &[u8]) -> io::Result<()> {
    let number = number_in(journal, "", ".jnl").unwrap_or(0);
    fs::write(folder.path.join(format!("damaged-{number}.bin")), cut_bytes)?;
    let mut saved = Vec::new();
    for entry in fs::read_dir(&folder.path)? {
        let path = entry?.path();
        saved.extend(number_in(&path, "damaged-", ".bin").map(|number| (number, path)));
    }
    saved.sort();
    let surplus = saved.len().saturating_sub(CUT_FILES_MAX);
    saved.iter().take(surplus).try_for_each(|(_, path)| fs::remove_file(path))
}

#[cfg(test)]
mod tests;
