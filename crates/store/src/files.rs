//! Helpers for files and folders: durable writes, and names with numbers in them.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::Path,
};

/// Creates a folder and its parents durably: they are there after a power loss.
pub(crate) fn create_folders(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    if let Some(parent) = parent {
        create_folders(parent)?;
    }
    match fs::create_dir(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        made => made?,
    }
    sync_folder(parent.unwrap_or(Path::new(".")))
}

/// Writes a small file atomically and durably.
pub(crate) fn write_durably(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let mut file = File::create(&temporary)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&temporary, path)?;
    path.parent().map_or(Ok(()), sync_folder)
}

pub(crate) fn sync_folder(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

/// The number between a prefix and a suffix in a file's name.
pub(crate) fn number_in(path: &Path, before: &str, after: &str) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix(before)?.strip_suffix(after)?.parse().ok()
}

/// The last part of a path.
pub(crate) fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}
