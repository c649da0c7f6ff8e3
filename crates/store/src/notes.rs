//! Notes: rows that survive the end of the process, though not that of the machine. They are appended to a file and not
//! fsynced, so that a disk that stalls does not hold them up; what they say reaches the store by and by, and then they
//! are forgotten. Two files take turns: one is being noted in while what the other says is being stored.
//!
//! ```text
//! note = length of the rest (4)  XXH3 of the rest (8)  key's length (4)  key  value        little-endian
//! ```

use parking_lot::Mutex;
use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};
use tidings_engine::store::RowChange;
use xxhash_rust::xxh3::xxh3_64;

const HEAD_BYTES: usize = 12;
/// Notes of one file, in bytes. Full: what comes is not noted, and survives once it is stored.
const FILE_BYTES_MAX: u64 = 256 * 1024 * 1024;

pub(crate) struct Notes {
    files: [Mutex<NoteFile>; 2],
    current: AtomicUsize,
}

struct NoteFile {
    file: File,
    length: u64,
}

impl Notes {
    pub(crate) fn open(folder: &Path) -> io::Result<Self> {
        let open = |name: &str| -> io::Result<Mutex<NoteFile>> {
            let mut file =
                File::options().create(true).truncate(false).read(true).write(true).open(folder.join(name))?;
            let length = file.seek(SeekFrom::End(0))?;
            Ok(Mutex::new(NoteFile { file, length }))
        };
        Ok(Notes { files: [open("notes-a")?, open("notes-b")?], current: AtomicUsize::new(0) })
    }

    pub(crate) fn note(&self, changes: &[RowChange]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for RowChange { key, value } in changes {
            let value = value.as_deref().unwrap_or_default();
            let rest = [&(key.len() as u32).to_le_bytes()[..], key, value].concat();
            bytes.extend_from_slice(&(rest.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&xxh3_64(&rest).to_le_bytes());
            bytes.extend_from_slice(&rest);
        }
        let mut file = self.files[self.current.load(Ordering::SeqCst)].lock();
        let NoteFile { file, length } = &mut *file;
        if *length + bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(io::Error::new(io::ErrorKind::StorageFull, "the notes are full"));
        }
        // What was torn before is written over.
        file.seek(SeekFrom::Start(*length))?;
        file.write_all(&bytes)?;
        *length += bytes.len() as u64;
        Ok(())
    }

    /// From here on notes go to the other file, if what that says has been forgotten.
    pub(crate) fn turn(&self) {
        let current = self.current.load(Ordering::SeqCst);
        let has_notes = self.files[current].lock().length > 0;
        if has_notes && self.files[1 - current].lock().length == 0 {
            self.current.store(1 - current, Ordering::SeqCst);
        }
    }

    /// What was noted before the last turn is stored.
    pub(crate) fn forget_turned(&self) -> io::Result<()> {
        self.clear(1 - self.current.load(Ordering::SeqCst))
    }

    pub(crate) fn forget_all(&self) -> io::Result<()> {
        self.clear(0)?;
        self.clear(1)
    }

    fn clear(&self, which: usize) -> io::Result<()> {
        let mut file = self.files[which].lock();
        if file.length > 0 {
            file.file.set_len(0)?;
            file.length = 0;
        }
        Ok(())
    }

    /// All notes of both files; a file's end that is torn is passed over, since nobody was told of it.
    pub(crate) fn read(&self) -> io::Result<Vec<RowChange>> {
        let mut changes = Vec::new();
        for file in &self.files {
            let mut file = file.lock();
            let mut bytes = Vec::new();
            file.file.seek(SeekFrom::Start(0))?;
            file.file.read_to_end(&mut bytes)?;
            let mut rest = &bytes[..];
            while let Some((note, after)) = take(rest) {
                changes.push(note);
                rest = after;
            }
            file.length = (bytes.len() - rest.len()) as u64;
        }
        Ok(changes)
    }
}

/// The first note, and what follows it; nothing if it is not whole.
fn take(bytes: &[u8]) -> Option<(RowChange, &[u8])> {
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
    fn notes_are_read_back_until_they_are_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::open(folder.path()).unwrap();
        notes.note(&[row(1), row(2)]).unwrap();
        notes.turn();
        notes.note(&[row(3)]).unwrap();
        // The file before is not forgotten yet: no turn.
        notes.turn();
        notes.note(&[row(4)]).unwrap();
        // As after the end of the process: nothing was closed or fsynced.
        assert_eq!(Notes::open(folder.path()).unwrap().read().unwrap(), [row(1), row(2), row(3), row(4)]);
        notes.forget_turned().unwrap();
        assert_eq!(Notes::open(folder.path()).unwrap().read().unwrap(), [row(3), row(4)]);
        notes.forget_all().unwrap();
        assert_eq!(Notes::open(folder.path()).unwrap().read().unwrap(), []);
    }

    #[test]
    fn a_torn_end_is_passed_over_and_written_over() {
        let folder = tempfile::tempdir().unwrap();
        Notes::open(folder.path()).unwrap().note(&[row(1), row(2)]).unwrap();
        let path = folder.path().join("notes-a");
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            let notes = Notes::open(folder.path()).unwrap();
            let expected: &[RowChange] = if cut < whole.len() / 2 { &[] } else { &[row(1)] };
            assert_eq!(notes.read().unwrap(), expected, "cut at {cut}");
            notes.note(&[row(3)]).unwrap();
            assert_eq!(Notes::open(folder.path()).unwrap().read().unwrap(), [expected, &[row(3)]].concat());
        }
        let mut flipped = whole.clone();
        flipped[20] ^= 1;
        std::fs::write(&path, &flipped).unwrap();
        assert_eq!(Notes::open(folder.path()).unwrap().read().unwrap(), []);
    }
}
