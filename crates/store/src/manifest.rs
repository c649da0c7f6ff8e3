//! Which files of the engine there must be: a small file of our own, durable before anybody is told of what is in them.
//!
//! The engine knows its journals by what it finds in its folder, and begins a new one when a thread of it says so. The
//! manifest is written when the first batch is in the new one, before that batch is acknowledged. So no acknowledged
//! batch is in a journal that the manifest does not name, and one that is gone was either emptied into tables (which the
//! tables themselves tell) or is lost.

use crate::{
    folder::write_durably,
    problem::{Problem, Remedy},
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, io, path::Path};
use xxhash_rust::xxh3::xxh3_64;

/// The file's name in the data folder.
pub(crate) const MANIFEST: &str = "manifest";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Oldest first; the last one is written to. None: the store was never finished, and nobody was told of anything.
    pub journals: Vec<JournalRecord>,
    /// The engine's numbers of its spaces, its own included: each has a folder with a `current`.
    pub spaces: Vec<u64>,
    /// By space: its tables hold all up to the batch of this number, because its journal was emptied.
    pub emptied: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalRecord {
    pub number: u64,
    /// The ordinal of its last batch, once the next journal has begun.
    pub last_batch: Option<u64>,
    /// The engine's number of the last batch in it that wrote to each space.
    pub last_numbers: BTreeMap<u64, u64>,
}

impl Manifest {
    /// Whether there is a store to miss anything of.
    pub(crate) fn is_finished(&self) -> bool {
        !self.journals.is_empty()
    }

    /// Takes a journal off the list whose batches are all in tables.
    pub(crate) fn drop_emptied(&mut self, journal: &JournalRecord) {
        for (space, number) in &journal.last_numbers {
            let emptied = self.emptied.entry(*space).or_default();
            *emptied = (*emptied).max(*number);
        }
        self.journals.retain(|record| record.number != journal.number);
    }

    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        write_durably(&folder.join(MANIFEST), with_checksum(&serde_json::to_string(self)?).as_bytes())
    }

    /// Nothing if there is no such file.
    pub(crate) fn read(folder: &Path) -> Result<Option<Manifest>, Problem> {
        let problem = |what: String| Problem { file: MANIFEST.into(), what, remedy: Remedy::Mend };
        let text = match fs::read_to_string(folder.join(MANIFEST)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(problem(format!("it cannot be read: {error}"))),
        };
        match checked(&text) {
            Some(rest) => serde_json::from_str(rest).map_err(|error| problem(format!("it is damaged: {error}"))),
            None => Err(problem("it is damaged: its checksum is another".into())),
        }
    }
}

/// A line of text behind one with its checksum.
pub(crate) fn with_checksum(text: &str) -> String {
    format!("{:016x}\n{text}\n", xxh3_64(text.as_bytes()))
}

/// The text behind its checksum, if it fits.
pub(crate) fn checked(file: &str) -> Option<&str> {
    let (sum, text) = file.split_once('\n')?;
    let text = text.trim_end_matches('\n');
    (sum == format!("{:016x}", xxh3_64(text.as_bytes()))).then_some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_manifest_is_read_back_and_any_flipped_byte_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), None);
        let record = JournalRecord { number: 4, last_batch: Some(9), last_numbers: [(1, 12)].into() };
        let manifest = Manifest {
            journals: vec![record.clone(), JournalRecord { number: 5, ..JournalRecord::default() }],
            spaces: vec![0, 1],
            emptied: [(1, 3)].into(),
        };
        manifest.write(folder.path()).unwrap();
        assert_eq!(Manifest::read(folder.path()).unwrap(), Some(manifest.clone()));
        let mut shorter = manifest;
        shorter.drop_emptied(&record);
        assert_eq!((shorter.journals.len(), shorter.emptied), (1, [(1, 12)].into()));
        let path = folder.path().join(MANIFEST);
        let whole = fs::read(&path).unwrap();
        for at in 0..whole.len() - 1 {
            let mut flipped = whole.clone();
            flipped[at] ^= 4;
            fs::write(&path, flipped).unwrap();
            assert_eq!(Manifest::read(folder.path()).unwrap_err().file, MANIFEST, "flipped at {at}");
        }
    }
}
