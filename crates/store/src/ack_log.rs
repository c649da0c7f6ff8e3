//! The acknowledgement log: for each batch its ordinal, and the last sequence of each conversation that it wrote to. One
//! file per journal, named after it.
//!
//! A record is written when its batch is on the disk and before any caller gets an answer. It is not fsynced: it survives
//! the end of the process, and the end of the machine once the operating system has written it. So a journal that ends
//! before its acknowledgement log does has lost acknowledged batches, and the log names what they held. A journal that
//! ends after its log has lost no batch that the log could name.
//!
//! ```text
//! record = length of the rest (4)  XXH3 of the rest (8)                                           little-endian
//!          ordinal (8)  seqno (8)  spaces, one bit each (8)  last position (8)
//!          (conversation (8)  last seq (8)  length of its id, if it is new (2)  id)*
//! ```

use crate::{
    files::{name_of, number_in},
    tables::ByteReader,
};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
};
use tidings_domain::model::Position;
use xxhash_rust::xxh3::xxh3_64;

const HEAD_BYTES: usize = 12;

/// A conversation's last sequence after a batch.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConversationProgress {
    pub conversation: u64,
    pub last_seq: u64,
    /// Only in the record of the conversation's first entry.
    pub id: Option<String>,
}

/// A batch that is on the disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct AckedBatch {
    pub ordinal: u64,
    /// The batch's seqno or a little lower, but higher than the seqno of the batch before.
    pub seqno: u64,
    /// The ids of the spaces that the batch wrote to, one bit each.
    pub spaces: u64,
    /// The last position after the batch.
    pub position: Position,
}

/// What the acknowledgement logs of all journals say together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AckedState {
    /// The newest batch's.
    pub ordinal: u64,
    pub position: Position,
    /// By journal number and space id: the seqno of the last batch in that journal that wrote to that space.
    pub journals: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// The last sequence of each conversation, by the conversation's number.
    pub last_seqs: BTreeMap<u64, u64>,
    /// The ids of conversations whose first entry is in these logs.
    pub ids: BTreeMap<u64, String>,
    /// The names of log files that are damaged before their end: the records behind the damage are not read.
    pub damaged: Vec<String>,
}

/// The acknowledgement log of the journal that the engine appends to.
pub(crate) struct AckLog {
    /// `None` if the file could not be created, as on a full disk: then nothing is recorded.
    file: Option<File>,
    length: u64,
    bytes: Vec<u8>,
    is_failing: bool,
}

fn path_of(folder: &Path, journal: u64) -> PathBuf {
    folder.join(format!("acknowledged-{journal}"))
}

impl AckLog {
    /// Opens the log of a journal, to append after its last whole record.
    pub(crate) fn open(folder: &Path, journal: u64) -> Self {
        let opened = Self::open_file(&path_of(folder, journal)).inspect_err(Self::warn);
        let is_failing = opened.is_err();
        let (file, length) = opened.map_or((None, 0), |(file, length)| (Some(file), length));
        AckLog { file, length, bytes: Vec::new(), is_failing }
    }

    fn open_file(path: &Path) -> io::Result<(File, u64)> {
        let file = File::options().create(true).truncate(false).read(true).write(true).open(path)?;
        let bytes = fs::read(path)?;
        let length = (bytes.len() - read_records(&bytes, |_, _| {}).len()) as u64;
        file.set_len(length)?;
        Ok((file, length))
    }

    fn warn(error: &io::Error) {
        tracing::warn!(%error, "the acknowledgement log beside the journal cannot be written; commits are stored all the same");
    }

    /// Appends a batch's record. An error is logged and not returned: the batch itself is fsynced.
    pub(crate) fn append(&mut self, batch: AckedBatch, progress: impl Iterator<Item = ConversationProgress>) {
        self.bytes.clear();
        self.bytes.extend_from_slice(&[0; HEAD_BYTES]);
        for number in [batch.ordinal, batch.seqno, batch.spaces, batch.position] {
            self.bytes.extend_from_slice(&number.to_le_bytes());
        }
        for ConversationProgress { conversation, last_seq, id } in progress {
            let id = id.unwrap_or_default();
            self.bytes.extend_from_slice(&conversation.to_le_bytes());
            self.bytes.extend_from_slice(&last_seq.to_le_bytes());
            self.bytes.extend_from_slice(&(id.len() as u16).to_le_bytes());
            self.bytes.extend_from_slice(id.as_bytes());
        }
        let (length, sum) = (self.bytes.len() - HEAD_BYTES, xxh3_64(&self.bytes[HEAD_BYTES..]));
        self.bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        self.bytes[4..HEAD_BYTES].copy_from_slice(&sum.to_le_bytes());
        // At the end of the last whole record, so that a torn one is overwritten.
        let Some(file) = &self.file else { return };
        let written = file.write_all_at(&self.bytes, self.length);
        match &written {
            Ok(()) => self.length += self.bytes.len() as u64,
            // Logged once for a row of failures.
            Err(error) if !self.is_failing => Self::warn(error),
            Err(_) => {}
        }
        self.is_failing = written.is_err();
    }
}

/// Visits the records in order; answers the bytes behind the last whole one.
fn read_records(bytes: &[u8], mut visit: impl FnMut(AckedBatch, ByteReader)) -> &[u8] {
    let mut rest = bytes;
    while let Some((head, after)) = rest.split_first_chunk::<HEAD_BYTES>() {
        let length = u32::from_le_bytes(std::array::from_fn(|at| head[at])) as usize;
        let sum = u64::from_le_bytes(std::array::from_fn(|at| head[4 + at]));
        let Some((record, after)) = after.split_at_checked(length).filter(|(record, _)| xxh3_64(record) == sum) else {
            break;
        };
        let mut record = ByteReader(record);
        let mut number = || record.number(8).map(|number| number as u64);
        let (Some(ordinal), Some(seqno), Some(spaces), Some(position)) = (number(), number(), number(), number())
        else {
            break;
        };
        visit(AckedBatch { ordinal, seqno, spaces, position }, record);
        rest = after;
    }
    rest
}

/// The log files, by the number of their journal.
fn files(folder: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        found.extend(number_in(&path, "acknowledged-", "").map(|number| (number, path)));
    }
    found.sort();
    Ok(found)
}

/// Reads the acknowledgement logs of a folder.
pub(crate) fn read(folder: &Path) -> io::Result<AckedState> {
    let mut all = AckedState::default();
    for (journal, path) in files(folder)? {
        let bytes = fs::read(&path)?;
        let last_seqnos = all.journals.entry(journal).or_default();
        let rest = read_records(&bytes, |batch, mut progress| {
            all.ordinal = all.ordinal.max(batch.ordinal);
            all.position = all.position.max(batch.position);
            for space in (0..64).filter(|space| batch.spaces & 1 << space != 0) {
                last_seqnos.insert(space, batch.seqno);
            }
            while let (Some(conversation), Some(last_seq), Some(id)) =
                (progress.number(8), progress.number(8), progress.number(2))
            {
                let (conversation, last_seq) = (conversation as u64, last_seq as u64);
                let newest = all.last_seqs.entry(conversation).or_default();
                *newest = last_seq.max(*newest);
                let id = progress.take(id as usize).filter(|id| !id.is_empty());
                all.ids.extend(id.map(|id| (conversation, String::from_utf8_lossy(id).into_owned())));
            }
        });
        if rest.iter().any(|byte| *byte != 0) {
            all.damaged.push(name_of(&path));
        }
    }
    Ok(all)
}

/// Removes the logs of journals before this one.
pub(crate) fn remove_before(folder: &Path, journal: u64) -> io::Result<()> {
    files(folder)?.iter().filter(|(number, _)| *number < journal).try_for_each(|(_, path)| fs::remove_file(path))
}

/// Removes all logs, once a repair has reported the losses that they name.
pub(crate) fn remove_all(folder: &Path) -> io::Result<()> {
    remove_before(folder, u64::MAX)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn progress(conversation: u64, last_seq: u64, id: Option<&str>) -> ConversationProgress {
        ConversationProgress { conversation, last_seq, id: id.map(str::to_owned) }
    }

    fn batch(ordinal: u64, spaces: u64) -> AckedBatch {
        AckedBatch { ordinal, seqno: ordinal * 2, spaces, position: ordinal * 10 }
    }

    #[test]
    fn a_log_names_each_conversations_last_sequence_and_overwrites_a_torn_record() {
        let folder = tempfile::tempdir().unwrap();
        let mut log = AckLog::open(folder.path(), 3);
        log.append(batch(7, 0b110), [progress(1, 4, None), progress(2, 1, Some("room"))].into_iter());
        log.append(batch(8, 0b10), [progress(1, 5, None)].into_iter());
        let expected = AckedState {
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
        assert_eq!(read(folder.path()).unwrap().ordinal, 7, "the second record is torn");
        AckLog::open(folder.path(), 3).append(batch(8, 0b10), [progress(1, 5, None)].into_iter());
        assert_eq!(read(folder.path()).unwrap(), expected);
        AckLog::open(folder.path(), 4).append(batch(9, 0b10), [progress(1, 6, None)].into_iter());
        remove_before(folder.path(), 4).unwrap();
        assert_eq!(read(folder.path()).unwrap().last_seqs, [(1, 6)].into());
    }
}
