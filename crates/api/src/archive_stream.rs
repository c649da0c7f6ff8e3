//! A ZIP archive that is made while it is read: only what has not been taken yet is in memory.

use bytes::Bytes;
use parking_lot::Mutex;
use std::{
    io::{Result, Write},
    sync::Arc,
};
use zip::{ZipWriter, write::SimpleFileOptions, write::StreamWriter};

/// What the writer of the archive has written, until it is taken.
#[derive(Default, Clone)]
struct Written(Arc<Mutex<Vec<u8>>>);

impl Write for Written {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        self.0.lock().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }
}

/// An archive of files that follow each other.
pub(crate) struct ArchiveStream {
    written: Written,
    /// Absent once the archive has ended.
    archive: Option<ZipWriter<StreamWriter<Written>>>,
    file: &'static str,
}

impl Default for ArchiveStream {
    fn default() -> Self {
        let written = Written::default();
        ArchiveStream { archive: Some(ZipWriter::new_stream(written.clone())), written, file: "" }
    }
}

impl ArchiveStream {
    /// Adds to a file, which begins with its first bytes; answers what there is of the archive since the last call. With the last part
    /// the archive ends, with its directory.
    pub(crate) fn add(&mut self, file: &'static str, bytes: &[u8], has_more: bool) -> Result<Bytes> {
        if let Some(archive) = self.archive.as_mut().filter(|_| !bytes.is_empty()) {
            if self.file != file {
                // A file may become longer than 4 GiB.
                archive.start_file(file, SimpleFileOptions::default().large_file(true))?;
                self.file = file;
            }
            archive.write_all(bytes)?;
        }
        if let Some(archive) = self.archive.take_if(|_| !has_more) {
            archive.finish()?;
        }
        Ok(std::mem::take(&mut *self.written.0.lock()).into())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;
    use std::io::{Cursor, Read};

    #[test]
    fn parts_of_a_file_follow_each_other_and_an_empty_file_is_left_out() {
        let mut archive = ArchiveStream::default();
        let mut whole = Vec::new();
        for (file, text, more) in
            [("a", "one", true), ("a", "", true), ("a", "two", true), ("b", "", true), ("c", "x", false)]
        {
            whole.extend(archive.add(file, text.as_bytes(), more).unwrap());
        }
        let mut read = zip::ZipArchive::new(Cursor::new(whole)).unwrap();
        let names: Vec<_> = (0..read.len()).map(|at| read.by_index(at).unwrap().name().unwrap().to_string()).collect();
        assert_eq!(names, ["a", "c"]);
        let mut text = String::new();
        read.by_name("a").unwrap().read_to_string(&mut text).unwrap();
        assert_eq!(text, "onetwo");
    }
}
