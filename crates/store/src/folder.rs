//! The data folder around the engine's files: one owner, one format, and the mark of an orderly close.
//!
//! ```text
//! data/  lock  format  closed  new-epoch  damaged-….bin  notes-a  notes-b  store/…(the engine's)
//! ```

use crate::embedded::OpenError;
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

/// The form of the folder and its rows. A newer one is refused, an older one is upgraded here.
pub(crate) const FORMAT: u32 = 1;

/// Written when a store is closed in order, removed when it is opened: as long as it stands, every
/// byte of the journals was acknowledged, and damage is loss.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq, Clone)]
pub(crate) struct ClosedMark {
    /// Journal file names and how much was written to each.
    pub journals: Vec<(String, u64)>,
}

pub(crate) struct Folder {
    pub(crate) path: PathBuf,
    /// Held for as long as the store is open; the system lets go of it whatever happens to us.
    lock: File,
}

impl Drop for Folder {
    /// Closing the file is not enough: a child process that is just being started holds a copy of it until
    /// it runs its own program, and with it the lock.
    fn drop(&mut self) {
        if let Err(error) = self.lock.unlock() {
            tracing::warn!(%error, folder = %self.path.display(), "the folder's lock could not be let go");
        }
    }
}

impl Folder {
    /// Takes the folder, creating it if it does not exist.
    pub(crate) fn take(path: &Path) -> Result<Folder, OpenError> {
        fs::create_dir_all(path)?;
        let lock = File::options().create(true).write(true).truncate(false).open(path.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        let folder = Folder { path: path.to_owned(), lock };
        folder.check_format()?;
        Ok(folder)
    }

    fn check_format(&self) -> Result<(), OpenError> {
        let path = self.path.join("format");
        match fs::read_to_string(&path) {
            Ok(text) => match text.trim().parse() {
                Ok(FORMAT) => Ok(()),
                Ok(found) => Err(OpenError::Format { found, known: FORMAT }),
                Err(_) => Err(OpenError::Damaged(format!("{} does not hold a format number", path.display()))),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                if self.engine_path().exists() {
                    return Err(OpenError::Damaged(format!("{} is missing beside a store", path.display())));
                }
                Ok(write_durably(&path, format!("{FORMAT}\n").as_bytes())?)
            }
            Err(error) => Err(error.into()),
        }
    }

    /// Where the engine keeps its files.
    pub(crate) fn engine_path(&self) -> PathBuf {
        self.path.join("store")
    }

    pub(crate) fn closed_mark(&self) -> Option<ClosedMark> {
        let bytes = fs::read(self.path.join("closed")).ok()?;
        serde_json::from_slice(&bytes).ok()
    }

    pub(crate) fn remove_closed_mark(&self) -> std::io::Result<()> {
        self.remove("closed")
    }

    /// Acknowledged data went: whoever opens next gives the store a new epoch before anything else.
    pub(crate) fn ask_new_epoch(&self) -> std::io::Result<()> {
        write_durably(&self.path.join("new-epoch"), b"")
    }

    pub(crate) fn is_new_epoch_asked(&self) -> bool {
        self.path.join("new-epoch").exists()
    }

    pub(crate) fn new_epoch_given(&self) -> std::io::Result<()> {
        self.remove("new-epoch")
    }

    fn remove(&self, name: &str) -> std::io::Result<()> {
        match fs::remove_file(self.path.join(name)) {
            Ok(()) => sync_folder(&self.path),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    pub(crate) fn write_closed_mark(&self, mark: &ClosedMark) -> std::io::Result<()> {
        write_durably(&self.path.join("closed"), &serde_json::to_vec(mark)?)
    }
}

/// Writes a small file whole or not at all, and makes it durable.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    File::open(path)?.sync_all()
}
