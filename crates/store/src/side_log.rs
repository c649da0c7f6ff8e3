//! The side log: rows on their way to the store, appended to a file without fsync. A row there survives the end of the
//! process, not the end of the machine, and a disk that stalls does not hold the append up. The rows are written to the
//! store soon after, and then the file is truncated. Two files are used in rotation: rows are appended to one while the
//! rows of the other are being stored.
//!
//! ```text
//! record = length of the rest (4)  XXH3 of the rest (8)  key's length (4)  key  value        little-endian
//! ```

use parking_lot::Mutex;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};
use tidings_domain::store::RowChange;
use xxhash_rust::xxh3::xxh3_64;

const HEAD_BYTES: usize = 12;
/// The length of one file. When it is full, appends are refused: a row then survives the process once it is stored.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

pub(crate) struct SideLog {
    files: [Mutex<LogFile>; 2],
    current: AtomicUsize,
}

struct LogFile {
    file: File,
    length: u64,
}

impl SideLog {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let open = |name: &str| -> io::Result<Mutex<LogFile>> {
            let mut file =
                File::options().create(true).truncate(false).read(true).write(true).open(folder.join(name))?;
            let length = file.seek(SeekFrom::End(0))?;
            Ok(Mutex::new(LogFile { file, length }))
        };
        Ok(SideLog { files: [open("notes-a")?, open("notes-b")?], current: AtomicUsize::new(0) })
    }

    pub(crate) fn append(&self, changes: &[RowChange]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for RowChange { key, value } in changes {
            let value = value.as_deref().unwrap_or_default();
            let rest = [&(key.len() as u32).to_le_bytes()[..], key, value].concat();
            bytes.extend_from_slice(&(rest.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&xxh3_64(&rest).to_le_bytes());
            bytes.extend_from_slice(&rest);
        }
        let mut file = self.files[self.current.load(Ordering::SeqCst)].lock();
        let LogFile { file, length } = &mut *file;
        if *length + bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the side log is full"));
        }
        // Overwrites a record that was torn.
        file.seek(SeekFrom::Start(*length))?;
        file.write_all(&bytes)?;
        *length += bytes.len() as u64;
        Ok(())
    }

    /// Appends go to the other file from here on, if that one was truncated since the last rotation.
    pub(crate) fn rotate(&self) {
        let current = self.current.load(Ordering::SeqCst);
        let has_records = self.files[current].lock().length > 0;
        if has_records && self.files[1 - current].lock().length == 0 {
            self.current.store(1 - current, Ordering::SeqCst);
        }
    }

    /// Empties the file that is not appended to: its rows are in the store.
    pub(crate) fn truncate_rotated(&self) -> io::Result<()> {
        self.truncate_file(1 - self.current.load(Ordering::SeqCst))
    }

    pub(crate) fn truncate_all(&self) -> io::Result<()> {
        self.truncate_file(0)?;
        self.truncate_file(1)
    }

    fn truncate_file(&self, which: usize) -> io::Result<()> {
        let mut file = self.files[which].lock();
        if file.length > 0 {
            file.file.set_len(0)?;
            file.length = 0;
        }
        Ok(())
    }

    /// The rows of both files. A record that is torn at a file's end is skipped: its append was never confirmed.
    pub(crate) fn read_all(&self) -> io::Result<Vec<RowChange>> {
        let mut changes = Vec::new();
        for file in &self.files {
            let mut file = file.lock();
            let mut bytes = Vec::new();
            file.file.seek(SeekFrom::Start(0))?;
            file.file.read_to_end(&mut bytes)?;
            let mut rest = &bytes[..];
            while let Some((change, after)) = parse_record(rest) {
                changes.push(change);
                rest = after;
            }
            file.length = (bytes.len() - rest.len()) as u64;
        }
        Ok(changes)
    }
}

/// The first record and the bytes after it; `None` if the record is not whole.
fn parse_record(bytes: &[u8]) -> Option<(RowChange, &[u8])> {
    let (head, after) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let length = u32::from_le_bytes(std::array::from_fn(|at| head[at])) as usize;
    let sum = u64::from_le_bytes(std::array::from_fn(|at| head[4 + at]));
    let (rest, after) = after.split_at_checked(length)?;
    if xxh3_64(rest) != sum {
        return None;
    }
    let (key_length, rest) = rest.split_first_chunk::<4>()?;
    let (key, value) = rest.split_at_checked(u32::from_le_bytes(*key_length) as usize)?;
    Some((RowChange { key: key.to_vec(), value: Some(value.to_vec()) }, after))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn row(n: u8) -> RowChange {
        RowChange { key: vec![n; 3], value: Some(vec![n; 200]) }
    }

    #[test]
    fn rows_are_read_back_until_their_file_is_truncated() {
        let folder = tempfile::tempdir().unwrap();
        let log = SideLog::open(folder.path()).unwrap();
        log.append(&[row(1), row(2)]).unwrap();
        log.rotate();
        log.append(&[row(3)]).unwrap();
        // The other file still has its records: no rotation.
        log.rotate();
        log.append(&[row(4)]).unwrap();
        // As after a kill of the process: nothing was closed or fsynced.
        assert_eq!(SideLog::open(folder.path()).unwrap().read_all().unwrap(), [row(1), row(2), row(3), row(4)]);
        log.truncate_rotated().unwrap();
        assert_eq!(SideLog::open(folder.path()).unwrap().read_all().unwrap(), [row(3), row(4)]);
        log.truncate_all().unwrap();
        assert_eq!(SideLog::open(folder.path()).unwrap().read_all().unwrap(), []);
    }

    #[test]
    fn a_torn_record_at_the_end_is_skipped_and_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        SideLog::open(folder.path()).unwrap().append(&[row(1), row(2)]).unwrap();
        let path = folder.path().join("notes-a");
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let log = SideLog::open(folder.path()).unwrap();
            let expected: &[RowChange] = if cut < whole.len() / 2 { &[] } else { &[row(1)] };
            assert_eq!(log.read_all().unwrap(), expected, "cut at {cut}");
            log.append(&[row(3)]).unwrap();
            assert_eq!(SideLog::open(folder.path()).unwrap().read_all().unwrap(), [expected, &[row(3)]].concat());
        }
        let mut flipped = whole.clone();
        flipped[20] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        assert_eq!(SideLog::open(folder.path()).unwrap().read_all().unwrap(), []);
    }
}
