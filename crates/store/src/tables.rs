//! The engine's tables, read from its folder before the engine opens them. This must come first: the engine removes files
//! that it does not know, and takes a space without its file `current` for a new one.
//!
//! ```text
//! keyspaces/<space>/current      version:u64 checksum:u128 0          of the file v<version>     (little-endian)
//!                   v<version>   an archive; its section `tables`:
//!                                levels:u8, (runs:u8, (tables:u32, (number:u64 0 checksum:u128 base:u64)*)*)*
//!                   tables/<number>   an archive; its section `meta` is a block with the seqno of the newest batch in it
//! archive = section*, toc, "SFA!" 1 0 checksum-of-toc:u128 at-of-toc:u64 length-of-toc:u64
//! toc     = "TOC!" count:u32, (at:u64 length:u64 name-length:u16 name)*
//! ```
//! Checksums are XXH3 of the whole file (or toc). This is the format of lsm-tree 3, which `Cargo.toml` pins.

use crate::damage::{FileFault, Remedy};
use lsm_tree::{
    CompressionType,
    table::{Block, BlockHandle, BlockOffset, DataBlock},
};
use std::{
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};
use xxhash_rust::xxh3::{Xxh3Default, xxh3_128};

/// The length of an archive's end: magic, checksum, place and length of the toc.
const TRAILER_BYTES: usize = 38;
/// A toc is a few hundred bytes; a longer one is damage.
const TOC_BYTES_MAX: u64 = 64 * 1024;
/// The buffer with which a whole file is read.
const READ_BYTES: usize = 256 * 1024;

/// A file of sorted rows, as the version of its space names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub space: u64,
    pub number: u64,
    pub path: PathBuf,
    pub checksum: u128,
    /// Added to the seqnos in the file.
    pub base: u64,
}

/// The tables of one space.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpaceFiles {
    pub tables: Vec<Table>,
    /// The seqno of the newest batch in any of the tables.
    pub newest_seqno: Option<u64>,
}

/// A file's path in the data folder, for messages.
pub(crate) fn file_name(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let start = parts.iter().rposition(|part| part == "store").unwrap_or(0);
    parts[start..].join("/")
}

fn fault(path: &Path, what: impl Into<String>, remedy: Remedy) -> FileFault {
    FileFault { file: file_name(path), what: what.into(), remedy }
}

fn number_le(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u128::from(*byte))
}

pub(crate) fn spaces_folder(engine: &Path) -> PathBuf {
    engine.join("keyspaces")
}

/// The ids of the spaces that have a folder.
pub(crate) fn spaces(engine: &Path) -> io::Result<Vec<u64>> {
    let entries = match fs::read_dir(spaces_folder(engine)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        entries => entries?,
    };
    let mut found = Vec::new();
    for entry in entries {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u64>().ok()));
    }
    found.sort_unstable();
    Ok(found)
}

/// Reads the file `current` of a space: the version's number and the checksum of the version's file.
pub(crate) fn read_current(space: &Path) -> Result<(u64, u128), FileFault> {
    let path = space.join("current");
    match fs::read(&path) {
        Ok(bytes) if bytes.len() == 25 && bytes[24] == 0 => {
            Ok((number_le(&bytes[..8]) as u64, number_le(&bytes[8..24])))
        }
        Ok(_) => Err(fault(&path, "the file does not name a version", Remedy::LosslessRepair)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(fault(&path, "the file is missing", Remedy::LosslessRepair))
        }
        Err(error) => Err(fault(&path, format!("the file cannot be read: {error}"), Remedy::RestoreBackup)),
    }
}

/// A section of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub name: Vec<u8>,
    pub at: u64,
    pub length: u64,
}

/// The sections of an archive; `None` if its end is damaged.
pub(crate) fn sections(file: &mut File) -> io::Result<Option<Vec<Section>>> {
    let length = file.metadata()?.len();
    let mut trailer = [0; TRAILER_BYTES];
    if length < TRAILER_BYTES as u64 {
        return Ok(None);
    }
    file.seek(SeekFrom::End(-(TRAILER_BYTES as i64)))?;
    file.read_exact(&mut trailer)?;
    let (checksum, at, toc_length) =
        (number_le(&trailer[6..22]), number_le(&trailer[22..30]) as u64, number_le(&trailer[30..38]) as u64);
    let ends_there = at.checked_add(toc_length).and_then(|end| end.checked_add(TRAILER_BYTES as u64)) == Some(length);
    if trailer[..6] != *b"SFA!\x01\x00" || !ends_there || toc_length > TOC_BYTES_MAX {
        return Ok(None);
    }
    let mut toc = vec![0; toc_length as usize];
    file.seek(SeekFrom::Start(at))?;
    file.read_exact(&mut toc)?;
    Ok((xxh3_128(&toc) == checksum).then(|| parse_toc(&toc, at)).flatten())
}

fn parse_toc(toc: &[u8], end: u64) -> Option<Vec<Section>> {
    let mut bytes = ByteReader(toc);
    if bytes.take(4)? != b"TOC!" {
        return None;
    }
    let mut sections = Vec::new();
    for _ in 0..bytes.number(4)? {
        let (at, length, name) = (bytes.number(8)? as u64, bytes.number(8)? as u64, bytes.number(2)?);
        let name = bytes.take(name as usize)?.to_vec();
        if at.checked_add(length)? > end {
            return None;
        }
        sections.push(Section { name, at, length });
    }
    Some(sections)
}

/// Reads little-endian numbers from the front of some bytes.
pub(crate) struct ByteReader<'a>(pub &'a [u8]);

impl<'a> ByteReader<'a> {
    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(n)?;
        self.0 = rest;
        Some(taken)
    }

    pub(crate) fn number(&mut self, bytes: usize) -> Option<u128> {
        self.take(bytes).map(number_le)
    }
}

/// A section's bytes.
pub(crate) fn section(file: &mut File, sections: &[Section], name: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let Some(section) = sections.iter().find(|section| section.name == name) else { return Ok(None) };
    let mut bytes = vec![0; section.length as usize];
    file.seek(SeekFrom::Start(section.at))?;
    file.read_exact(&mut bytes)?;
    Ok(Some(bytes))
}

fn parse_tables(bytes: &[u8], space: u64, folder: &Path) -> Option<Vec<Table>> {
    let mut bytes = ByteReader(bytes);
    let mut tables = Vec::new();
    for _ in 0..bytes.number(1)? {
        for _ in 0..bytes.number(1)? {
            for _ in 0..bytes.number(4)? {
                let number = bytes.number(8)? as u64;
                if bytes.number(1)? != 0 {
                    return None;
                }
                let (checksum, base) = (bytes.number(16)?, bytes.number(8)? as u64);
                let path = folder.join("tables").join(number.to_string());
                tables.push(Table { space, number, path, checksum, base });
            }
        }
    }
    Some(tables)
}

/// The tables that the current version of a space names.
///
/// # Errors
/// `current` or the version's file is missing or damaged.
pub(crate) fn version_tables(engine: &Path, space: u64) -> Result<Vec<Table>, FileFault> {
    let folder = spaces_folder(engine).join(space.to_string());
    let (version, checksum) = read_current(&folder)?;
    let path = folder.join(format!("v{version}"));
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            fault(&path, "the version is missing, though `current` names it", Remedy::RestoreBackup)
        }
        _ => fault(&path, format!("the version cannot be read: {error}"), Remedy::RestoreBackup),
    };
    let damaged = |what: &str| fault(&path, format!("the version is damaged: {what}"), Remedy::RestoreBackup);
    let bytes = fs::read(&path).map_err(unreadable)?;
    if xxh3_128(&bytes) != checksum {
        return Err(damaged("its checksum is not the one in `current`"));
    }
    let mut file = File::open(&path).map_err(unreadable)?;
    let sections =
        sections(&mut file).map_err(unreadable)?.ok_or_else(|| damaged("the table of contents at its end"))?;
    let list = section(&mut file, &sections, b"tables").map_err(unreadable)?;
    list.and_then(|list| parse_tables(&list, space, &folder)).ok_or_else(|| damaged("the list of tables"))
}

/// Checks one space: each table must be there, with a readable table of contents.
pub(crate) fn inspect_space(
    engine: &Path,
    space: u64,
    faults: &mut Vec<FileFault>,
    strays: &mut Vec<PathBuf>,
) -> SpaceFiles {
    let folder = spaces_folder(engine).join(space.to_string());
    let tables = match version_tables(engine, space) {
        Ok(tables) => tables,
        Err(fault) => {
            faults.push(fault);
            return SpaceFiles::default();
        }
    };
    // The engine refuses to open if a file's name is not a table's number.
    for entry in fs::read_dir(folder.join("tables")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_number = name.to_str().is_some_and(|name| name.parse::<u64>().is_ok_and(|n| n.to_string() == name));
        if !is_number {
            faults.push(fault(
                &entry.path(),
                "the file is not one of the engine's tables (a copy?)",
                Remedy::LosslessRepair,
            ));
            strays.push(entry.path());
        }
    }
    let mut newest_seqno = None;
    for table in &tables {
        match newest_seqno_in(table) {
            Ok(seqno) => newest_seqno = newest_seqno.max(Some(seqno)),
            Err(fault) => faults.push(fault),
        }
    }
    SpaceFiles { tables, newest_seqno }
}

/// The seqno of the newest batch in a table, from the table's metadata block.
fn newest_seqno_in(table: &Table) -> Result<u64, FileFault> {
    let Table { path, base, .. } = table;
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => fault(path, "the table is missing", Remedy::LossyRepair),
        _ => fault(path, format!("the table cannot be read: {error}"), Remedy::LossyRepair),
    };
    let damaged = |what: &str| fault(path, format!("the table is damaged: {what}"), Remedy::LossyRepair);
    let mut file = File::open(path).map_err(unreadable)?;
    let sections =
        sections(&mut file).map_err(unreadable)?.ok_or_else(|| damaged("the table of contents at its end"))?;
    let meta = sections.iter().find(|section| section.name == b"meta").ok_or_else(|| damaged("no metadata block"))?;
    let handle = BlockHandle::new(BlockOffset(meta.at), meta.length.try_into().unwrap_or(0));
    let block = Block::from_file(&file, handle, CompressionType::None).map_err(|_| damaged("the metadata block"))?;
    let row = DataBlock::new(block).point_read(b"seqno#max", u64::MAX);
    let seqno = row.and_then(|row| ByteReader(&row.value).number(8)).ok_or_else(|| damaged("the metadata block"))?;
    Ok(seqno as u64 + base)
}

/// Reads a whole table and compares it with the checksum from when it was written; answers its length in bytes.
pub(crate) fn verify(table: &Table) -> Result<u64, FileFault> {
    let Table { path, checksum, .. } = table;
    let read = || -> io::Result<(u128, u64)> {
        let mut file = File::open(path)?;
        let (mut hasher, mut block, mut length) = (Xxh3Default::new(), vec![0; READ_BYTES], 0);
        loop {
            match file.read(&mut block)? {
                0 => return Ok((hasher.digest128(), length)),
                read => {
                    hasher.update(&block[..read]);
                    length += read as u64;
                }
            }
        }
    };
    match read() {
        Ok((found, length)) if found == *checksum => Ok(length),
        Ok(_) => Err(fault(
            path,
            "the table is damaged: its checksum is not the one it was written with",
            Remedy::LossyRepair,
        )),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(fault(path, "the table is missing", Remedy::LossyRepair))
        }
        Err(error) => Err(fault(path, format!("the table cannot be read: {error}"), Remedy::LossyRepair)),
    }
}
