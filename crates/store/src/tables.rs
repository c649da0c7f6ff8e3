//! The engine's tables as they lie in its folder, looked at before the engine opens them: it removes what it does not
//! know, and takes a space whose `current` is gone for a new one.
//!
//! ```text
//! keyspaces/<space>/current      version:u64 checksum:u128 0          of the file v<version>     (little-endian)
//!                   v<version>   an archive; its section `tables`:
//!                                levels:u8, (runs:u8, (tables:u32, (number:u64 0 checksum:u128 base:u64)*)*)*
//!                   tables/<number>   an archive; its section `meta` is a block that names the newest batch in it
//! archive = section*, toc, "SFA!" 1 0 checksum-of-toc:u128 at-of-toc:u64 length-of-toc:u64
//! toc     = "TOC!" count:u32, (at:u64 length:u64 name-length:u16 name)*
//! ```
//! Checksums are XXH3 of the whole file (or toc). This is the form of lsm-tree 3, which `Cargo.toml` pins.

use crate::problem::{Problem, Remedy};
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

/// What an archive ends with.
const TRAILER_BYTES: usize = 38;
/// A toc is a few hundred bytes; what claims to be more is none.
const TOC_BYTES_MAX: u64 = 64 * 1024;
/// Read at once when a whole file is.
const READ_BYTES: usize = 256 * 1024;

/// A file of sorted rows, as its space's version names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Table {
    pub space: u64,
    pub number: u64,
    pub path: PathBuf,
    pub checksum: u128,
    /// Added to the numbers of all batches in it.
    pub base: u64,
}

/// The tables of one space.
#[derive(Debug, Clone, Default)]
pub(crate) struct SpaceFiles {
    pub tables: Vec<Table>,
    /// The engine's number of the newest batch that wrote to any of them.
    pub newest: Option<u64>,
}

/// A file by its path in the data folder.
pub(crate) fn file_name(path: &Path) -> String {
    let parts: Vec<_> = path.iter().map(|part| part.to_string_lossy()).collect();
    let start = parts.iter().rposition(|part| part == "store").unwrap_or(0);
    parts[start..].join("/")
}

fn problem(path: &Path, what: impl Into<String>, remedy: Remedy) -> Problem {
    Problem { file: file_name(path), what: what.into(), remedy }
}

fn number_le(bytes: &[u8]) -> u128 {
    bytes.iter().rev().fold(0, |n, byte| n << 8 | u128::from(*byte))
}

pub(crate) fn spaces_folder(engine: &Path) -> PathBuf {
    engine.join("keyspaces")
}

/// The spaces that have a folder.
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

/// What the file `current` of a space says: the version, and the checksum of its file.
pub(crate) fn read_current(space: &Path) -> Result<(u64, u128), Problem> {
    let path = space.join("current");
    match fs::read(&path) {
        Ok(bytes) if bytes.len() == 25 && bytes[24] == 0 => {
            Ok((number_le(&bytes[..8]) as u64, number_le(&bytes[8..24])))
        }
        Ok(_) => Err(problem(&path, "it does not name a version", Remedy::Mend)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(problem(&path, "it is missing", Remedy::Mend)),
        Err(error) => Err(problem(&path, format!("it cannot be read: {error}"), Remedy::Restore)),
    }
}

/// A section of an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    pub name: Vec<u8>,
    pub at: u64,
    pub length: u64,
}

/// The sections of an archive, if its end is whole.
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
    let mut bytes = Bytes(toc);
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

/// What is left of some bytes.
pub(crate) struct Bytes<'a>(pub &'a [u8]);

impl<'a> Bytes<'a> {
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
    let mut bytes = Bytes(bytes);
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

/// The tables that a space's version names; `Err`: what is wrong with `current` or the version.
pub(crate) fn version_tables(engine: &Path, space: u64) -> Result<Vec<Table>, Problem> {
    let folder = spaces_folder(engine).join(space.to_string());
    let (version, checksum) = read_current(&folder)?;
    let path = folder.join(format!("v{version}"));
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => problem(&path, "it is missing, though `current` names it", Remedy::Restore),
        _ => problem(&path, format!("it cannot be read: {error}"), Remedy::Restore),
    };
    let damaged = |what: &str| problem(&path, format!("it is damaged: {what}"), Remedy::Restore);
    let bytes = fs::read(&path).map_err(unreadable)?;
    if xxh3_128(&bytes) != checksum {
        return Err(damaged("its checksum is not the one in `current`"));
    }
    let mut file = File::open(&path).map_err(unreadable)?;
    let sections = sections(&mut file).map_err(unreadable)?.ok_or_else(|| damaged("its end"))?;
    let list = section(&mut file, &sections, b"tables").map_err(unreadable)?;
    list.and_then(|list| parse_tables(&list, space, &folder)).ok_or_else(|| damaged("its list of tables"))
}

/// Looks at one space: that each table is there, and that its ends are whole.
pub(crate) fn look_at_space(
    engine: &Path,
    space: u64,
    problems: &mut Vec<Problem>,
    strays: &mut Vec<PathBuf>,
) -> SpaceFiles {
    let folder = spaces_folder(engine).join(space.to_string());
    let tables = match version_tables(engine, space) {
        Ok(tables) => tables,
        Err(problem) => {
            problems.push(problem);
            return SpaceFiles::default();
        }
    };
    // The engine refuses to open beside what it cannot name.
    for entry in fs::read_dir(folder.join("tables")).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let is_number = name.to_str().is_some_and(|name| name.parse::<u64>().is_ok_and(|n| n.to_string() == name));
        if !is_number {
            problems.push(problem(&entry.path(), "it is none of the engine's tables (a copy?)", Remedy::Mend));
            strays.push(entry.path());
        }
    }
    let mut newest = None;
    for table in &tables {
        match newest_batch(table) {
            Ok(number) => newest = newest.max(Some(number)),
            Err(problem) => problems.push(problem),
        }
    }
    SpaceFiles { tables, newest }
}

/// The engine's number of the newest batch that wrote to this table, from the block that tells about the table.
fn newest_batch(table: &Table) -> Result<u64, Problem> {
    let Table { path, base, .. } = table;
    let unreadable = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => problem(path, "the table is missing", Remedy::Lose),
        _ => problem(path, format!("the table cannot be read: {error}"), Remedy::Lose),
    };
    let damaged = |what: &str| problem(path, format!("the table is damaged: {what}"), Remedy::Lose);
    let mut file = File::open(path).map_err(unreadable)?;
    let sections = sections(&mut file).map_err(unreadable)?.ok_or_else(|| damaged("its end"))?;
    let meta = sections.iter().find(|section| section.name == b"meta").ok_or_else(|| damaged("its contents"))?;
    let handle = BlockHandle::new(BlockOffset(meta.at), meta.length.try_into().unwrap_or(0));
    let block =
        Block::from_file(&file, handle, CompressionType::None).map_err(|_| damaged("what it tells of itself"))?;
    let row = DataBlock::new(block).point_read(b"seqno#max", u64::MAX);
    let number = row.and_then(|row| Bytes(&row.value).number(8)).ok_or_else(|| damaged("what it tells of itself"))?;
    Ok(number as u64 + base)
}

/// Reads all of a table and compares it with the checksum that was noted when it was written.
pub(crate) fn verify(table: &Table) -> Result<u64, Problem> {
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
        Ok(_) => {
            Err(problem(path, "the table is damaged: its checksum is not the one it was written with", Remedy::Lose))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            Err(problem(path, "the table is missing", Remedy::Lose))
        }
        Err(error) => Err(problem(path, format!("the table cannot be read: {error}"), Remedy::Lose)),
    }
}
