//! A data folder for commands that only read it: the engine writes as soon as it opens a folder (it cuts and empties journals,
//! and a folder of an earlier format is upgraded), so it opens this view instead.
//!
//! A view is a temporary folder with copies of all files but the tables. Those are by far the most bytes and are never
//! changed once written, so the view has links to them.

use crate::{errors::OpenError, folder::Folder};
use std::{
    fs::{self, File, Permissions, TryLockError},
    io,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};
use tempfile::TempDir;

/// A view of a data folder. The folder is locked while the view lives, if any process has ever opened it.
pub struct FolderView {
    view: TempDir,
    lock: Option<File>,
}

impl FolderView {
    /// Makes a view of the folder at this path, which is not changed.
    ///
    /// # Errors
    /// There is no data folder at the path, or it cannot be read, or the system's folder for temporary files has no room for
    /// the journals ([`OpenError::Io`]); another process has the folder open ([`OpenError::Locked`]).
    pub fn of(path: &Path) -> Result<FolderView, OpenError> {
        if !Folder::exists_at(path) {
            let what = format!("{} is not a data folder", path.display());
            return Err(io::Error::new(io::ErrorKind::NotFound, what).into());
        }
        let view = tempfile::Builder::new().prefix("tidings-view-").tempdir()?;
        let lock = match File::open(path.join("lock")) {
            Ok(file) => match file.try_lock() {
                Ok(()) => Some(file),
                Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(error.into()),
        };
        let view = FolderView { view, lock };
        copy(&path.canonicalize()?, view.path())?;
        Ok(view)
    }

    /// Where the view is.
    pub fn path(&self) -> &Path {
        self.view.path()
    }
}

impl Drop for FolderView {
    /// By an unlock rather than by the file's end alone: a process that is being started holds every open file, and with it the
    /// lock, until it executes its own program.
    fn drop(&mut self) {
        if let Some(Err(error)) = self.lock.as_ref().map(File::unlock) {
            tracing::warn!(%error, "the lock of a folder that was read could not be released");
        }
    }
}

/// Copies what is in a folder; tables become links.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    let holds_tables = from.file_name().is_some_and(|name| name == "tables");
    for entry in fs::read_dir(from)? {
        let from = entry?.path();
        let to = to.join(from.file_name().unwrap_or_default());
        if from.is_dir() {
            fs::create_dir(&to)?;
            copy(&from, &to)?;
        } else if holds_tables {
            symlink(&from, &to)?;
        } else {
            fs::copy(&from, &to)?;
            // The copy is written to, also if the file may only be read.
            fs::set_permissions(&to, Permissions::from_mode(0o600))?;
        }
    }
    Ok(())
}
