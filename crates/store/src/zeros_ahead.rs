//! Zeros that are written to a journal ahead of the engine's batches.
//!
//! The engine makes a journal as a file of 64 MiB without blocks. Each batch that it appends then takes new blocks, and its
//! fsync has to wait for a commit of the file system's own journal, which on ext4 also writes out what others have written
//! meanwhile, such as the tables of a flush. A batch that overwrites zeros changes data alone, and its fsync writes nothing else
//! (figures: docs/benchmarks.md).
//!
//! The zeros say what a reader finds there without them: a hole reads as zeros. They are written between batches, under the
//! store's writer lock, and only into the hole behind the last batch; nobody else writes to the journal then. Only a journal that
//! this process has seen from its first batch on gets any: where a journal was copied, as from a backup, its batches may have holes
//! of their own, for zeros that they hold.

use rustix::fs::{SeekFrom, seek};
use std::{fs::File, io, os::unix::fs::FileExt, path::Path};

/// How much is written at a time. The fsync after it waits for new blocks as each did before: one in some tens.
const STRETCH_BYTES: u64 = 1024 * 1024;

/// With less than this ahead of the batches more is written, so that few batches reach the end of the zeros.
const LEFT_BYTES_MIN: u64 = STRETCH_BYTES / 8;

static ZEROS: [u8; STRETCH_BYTES as usize] = [0; STRETCH_BYTES as usize];

pub(crate) struct ZerosAhead {
    journal: File,
    length: u64,
    /// The bytes of the batches that the journal is known to hold.
    batches_until: u64,
    zeros_until: u64,
}

impl ZerosAhead {
    /// Of a journal that the engine has just begun. `None`: it cannot be opened, or its file system does not write data where it
    /// stands.
    pub(crate) fn in_new(journal: &Path) -> Option<Self> {
        let journal = File::options().write(true).open(journal).ok().filter(is_written_in_place)?;
        Self::of(journal).ok()
    }

    /// Of the journal that the engine goes on with, which may be older than this process. `None`: likewise, or it has batches.
    pub(crate) fn in_empty(journal: &Path) -> Option<Self> {
        Self::in_new(journal).filter(Self::is_empty)
    }

    fn of(journal: File) -> io::Result<Self> {
        let length = journal.metadata()?.len();
        Ok(ZerosAhead { journal, length, batches_until: 0, zeros_until: 0 })
    }

    /// Whether the file begins with a hole. A batch does not begin with zeros.
    fn is_empty(&self) -> bool {
        seek(&self.journal, SeekFrom::Hole(0)).is_ok_and(|hole| hole == 0)
    }

    /// Counts a batch that the engine has appended, and writes more zeros where few are left.
    ///
    /// # Errors
    /// The disk is full, or is failing. No batch is touched, and the next one tells for itself.
    pub(crate) fn follow(&mut self, batch_bytes: u64) -> io::Result<()> {
        self.batches_until += batch_bytes;
        if self.batches_until + LEFT_BYTES_MIN <= self.zeros_until || self.zeros_until >= self.length {
            return Ok(());
        }
        // Whatever fails is not tried again at each batch.
        self.zeros_until = self.length;
        // At the end of the batches or, in blocks, shortly behind it.
        let hole = seek(&self.journal, SeekFrom::Hole(self.batches_until))?;
        if hole < self.length {
            let zeros = &ZEROS[..STRETCH_BYTES.min(self.length - hole) as usize];
            self.journal.write_all_at(zeros, hole)?;
            self.zeros_until = hole + zeros.len() as u64;
        }
        Ok(())
    }
}

/// Whether a file stands on ext4 or XFS. On a file system that writes each block to a new place, such as btrfs or ZFS, zeros ahead would
/// only be more to write.
#[cfg(target_os = "linux")]
pub(crate) fn is_written_in_place(file: &File) -> bool {
    // statfs(2)
    const EXT4_SUPER_MAGIC: u64 = 0xef53;
    const XFS_SUPER_MAGIC: u64 = 0x5846_5342;
    let kind = rustix::fs::fstatfs(file).map(|stat| stat.f_type as u64);
    kind.is_ok_and(|kind| [EXT4_SUPER_MAGIC, XFS_SUPER_MAGIC].contains(&kind))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn is_written_in_place(_: &File) -> bool {
    false
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{fjall_kv::*, journal, kv::*};
    use std::{
        fs,
        io::{Seek, SeekFrom, Write as _},
        os::unix::fs::MetadataExt,
    };

    const SIZES: Sizes = Sizes { memtable_bytes: 64 << 20, journal_bytes: 96 << 20, cache_bytes: 1 << 20 };

    fn batch_of(number: u64) -> Batch {
        let mut batch = Batch::default();
        for row in 0..1 + number % 3 {
            // From nothing to more than what is left ahead.
            let value = vec![0xA5; (number * number * 71 % (3 * LEFT_BYTES_MIN)) as usize];
            batch.put(Space::ALL[(number % 6) as usize], [number.to_be_bytes(), row.to_be_bytes()].concat(), value);
        }
        batch.remove(Space::Meta, number.to_be_bytes().to_vec());
        batch
    }

    #[test]
    fn batches_follow_each_other_over_the_zeros_and_are_all_there_after_a_restart() {
        const BATCHES: u64 = 60;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.jnl");
        let mut written = 0;
        for first in [0, BATCHES / 2] {
            let kv = FjallKv::open(folder.path(), SIZES).unwrap();
            let length = path.metadata().unwrap().len();
            let zeros = ZerosAhead::of(File::options().write(true).open(&path).unwrap()).unwrap();
            assert_eq!(zeros.is_empty(), first == 0);
            let mut zeros = Some(zeros).filter(ZerosAhead::is_empty);
            for number in first..first + BATCHES / 2 {
                let committed = kv.commit(batch_of(number)).unwrap();
                written += committed.journal_bytes;
                if let Some(zeros) = &mut zeros {
                    zeros.follow(committed.journal_bytes).unwrap();
                }
                let file = path.metadata().unwrap();
                assert_eq!(journal::read_written(&path).unwrap().len() as u64, written, "{number}");
                if let Some(ZerosAhead { zeros_until, .. }) = zeros {
                    assert_eq!(file.len(), length, "the file keeps its length");
                    assert!(zeros_until >= written + LEFT_BYTES_MIN && file.blocks() * 512 >= zeros_until);
                } else {
                    assert_eq!(file.len(), written, "the engine appends to the end of a journal that it opened anew");
                }
            }
        }
        let scan = journal::scan(&journal::read_written(&path).unwrap(), &mut journal::PreviousBatch::default());
        assert_eq!((scan.whole_bytes as u64, scan.last_batch, scan.later_batches), (written, Some(BATCHES), 0));
        let kv = FjallKv::open(folder.path(), SIZES).unwrap();
        for number in 0..BATCHES {
            for Write { space, key, value } in batch_of(number).writes {
                assert_eq!(kv.get(space, &key).unwrap(), value);
            }
        }
    }

    /// As `cp --sparse=always` does.
    fn copy_sparsely(path: &Path) {
        let bytes = fs::read(path).unwrap();
        fs::remove_file(path).unwrap();
        let mut copy = File::create_new(path).unwrap();
        copy.set_len(bytes.len() as u64).unwrap();
        for (block, bytes) in bytes.chunks(4096).enumerate().filter(|(_, bytes)| bytes.iter().any(|byte| *byte != 0)) {
            copy.seek(SeekFrom::Start(block as u64 * 4096)).unwrap();
            copy.write_all(bytes).unwrap();
        }
    }

    #[test]
    fn the_holes_of_a_copied_journal_are_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("0.jnl");
        let zeros = [[1; 9].repeat(1_000), vec![0; 200_000], [2; 9].repeat(100_000)].concat();
        let put = |kv: &FjallKv, key: u8| {
            let mut batch = Batch::default();
            batch.put(Space::Push, vec![key], zeros.clone());
            kv.commit(batch).unwrap().journal_bytes
        };
        let kv = FjallKv::open(folder.path(), SIZES).unwrap();
        let fresh = ZerosAhead::of(File::options().write(true).open(&path).unwrap()).unwrap();
        assert!(fresh.is_empty());
        put(&kv, 1);
        drop(kv);
        copy_sparsely(&path);
        let before = journal::read_written(&path).unwrap();
        let kv = FjallKv::open(folder.path(), SIZES).unwrap();
        let copied = ZerosAhead::of(File::options().write(true).open(&path).unwrap()).unwrap();
        let hole = seek(&copied.journal, super::SeekFrom::Hole(0)).unwrap();
        assert!(hole < before.len() as u64, "the file system has no holes here, so this test shows nothing");
        assert!(!copied.is_empty() && ZerosAhead::in_empty(&path).is_none());
        put(&kv, 2);
        drop(kv);
        assert!(journal::read_written(&path).unwrap().starts_with(&before));
        let kv = FjallKv::open(folder.path(), SIZES).unwrap();
        for key in [1, 2] {
            assert_eq!(kv.get(Space::Push, &[key]).unwrap().as_ref(), Some(&zeros), "{key}");
        }
    }

    #[test]
    fn a_full_disk_ends_the_zeros_of_a_journal_and_nothing_else() {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let mut zeros = ZerosAhead { journal: full, length: STRETCH_BYTES, batches_until: 0, zeros_until: 0 };
        assert!(zeros.follow(0).is_err());
        assert!(zeros.follow(0).is_ok(), "not tried at each batch");
    }
}
