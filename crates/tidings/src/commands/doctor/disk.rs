//! How long the disk of the data folder takes to make a write durable, measured.

use super::finding::{Finding, State};
use std::{
    fs::{self, OpenOptions},
    io::{self, Write},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

/// As much as a small batch of messages.
const WRITE_BYTES: usize = 16 * 1024;
const WRITES: usize = 200;
/// A slow disk is judged by fewer writes.
const TIME_MAX: Duration = Duration::from_secs(3);
/// What one fsync takes along at least, while more messages wait than that.
const BATCH: u64 = 16;
/// An answer waits for the fsync before its own and for its own.
const SLOWEST_MS: f64 = 50.0;

const WHY: &str = "Messages are answered when they are durable: one fsync for all that wait. A slow one delays every answer, and bounds the rate.";

pub(super) fn finding(data_dir: &Path, rate: u64) -> Finding {
    let folder = existing_folder(data_dir);
    match measure(&folder) {
        Ok(times) => judge(times, rate, &folder),
        Err(error) => Finding::new(name(&folder), format!("not measured: {error}"), "a folder to write in", WHY)
            .state(State::Unknown),
    }
}

fn name(folder: &Path) -> String {
    format!("fsync of {} KB in {}", WRITE_BYTES / 1024, folder.display())
}

/// The folder, or the nearest above it that exists: it is on the same disk unless something is mounted in between.
fn existing_folder(data_dir: &Path) -> PathBuf {
    let found = data_dir.ancestors().find(|folder| folder.is_dir());
    found.map_or_else(|| PathBuf::from("."), Path::to_owned)
}

fn measure(folder: &Path) -> io::Result<Vec<Duration>> {
    let file = folder.join(format!(".tidings-doctor-{}", std::process::id()));
    let times = write_and_sync(&file);
    let removed = fs::remove_file(&file);
    let times = times?;
    removed.map(|()| times)
}

fn write_and_sync(file: &Path) -> io::Result<Vec<Duration>> {
    let mut file = OpenOptions::new().create_new(true).write(true).open(file)?;
    let bytes = vec![0x5a; WRITE_BYTES];
    let (started, mut times) = (Instant::now(), Vec::with_capacity(WRITES));
    while times.len() < WRITES && (times.is_empty() || started.elapsed() < TIME_MAX) {
        let before = Instant::now();
        file.write_all(&bytes)?;
        file.sync_data()?;
        times.push(before.elapsed());
    }
    Ok(times)
}

fn judge(mut times: Vec<Duration>, rate: u64, folder: &Path) -> Finding {
    times.sort_unstable();
    let ms = |index: usize| times.get(index).map_or(0.0, |time| time.as_secs_f64() * 1e3);
    let last = times.len().saturating_sub(1);
    let (median, slow) = (ms(times.len() / 2), ms(last * 99 / 100));
    let enough_ms = (1e3 * BATCH as f64 / rate.max(1) as f64).min(SLOWEST_MS);
    let state = if median > enough_ms || slow > SLOWEST_MS { State::Wrong } else { State::Fine };
    let now = format!("p50 {median:.2} ms, p99 {slow:.2} ms, p100 {:.2} ms of {}", ms(last), times.len());
    Finding::new(name(folder), now, format!("p50 {enough_ms:.1} ms or less, p99 {SLOWEST_MS:.0} ms or less"), WHY)
        .state(state)
        .command("a disk with a write cache that survives a power cut, and no other writer on it")
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn judged(median_ms: u64, slow_ms: u64, rate: u64) -> State {
        let mut times = vec![Duration::from_millis(median_ms); 98];
        times.extend([Duration::from_millis(slow_ms); 2]);
        judge(times, rate, Path::new("/data")).state
    }

    #[test]
    fn a_disk_is_judged_by_the_rate_that_it_has_to_bear() {
        assert_eq!(judged(1, 5, 1_000), State::Fine);
        assert_eq!(judged(20, 25, 1_000), State::Wrong, "16 messages in each 20 ms are 800 a second");
        assert_eq!(judged(20, 25, 100), State::Fine);
        assert_eq!(judged(1, 80, 100), State::Wrong, "one of a hundred answers would wait");
    }

    #[test]
    fn measuring_leaves_nothing_behind_and_a_folder_that_is_not_there_yet_is_measured_above() {
        let folder = tempfile::tempdir().unwrap();
        let found = finding(&folder.path().join("not/yet"), 1);
        assert!(found.now.starts_with("p50 "), "{}", found.now);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
