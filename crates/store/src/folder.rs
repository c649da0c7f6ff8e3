//! The data folder around the engine's files: one owner, one format, and the mark of an orderly close.
//!
//! ```text
//! data/  lock  format  manifest  closed  new-epoch  damaged-….bin  acknowledged-…  notes-a  notes-b  store/…(the engine's)
//! ```

use crate::{
    acknowledged,
    embedded::OpenError,
    manifest::{MANIFEST, Manifest, checked, with_checksum},
    problem::{Damage, Problem, Remedy},
};
use serde::{Deserialize, Serialize};
use std::{
    fs::{self, File, TryLockError},
    io::Write,
    path::{Path, PathBuf},
};

/// The form of the folder and its rows. A newer one is refused, an older one is upgraded here.
pub(crate) const FORMAT: u32 = 2;
/// Before there was a manifest. Such a folder is upgraded when it is opened.
const FORMAT_WITHOUT_MANIFEST: u32 = 1;

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
        let folder = Self::take_as_it_is(path)?;
        folder.check_format()?;
        Ok(folder)
    }

    /// Takes the folder, whatever its format says.
    pub(crate) fn take_as_it_is(path: &Path) -> Result<Folder, OpenError> {
        create_folders(path)?;
        let lock = File::options().create(true).write(true).truncate(false).open(path.join("lock"))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(OpenError::Locked(path.to_owned())),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        Ok(Folder { path: path.to_owned(), lock })
    }

    /// Whether there is anything of a store in a folder.
    pub(crate) fn is_one(path: &Path) -> bool {
        ["format", MANIFEST, "store"].iter().any(|name| path.join(name).exists())
    }

    /// The format, if the folder names one.
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
            let problem = Problem { file: "format".into(), what: what.into(), remedy: Remedy::Mend };
            Err(OpenError::Damaged(Damage(vec![problem])))
        };
        match self.format()? {
            Some(Ok(FORMAT)) => Ok(()),
            // With a manifest: the process ended while the folder was upgraded.
            Some(Ok(FORMAT_WITHOUT_MANIFEST)) => Ok(()),
            Some(Ok(found @ FORMAT..)) => Err(OpenError::Format { found, known: FORMAT }),
            Some(_) => damaged("it does not hold the number of a format"),
            None if self.engine_path().exists() => damaged("it is missing beside a store"),
            None => {
                // The manifest first: a folder of this format without one has lost it.
                Manifest::default().write(&self.path)?;
                Ok(self.write_format()?)
            }
        }
    }

    /// Whether there must be a manifest.
    pub(crate) fn has_manifest(&self) -> bool {
        !matches!(self.format(), Ok(Some(Ok(FORMAT_WITHOUT_MANIFEST))))
    }

    /// When all that this format asks for is there.
    pub(crate) fn write_format(&self) -> std::io::Result<()> {
        if matches!(self.format(), Ok(Some(Ok(FORMAT)))) {
            return Ok(());
        }
        write_durably(&self.path.join("format"), format!("{FORMAT}\n").as_bytes())
    }

    /// The format that the folder seems to have.
    pub(crate) fn write_format_anew(&self) -> std::io::Result<()> {
        write_durably(&self.path.join("format"), format!("{FORMAT}\n").as_bytes())
    }

    /// Makes this a folder of which nothing tells what must be in it, until it is opened.
    pub(crate) fn forget_what_must_be_there(&self) -> std::io::Result<()> {
        acknowledged::forget_all(&self.path)?;
        self.remove(MANIFEST)?;
        write_durably(&self.path.join("format"), format!("{FORMAT_WITHOUT_MANIFEST}\n").as_bytes())
    }

    /// Moves a file out of the engine's sight, and answers its name in the folder.
    pub(crate) fn set_aside(&self, file: &Path) -> std::io::Result<PathBuf> {
        let name = file.strip_prefix(&self.path).unwrap_or(file);
        let name: Vec<_> = name.iter().map(|part| part.to_string_lossy()).collect();
        let mut aside = PathBuf::from(format!("set-aside-{}", name.join("-")));
        let mut again = 1;
        while self.path.join(&aside).exists() {
            again += 1;
            aside = PathBuf::from(format!("set-aside-{}-{again}", name.join("-")));
        }
        fs::rename(file, self.path.join(&aside))?;
        sync_folder(&self.path)?;
        Ok(aside)
    }

    /// The engine was being made for the first time when the process ended, and does not open what is half made.
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

    /// Nothing if there is none, or a damaged one: then it is as after a crash.
    pub(crate) fn closed_mark(&self) -> Option<ClosedMark> {
        let text = fs::read_to_string(self.path.join("closed")).ok()?;
        // Earlier versions wrote no checksum before it.
        let text = if text.starts_with('{') { &text } else { checked(&text)? };
        serde_json::from_str(text).ok()
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
        write_durably(&self.path.join("closed"), with_checksum(&serde_json::to_string(mark)?).as_bytes())
    }
}

/// Makes a folder and those above it, so that they are there after a power loss.
pub(crate) fn create_folders(path: &Path) -> std::io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        create_folders(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    sync_folder(parent.unwrap_or(Path::new(".")))
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
