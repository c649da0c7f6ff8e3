//! The manifest: a small file of our own that names the journals and spaces that the engine's folder must hold.
//!
//! The engine opens whatever journals it finds in its folder, so it would not miss one. It begins a new journal from one of
//! its own threads. The manifest is written when the first batch is in the new journal, before that batch is acknowledged.
//! So no acknowledged batch is in a journal that the manifest does not name. A journal that the manifest names and that is
//! gone was either emptied into tables (the tables' seqnos show that) or is lost.

use crate::{
    damage::{FileFault, Remedy},
    files::write_durably,
};
use serde::{Deserialize, Serialize};
use std::{collections::BTreeMap, fs, io, path::Path};
use xxhash_rust::xxh3::xxh3_64;

/// The file's name in the data folder.
pub(crate) const MANIFEST: &str = "manifest";

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Manifest {
    /// Oldest first; the engine appends to the last one. Empty: the store was never completely created, and no write was
    /// ever acknowledged.
    pub journals: Vec<JournalRecord>,
    /// The engine's ids of its spaces, its internal one included: each has a folder with a file `current`.
    pub spaces: Vec<u64>,
    /// By space id: the space's tables hold every batch up to this seqno, because the journal with that batch was emptied.
    pub emptied: BTreeMap<u64, u64>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct JournalRecord {
    pub number: u64,
    /// The ordinal of the journal's last batch, once the next journal has begun.
    pub last_batch: Option<u64>,
    /// By space id: the seqno of the last batch in this journal that wrote to the space.
    pub last_numbers: BTreeMap<u64, u64>,
}

impl Manifest {
    /// Whether the store was completely created, so that writes may have been acknowledged.
    pub(crate) fn is_finished(&self) -> bool {
        !self.journals.is_empty()
    }

    /// Removes a journal from the list because all its batches are in tables.
    pub(crate) fn remove_emptied(&mut self, journal: &JournalRecord) {
        for (space, seqno) in &journal.last_numbers {
            let emptied = self.emptied.entry(*space).or_default();
            *emptied = (*emptied).max(*seqno);
        }
        self.journals.retain(|record| record.number != journal.number);
    }

    pub(crate) fn write(&self, folder: &Path) -> io::Result<()> {
        write_durably(&folder.join(MANIFEST), with_checksum(&serde_json::to_string(self)?).as_bytes())
    }

    /// `None`: the folder has no manifest.
    pub(crate) fn read(folder: &Path) -> Result<Option<Manifest>, FileFault> {
        let fault = |what: String| FileFault { file: MANIFEST.into(), what, remedy: Remedy::LosslessRepair };
        let text = match fs::read_to_string(folder.join(MANIFEST)) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(fault(format!("the file cannot be read: {error}"))),
        };
        match checked(&text) {
            Some(rest) => serde_json::from_str(rest).map_err(|error| fault(format!("the file is damaged: {error}"))),
            None => Err(fault("the file is damaged: its checksum does not match".into())),
        }
    }
}

/// A line with the text's checksum, then the text.
pub(crate) fn with_checksum(text: &str) -> String {
    format!("{:016x}\n{text}\n", xxh3_64(text.as_bytes()))
}

/// The text of such a file, if its checksum matches.
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
    fn a_manifest_is_read_back_and_any_flipped_byte_is_refused() {
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
        shorter.remove_emptied(&record);
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
