//! Repairing a space: the files that name its tables are mended, and a damaged table is written anew under its number with
//! the rows of it that can be read.

use crate::{
    damage::FileFault,
    files::{number_in, sync_folder, write_durably},
    folder::Folder,
    kv::{BATCH_KEY, Space},
    tables::{self, Section, Table, file_name},
};
use lsm_tree::{Cache, Checksum, InternalValue};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use xxhash_rust::xxh3::xxh3_128;

/// Files, each with what was done.
type Done = Vec<(String, String)>;

/// Repairs one space; answers what was done with which file.
///
/// # Errors
/// No version of the space is left (only a backup helps), or a file could not be read or written.
pub(crate) fn repair_space(folder: &Folder, space: u64) -> io::Result<Done> {
    let engine = folder.engine_path();
    let path = tables::spaces_folder(&engine).join(space.to_string());
    let mut done = Done::new();
    if tables::read_current(&path).is_err() {
        let version = newest_version(&engine, &path)?;
        let bytes = fs::read(path.join(format!("v{version}")))?;
        write_current(&path, version, &bytes)?;
        done.push((file_name(&path.join("current")), format!("written anew: it names v{version}")));
    }
    let fault = |fault: FileFault| io::Error::other(fault.to_string());
    let mut replaced = BTreeMap::new();
    for table in tables::version_tables(&engine, space).map_err(fault)? {
        let Err(damage) = tables::verify(&table) else { continue };
        let salvaged = salvage(folder, &table)?;
        let what = match &salvaged {
            Some(salvaged) => format!("{}: {} rows could be read and were kept", damage.what, salvaged.rows),
            None => format!("{}: no row could be read; the store goes on without the table", damage.what),
        };
        done.push((damage.file, what));
        replaced.insert(table.number, salvaged.map(|salvaged| salvaged.checksum));
    }
    if !replaced.is_empty() {
        write_version(&path, &replaced)?;
    }
    Ok(done)
}

fn write_current(space: &Path, version: u64, bytes: &[u8]) -> io::Result<()> {
    let current = [&version.to_le_bytes()[..], &xxh3_128(bytes).to_le_bytes(), &[0]].concat();
    write_durably(&space.join("current"), &current)
}

/// The newest version whose file is a whole archive. The engine removes older versions, so this is the current one.
fn newest_version(engine: &Path, space: &Path) -> io::Result<u64> {
    let mut versions = Vec::new();
    for entry in fs::read_dir(space)? {
        let path = entry?.path();
        if let Some(version) = number_in(&path, "v", "")
            && tables::sections(&mut File::open(&path)?)?.is_some()
        {
            versions.push(version);
        }
    }
    versions.sort_unstable();
    versions.pop().ok_or_else(|| {
        let (name, engine) = (file_name(space), engine.display());
        io::Error::other(format!("{name}: no version of it is left in {engine}; only a backup helps"))
    })
}

struct SalvagedTable {
    rows: usize,
    checksum: u128,
}

/// Sets a damaged table aside, and writes the rows that can be read to a new one in its place. The table is read from both
/// ends: the rows between the first and the last unreadable block are lost. `None`: no row could be read.
fn salvage(folder: &Folder, table: &Table) -> io::Result<Option<SalvagedTable>> {
    if !table.path.exists() {
        return Ok(None);
    }
    let aside = folder.set_aside(&table.path)?;
    let cache = Arc::new(Cache::with_capacity_bytes(0));
    let checksum = Checksum::from_raw(table.checksum);
    // Seqnos are copied as they stand in the file: the version has the base that is added to them.
    let read = std::panic::catch_unwind(|| {
        let opened =
            lsm_tree::Table::recover(folder.path.join(&aside), checksum, 0, 0, cache, None, false, false).ok()?;
        let compression = opened.metadata.data_block_compression;
        let mut rows: Vec<InternalValue> = opened.iter().map_while(Result::ok).collect();
        let from_the_end: Vec<InternalValue> = opened.iter().rev().map_while(Result::ok).collect();
        let last = rows.last().map(|row| row.key.clone());
        rows.extend(from_the_end.into_iter().rev().filter(|row| last.as_ref().is_none_or(|last| row.key > *last)));
        Some((rows, compression))
    });
    let Ok(Some((rows, compression))) = read else { return Ok(None) };
    // A whole table with another checksum than the version names may be a table of another space.
    if !rows.iter().all(|row| may_belong_to(table.space, &row.key.user_key)) {
        return Ok(None);
    }
    let count = rows.len();
    let failed = |error: lsm_tree::Error| io::Error::other(format!("writing a table anew: {error}"));
    let writer = lsm_tree::table::Writer::new(table.path.clone(), table.number, 0).map_err(failed)?;
    let mut writer = writer.use_data_block_compression(compression);
    rows.into_iter().try_for_each(|row| writer.write(row)).map_err(failed)?;
    match writer.finish().map_err(failed)? {
        Some((_, checksum)) => Ok(Some(SalvagedTable { rows: count, checksum: checksum.into_u128() })),
        None => Ok(None),
    }
}

/// Whether a key may be in the space with this id. The engine's internal space has id 0; ours follow in the order of
/// [`Space::ALL`].
fn may_belong_to(space: u64, key: &[u8]) -> bool {
    let space = Space::ALL.into_iter().find(|known| *known as u64 + 1 == space);
    key == BATCH_KEY
        || match space {
            Some(Space::Meta) => key.first().is_some_and(|kind| b"enuUcCmrsfoOdb".contains(kind)),
            Some(Space::Timeline) => key.len() == 16,
            Some(Space::Bodies) => key.len() == 18,
            Some(Space::Dedupe) => key.len() > 8,
            Some(Space::Push | Space::Popups) | None => true,
        }
}

/// Writes the next version of a space: with the new checksums of salvaged tables (`Some`), and without tables that are
/// gone (`None`).
fn write_version(space: &Path, replaced: &BTreeMap<u64, Option<u128>>) -> io::Result<()> {
    let damaged = || io::Error::other(format!("{}: its version cannot be read", file_name(space)));
    let (version, _) = tables::read_current(space).map_err(|_| damaged())?;
    let path = space.join(format!("v{version}"));
    let mut file = File::open(&path)?;
    let sections = tables::sections(&mut file)?.ok_or_else(damaged)?;
    let mut archive = Archive::default();
    for Section { name, .. } in &sections {
        let mut bytes = tables::section(&mut file, &sections, name)?.ok_or_else(damaged)?;
        if name == b"tables" {
            bytes = replace_tables(&bytes, replaced).ok_or_else(damaged)?;
        }
        archive.add(name, &bytes);
    }
    let bytes = archive.finish();
    let next: PathBuf = space.join(format!("v{}", version + 1));
    write_durably(&next, &bytes)?;
    write_current(space, version + 1, &bytes)?;
    fs::remove_file(path)?;
    sync_folder(space)
}

/// The list of tables with these replaced or left out. A run that is empty then is left out as well.
fn replace_tables(list: &[u8], replaced: &BTreeMap<u64, Option<u128>>) -> Option<Vec<u8>> {
    let mut list = tables::ByteReader(list);
    let levels = list.number(1)? as u8;
    let mut written = vec![levels];
    for _ in 0..levels {
        let mut runs = Vec::new();
        for _ in 0..list.number(1)? {
            let (mut run, mut count) = (Vec::new(), 0_u32);
            for _ in 0..list.number(4)? {
                let (number, kind) = (list.number(8)? as u64, list.number(1)? as u8);
                let (checksum, base) = (list.number(16)?, list.number(8)? as u64);
                let Some(checksum) = replaced.get(&number).copied().unwrap_or(Some(checksum)) else { continue };
                count += 1;
                run.extend_from_slice(&number.to_le_bytes());
                run.push(kind);
                run.extend_from_slice(&checksum.to_le_bytes());
                run.extend_from_slice(&base.to_le_bytes());
            }
            if count > 0 {
                runs.push([&count.to_le_bytes()[..], &run].concat());
            }
        }
        written.push(runs.len() as u8);
        written.extend(runs.concat());
    }
    Some(written)
}

/// Builds an archive; [`tables`] has its format.
#[derive(Default)]
struct Archive {
    bytes: Vec<u8>,
    entries: Vec<u8>,
    count: u32,
}

impl Archive {
    fn add(&mut self, name: &[u8], bytes: &[u8]) {
        self.entries.extend_from_slice(&(self.bytes.len() as u64).to_le_bytes());
        self.entries.extend_from_slice(&(bytes.len() as u64).to_le_bytes());
        self.entries.extend_from_slice(&(name.len() as u16).to_le_bytes());
        self.entries.extend_from_slice(name);
        self.bytes.extend_from_slice(bytes);
        self.count += 1;
    }

    fn finish(mut self) -> Vec<u8> {
        let toc = [b"TOC!", &self.count.to_le_bytes()[..], &self.entries].concat();
        let at = self.bytes.len() as u64;
        self.bytes.extend_from_slice(&toc);
        self.bytes.extend_from_slice(b"SFA!\x01\x00");
        self.bytes.extend_from_slice(&xxh3_128(&toc).to_le_bytes());
        self.bytes.extend_from_slice(&at.to_le_bytes());
        self.bytes.extend_from_slice(&(toc.len() as u64).to_le_bytes());
        self.bytes
    }
}
