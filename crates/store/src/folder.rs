//! The data folder around the engine's files: its lock, its format version and the marker of a clean shutdown.
//!
//! ```text
//! data/  lock  format  manifest  closed  new-epoch  damaged-….bin  acknowledged-…  notes-a  notes-b  store/…(the engine's)
//! ```

use crate::{
    ack_log,
    damage::{DamageReport, FileFault, Remedy},
    errors::OpenError,
    files::{create_folders, sync_folder, write_durably},
    manifest::{MANIFEST, Manifest, checked, with_checksum},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, TryLockError},
    path::{Path, PathBuf},
};

/// The version of the folder's format and of its rows. A newer version is refused, an older one is upgraded on open.
pub(crate) const FORMAT: u32 = 2;
/// The format before there was a manifest. Such a folder is upgraded when it is opened.
const FORMAT_WITHOUT_MANIFEST: u32 = 1;

/// The marker of a clean shutdown: the file `closed`, written when a store is closed and removed when it is opened. While
/// the marker is there, every byte of the journals was acknowledged, so that any damage to them is loss.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq, Clone)]
pub(crate) struct CleanShutdown {
    /// Names of journals and how many bytes were written to each.
    pub journals: Vec<(String, u64)>,
}

pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Locked as long as the store is open. The operating system releases the lock however the process ends.
    lock_file: File,
}

impl Drop for Folder {
    /// Closing the file is not enough: a child process that is just being started has a copy of the descriptor, and with
    /// it the lock, until it executes its own program.
    fn drop(&mut self) {
        if let Err(error) = self.lock_file.unlock() {
            tracing::warn!(%error, folder = %self.path.display(), "the folder's lock could not be released");
        }
    }
}

impl Folder {
    /// Locks the folder, creating it if it does not exist, and checks its format.
    pub(crate) fn lock(path: &Path) -> Result<Folder, OpenError> {
        let folder = Self::lock_any_format(path)?;
        folder.check_format()?;
        Ok(folder)
    }

    /// Locks the folder without a look at its format.
    pub(crate) fn lock_any_format(path: &Path) -> Result<Folder, OpenError> {
        create_folders(path)?;
        let lock_file = File::options().create(true).write(true).truncate(false).open(path.join("lock"))?;
        match lock_file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        Ok(Folder { path: path.to_owned(), lock_file })
    }

    /// Whether the folder at this path holds any file of a store.
    pub(crate) fn exists_at(path: &Path) -> bool {
        ["format", MANIFEST, "store"].iter().any(|name| path.join(name).exists())
    }

    /// The format version that the folder names; the inner `Err` has a text that is no number.
    fn format(&self) -> std::io::Result<Option<Result<u32, String>>> {
        match fs::read(self.path.join("format")) {
            Ok(bytes) => {
                let text = String::from_utf8_lossy(&bytes);
                Ok(Some(text.trim().parse().map_err(|_| text.into_owned())))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn check_format(&self) -> Result<(), OpenError> {
        let damaged = |what: &str| {
            let fault = FileFault { file: "format".into(), what: what.into(), remedy: Remedy::LosslessRepair };
            Err(OpenError::Damaged(DamageReport(vec![fault])))
        };
        match self.format()? {
            Some(Ok(FORMAT)) => Ok(()),
            // Also if there is a manifest: the process ended while it upgraded the folder.
            Some(Ok(FORMAT_WITHOUT_MANIFEST)) => Ok(()),
            Some(Ok(found @ FORMAT..)) => Err(OpenError::Format { found, known: FORMAT }),
            Some(_) => damaged("the file does not hold the number of a format"),
            None if self.engine_path().exists() => damaged("the file is missing beside a store"),
            None => {
                // The manifest first: a folder of this format that has no manifest has lost it.
                Manifest::default().write(&self.path)?;
                Ok(self.write_format()?)
            }
        }
    }

    /// Whether there must be a manifest.
    pub(crate) fn has_manifest(&self) -> bool {
        !matches!(self.format(), Ok(Some(Ok(FORMAT_WITHOUT_MANIFEST))))
    }

    /// Completes an upgrade: called once the folder has everything that this format requires.
    pub(crate) fn write_format(&self) -> std::io::Result<()> {
        let former = self.format();
        if matches!(former, Ok(Some(Ok(FORMAT)))) {
            return Ok(());
        }
        self.rewrite_format()?;
        if let Ok(Some(Ok(from))) = former {
            tracing::info!(from, to = FORMAT, folder = %self.path.display(), "the data folder's format was upgraded");
        }
        Ok(())
    }

    /// Writes this format's version over a damaged file.
    pub(crate) fn rewrite_format(&self) -> std::io::Result<()> {
        write_durably(&self.path.join("format"), format!("{FORMAT}\n").as_bytes())
    }

    /// Removes the manifest and the acknowledgement logs, as in a folder of the format before them. The next open writes
    /// them from the files that it finds.
    pub(crate) fn remove_expectations(&self) -> std::io::Result<()> {
        ack_log::remove_all(&self.path)?;
        self.remove(MANIFEST)?;
        write_durably(&self.path.join("format"), format!("{FORMAT_WITHOUT_MANIFEST}\n").as_bytes())
    }

    /// Moves a file out of the engine's folder; answers its new name in the data folder.
    pub(crate) fn set_aside(&self, file: &Path) -> std::io::Result<PathBuf> {
        let name = file.strip_prefix(&self.path).unwrap_or(file);
        let name: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
        let mut aside = PathBuf::from(format!("set-aside-{}", name.join("-")));
        let mut copy = 1;
        while self.path.join(&aside).exists() {
            copy += 1;
            aside = PathBuf::from(format!("set-aside-{}-{copy}", name.join("-")));
        }
        fs::rename(file, self.path.join(&aside))?;
        sync_folder(&self.path)?;
        Ok(aside)
    }

    /// Removes an engine that was not completely created when the process ended: it would not open.
    pub(crate) fn remove_unfinished_store(&self) -> std::io::Result<()> {
        match fs::remove_dir_all(self.engine_path()) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            removed => removed,
        }
    }

    /// Where the engine keeps its files.
    pub(crate) fn engine_path(&self) -> PathBuf {
        self.path.join("store")
    }

    /// `None` after a crash, and if the marker is damaged.
    pub(crate) fn clean_shutdown(&self) -> Option<CleanShutdown> {
        let text = fs::read_to_string(self.path.join("closed")).ok()?;
        // Earlier versions wrote the marker without a checksum in front.
        let text = if text.starts_with('{') { &text } else { checked(&text)? };
        serde_json::from_str(text).ok()
    }

    pub(crate) fn remove_clean_shutdown(&self) -> std::io::Result<()> {
        self.remove("closed")
    }

    /// Requests a new epoch because acknowledged data is lost: the next open gives the store one before anything else.
    pub(crate) fn request_new_epoch(&self) -> std::io::Result<()> {
        write_durably(&self.path.join("new-epoch"), b"")
    }

    pub(crate) fn is_new_epoch_requested(&self) -> bool {
        Self::is_new_epoch_requested_at(&self.path)
    }

    /// The same of a folder that is not open.
    pub(crate) fn is_new_epoch_requested_at(path: &Path) -> bool {
        path.join("new-epoch").exists()
    }

    pub(crate) fn clear_new_epoch_request(&self) -> std::io::Result<()> {
        self.remove("new-epoch")
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Ok(()) => sync_folder(&self.path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write_clean_shutdown(&self, marker: &CleanShutdown) -> std::io::Result<()> {
        write_durably(&self.path.join("closed"), with_checksum(&serde_json::to_string(marker)?).as_bytes())
    }
}
