//! What was acknowledged, noted beside the journals: after each batch its ordinal, and how far each conversation has come.
//! One file per journal, named after it.
//!
//! A note is written when its batch is on the disk and before anybody is told, and is not fsynced itself: it survives the
//! end of the process, and that of the machine once the system has written it. So a journal that ends before its notes
//! do has lost what was acknowledged, and the notes tell what that was. One that ends after them has lost nothing that
//! is known of.
//!
//! ```text
//! note = length of the rest (4)  XXH3 of the rest (8)                                           little-endian
//!        ordinal (8)  engine's number (8)  spaces, one bit each (8)  last position (8)
//!        (conversation (8)  last seq (8)  length of its id, if it is new (2)  id)*
//! ```

use crate::{journal::number_in, tables::Bytes};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tidings_engine::model::Position;
use xxhash_rust::xxh3::xxh3_64;

const HEAD_BYTES: usize = 12;

/// How far a conversation has come by a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reached {
    pub conversation: u64,
    pub last_seq: u64,
    /// With its first entry.
    pub id: Option<String>,
}

/// A batch that is on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NotedBatch {
    pub ordinal: u64,
    /// The engine's number of it, or a little lower, but above that of the batch before.
    pub number: u64,
    /// The engine's numbers of the spaces that it wrote to, one bit each.
    pub spaces: u64,
    /// The last position after it.
    pub position: Position,
}

/// What all notes tell together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Acknowledged {
    /// Of the newest batch.
    pub ordinal: u64,
    pub position: Position,
    /// By journal: the number of the last batch in it that wrote to each space.
    pub journals: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// The last sequence of each conversation, by its number.
    pub last_seqs: BTreeMap<u64, u64>,
    /// Of those that began in these notes.
    pub ids: BTreeMap<u64, String>,
    /// Files of notes that are damaged before their end: what comes after in them is not known.
    pub damaged: Vec<String>,
}

/// The notes beside the journal that is written to.
pub(crate) struct Notebook {
    /// None if it could not be made, as on a full disk: then nothing is noted.
    file: Option<File>,
    length: u64,
    bytes: Vec<u8>,
    failing: bool,
}

fn path_of(folder: &Path, journal: u64) -> PathBuf {
    folder.join(format!("acknowledged-{journal}"))
}

impl Notebook {
    /// Goes on after the last whole note of a journal's file.
    pub(crate) fn open(folder: &Path, journal: u64) -> Self {
        let opened = Self::open_file(&path_of(folder, journal)).inspect_err(Self::warn);
        let failing = opened.is_err();
        let (file, length) = opened.map_or((None, 0), |(file, length)| (Some(file), length));
        Notebook { file, length, bytes: Vec::new(), failing }
    }

    fn open_file(path: &Path) -> io::Result<(File, u64)> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        let bytes = fs::read(path)?;
        let length = (bytes.len() - read_notes(&bytes, |_, _| {}).len()) as u64;
        file.set_len(length)?;
        Ok((file, length))
    }

    fn warn(error: &io::Error) {
        tracing::warn!(%error, "what is acknowledged cannot be noted beside the journal; it is stored all the same");
    }

    /// Notes a batch. Never fails who asks: the batch itself is safe.
    pub(crate) fn note(&mut self, batch: NotedBatch, reached: impl Iterator<Item = Reached>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; HEAD_BYTES]);
        for number in [batch.ordinal, batch.number, batch.spaces, batch.position] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        for Reached { conversation, last_seq, id } in reached {
            let id = id.unwrap_or_default();
            self.bytes.extend_from_slice(&conversation.to_le_bytes());
            self.bytes.extend_from_slice(&last_seq.to_le_bytes());
            self.bytes.extend_from_slice(&(id.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(id.as_bytes());
        }
        let (length, sum) = (self.bytes.len() - HEAD_BYTES, xxh3_64(&self.bytes[HEAD_BYTES..]));
        self.bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        self.bytes[4..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        // At its place, so that the next one is written over one that is torn.
        let Some(file) = &self.file else { return };
        let written = file.write_all_at(&self.bytes, self.length);
        match &written {
            Ok(()) => self.length += self.bytes.len() as u64,
            // Once for each time that it begins to fail.
            Err(error) if !self.failing => Self::warn(error),
            Err(_) => {}
        }
        self.failing = written.is_err();
    }
}

/// Reads notes one after the other; answers what follows the last whole one.
fn read_notes(bytes: &[u8], mut visit: impl FnMut(NotedBatch, Bytes)) -> &[u8] {
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let length = u32::from_le_bytes(std::array::from_fn(|at| head[at])) as usize;
        let sum = u64::from_le_bytes(std::array::from_fn(|at| head[4 + at]));
        let Some((note, after)) = after.split_at_checked(length).filter(|(note, _)| xxh3_64(note) == sum) else {
            break;
        };
        let mut note = Bytes(note);
        let mut number = || note.number(8).map(|number| number as u64);
        let (Some(ordinal), Some(number), Some(spaces), Some(position)) = (number(), number(), number(), number())
        else {
            break;
        };
        visit(NotedBatch { ordinal, number, spaces, position }, note);
        rest = after;
    }
    rest
}

/// Files of notes, by the number of their journal.
fn files(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        found.extend(number_in(&path, "acknowledged-", "").map(|number| (number, path)));
    }
    found.sort();
    Ok(found)
}

/// What the notes in a folder tell.
pub(crate) fn read(folder: &Path) -> io::Result<Acknowledged> {
    let mut all = Acknowledged::default();
    for (journal, path) in files(folder)? {
        let bytes = fs::read(&path)?;
        let last_numbers = all.journals.entry(journal).or_default();
        let rest = read_notes(&bytes, |batch, mut reached| {
            all.ordinal = all.ordinal.max(batch.ordinal);
            all.position = all.position.max(batch.position);
            for space in (0..64).filter(|space| batch.spaces & 1 << space != 0) {
                last_numbers.insert(space, batch.number);
            }
            while let (Some(conversation), Some(last_seq), Some(id)) =
                (reached.number(8), reached.number(8), reached.number(2))
            {
                let (conversation, last_seq) = (conversation as u64, last_seq as u64);
                let newest = all.last_seqs.entry(conversation).or_default();
                *newest = last_seq.max(*newest);
                let id = reached.take(id as usize).filter(|id| !id.is_empty());
                all.ids.extend(id.map(|id| (conversation, String::from_utf8_lossy(id).into_owned())));
            }
        });
        if rest.iter().any(|byte| *byte != 0) {
            all.damaged.push(crate::journal::name_of(&path));
        }
    }
    Ok(all)
}

/// Drops the notes of journals before this one.
pub(crate) fn forget_before(folder: &Path, journal: u64) -> io::Result<()> {
    files(folder)?.iter().filter(|(number, _)| *number < journal).try_for_each(|(_, path)| fs::remove_file(path))
}

/// Drops all notes: what they told of is lost, and was told.
pub(crate) fn forget_all(folder: &Path) -> io::Result<()> {
    forget_before(folder, u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn reached(conversation: u64, last_seq: u64, id: Option<&str>) -> Reached {
        Reached { conversation, last_seq, id: id.map(str::to_owned) }
    }

    fn batch(ordinal: u64, spaces: u64) -> NotedBatch {
        NotedBatch { ordinal, number: ordinal * 2, spaces, position: ordinal * 10 }
    }

    #[test]
    fn notes_tell_the_newest_of_each_conversation_and_a_torn_one_is_written_over() {
        let folder = tempfile::tempdir().unwrap();
        let mut notebook = Notebook::open(folder.path(), 3);
        notebook.note(batch(7, 0b110), [reached(1, 4, None), reached(2, 1, Some("room"))].into_iter());
        notebook.note(batch(8, 0b10), [reached(1, 5, None)].into_iter());
        let expected = Acknowledged {
            ordinal: 8,
            position: 80,
            journals: [(3, [(1, 16), (2, 14)].into())].into(),
            last_seqs: [(1, 5), (2, 1)].into(),
            ids: [(2, "room".to_owned())].into(),
            damaged: vec![],
        };
        assert_eq!(read(folder.path()).unwrap(), expected);
        let path = folder.path().join("acknowledged-3");
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() - 1]).unwrap();
        assert_eq!(read(folder.path()).unwrap().ordinal, 7, "the second note is torn");
        Notebook::open(folder.path(), 3).note(batch(8, 0b10), [reached(1, 5, None)].into_iter());
        assert_eq!(read(folder.path()).unwrap(), expected);
        Notebook::open(folder.path(), 4).note(batch(9, 0b10), [reached(1, 6, None)].into_iter());
        forget_before(folder.path(), 4).unwrap();
        assert_eq!(read(folder.path()).unwrap().last_seqs, [(1, 6)].into());
    }
}
