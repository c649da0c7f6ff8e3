//! Properties that hold for any bytes, and a fuzzing run that looks for a counterexample.

use super::{
    hex_of, model,
    mutate::{Random, mutate},
    read, valid, vectors,
};
use std::{
    collections::{BTreeMap, HashSet},
    hash::{DefaultHasher, Hash, Hasher},
    mem::discriminant,
};
use tidings_protocol::miop::{Frame, MiopError, decode, take_head};

/// The most inputs that are kept because they took a new path.
const CORPUS_MAX: usize = 20_000;
/// Payload limits of readers: a small one, that of a first frame, that of the others.
const LIMITS: [usize; 3] = [100, 16 * 1024, 192 * 1024];

/// The result of a run.
#[derive(Debug)]
pub struct Outcome {
    #[allow(dead_code, reason = "the example prints it")]
    pub executions: u64,
    /// Counts of frames by kind, of errors by text, and of `incomplete`.
    pub seen: BTreeMap<String, u64>,
    /// Inputs that took another path than all before them.
    pub corpus: usize,
    /// A hash of every input's outcome: two runs of one seed have the same.
    pub digest: u64,
}

/// Prints the input when a property does not hold.
struct Case {
    seed: u64,
    execution: u64,
    bytes: Vec<u8>,
}

impl Drop for Case {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("seed {}, execution {}: {}", self.seed, self.execution, hex_of(&self.bytes));
        }
    }
}

/// Checks `executions` inputs, the same ones for the same seed.
pub fn run(seed: u64, executions: u64, mut progress: impl FnMut(u64)) -> Outcome {
    let mut random = Random(seed);
    let mut corpus: Vec<Vec<u8>> = vectors().iter().map(|vector| vector.bytes()).collect();
    let vectors = corpus.len();
    let others: Vec<Vec<u8>> = valid().into_iter().map(|(_, bytes)| bytes).collect();
    let mut ways = HashSet::new();
    let mut outcome = Outcome { executions, seen: BTreeMap::new(), corpus: 0, digest: 0 };
    for execution in 0..executions {
        // Half of the time a vector itself: kinds with few fields have few paths and would hardly be drawn.
        let end = if random.below(2) == 0 { vectors } else { corpus.len() };
        let from = random.below(end);
        let other = random.below(others.len());
        let mut case = Case { seed, execution, bytes: mutate(&mut random, &corpus[from], &others[other]) };
        let limit = LIMITS[random.below(LIMITS.len())];
        let cut = random.below(case.bytes.len() + 1);
        check(&case.bytes, limit, cut);
        let (way, name) = way_of(&case.bytes, limit);
        outcome.digest = outcome.digest.rotate_left(5) ^ way ^ case.bytes.len() as u64;
        match outcome.seen.get_mut(&*name) {
            Some(count) => *count += 1,
            None => drop(outcome.seen.insert(name.into_owned(), 1)),
        }
        if ways.insert(way) && corpus.len() < CORPUS_MAX {
            corpus.push(std::mem::take(&mut case.bytes));
            outcome.corpus += 1;
        }
        if execution % (1 << 20) == 0 {
            progress(execution);
        }
    }
    outcome
}

/// Checks all properties of these bytes, whole and cut in two.
pub fn check(bytes: &[u8], limit: usize, cut: usize) {
    let whole = read(bytes, limit);
    match &whole {
        Ok(Some((frame, end))) => check_frame(frame, *end, bytes, limit),
        Ok(None) => assert!(bytes.len() < limit + 6, "a frame within the limit cannot be this long"),
        Err(_) => {}
    }
    check_model(bytes, limit, &whole);
    check_cut(bytes, limit, cut, &whole);
    check_stream(bytes, limit, cut);
}

fn check_frame(frame: &Frame, end: usize, bytes: &[u8], limit: usize) {
    assert!((2..=bytes.len()).contains(&end), "the frame ends at {end} of {}", bytes.len());
    assert!(end <= limit + 5, "the payload is over the limit");
    let range = bytes[..end].as_ptr_range();
    each_slice(frame, |slice| {
        let part = slice.as_ptr_range();
        assert!(range.start <= part.start && part.end <= range.end, "a field lies outside of its frame");
    });
    if matches!(frame, Frame::Skipped { .. }) {
        return;
    }
    let written = frame.to_bytes();
    assert!(written.len() <= end + 6, "the canonical form is longer than what was read, beyond an error's flags");
    let (again, again_end) = read(&written, usize::MAX).unwrap().unwrap();
    assert_eq!((&again, again_end), (frame, written.len()), "what is written is not read back");
    assert_eq!(again.to_bytes(), written, "writing is not stable");
}

/// The reference decoder accepts and refuses the same bytes, with the same codes and the same meaning.
fn check_model(bytes: &[u8], limit: usize, whole: &Result<Option<(Frame, usize)>, MiopError>) {
    match (whole, model::read(bytes, limit)) {
        (Ok(None), Ok(None)) => {}
        (Ok(Some((frame, end))), Ok(Some(read))) => {
            assert_eq!(*end, read.end, "the frame's end");
            let written = (!matches!(frame, Frame::Skipped { .. })).then(|| frame.to_bytes());
            assert_eq!(written, read.canonical, "the meaning");
        }
        (Err(error), Err(code)) => assert_eq!(error.code().as_str(), code, "{error}"),
        (ours, model) => panic!("{ours:?}, but the tables say {model:?}"),
    }
}

/// A prefix gives the same result as the whole, or needs more bytes: further bytes never change a result.
fn check_cut(bytes: &[u8], limit: usize, cut: usize, whole: &Result<Option<(Frame, usize)>, MiopError>) {
    match read(&bytes[..cut], limit) {
        Ok(None) => {
            if let Ok(Some((_, end))) = whole {
                assert!(cut < *end, "the whole frame has come");
            }
        }
        part => assert_eq!(&part, whole, "cut at {cut}"),
    }
}

/// A connection that reads the bytes in two parts sees the same frames and ends in the same way.
fn check_stream(bytes: &[u8], limit: usize, cut: usize) {
    let mut whole = Stream::default();
    whole.take(bytes, limit);
    let mut parts = Stream::default();
    let mut held = bytes[..cut].to_vec();
    let taken = parts.take(&held, limit);
    held.drain(..taken);
    held.extend_from_slice(&bytes[cut..]);
    parts.take(&held, limit);
    assert_eq!(parts, whole, "cut at {cut}");
}

/// The frames that a connection has read so far.
#[derive(Debug, Default, PartialEq, Eq)]
struct Stream {
    frames: u64,
    read: usize,
    digest: u64,
    error: Option<MiopError>,
}

impl Stream {
    /// Takes the complete frames; returns how many bytes they have.
    fn take(&mut self, bytes: &[u8], limit: usize) -> usize {
        let mut at = 0;
        while self.error.is_none() {
            match take_head(&bytes[at..], limit) {
                Ok(None) => break,
                Ok(Some(head)) => {
                    let payload = &bytes[at..][head.payload.clone()];
                    match decode(head.kind, payload) {
                        Ok(_) => {}
                        Err(error) => self.error = Some(error),
                    }
                    self.frames += 1;
                    self.digest = hash(&(self.digest, head.kind, payload));
                    self.read += head.payload.end;
                    at += head.payload.end;
                }
                Err(error) => self.error = Some(error),
            }
        }
        at
    }
}

/// Every borrowed part of a frame.
fn each_slice(frame: &Frame, mut look: impl FnMut(&[u8])) {
    let mut maybe = |slice: Option<&[u8]>| {
        if let Some(slice) = slice.filter(|slice| !slice.is_empty()) {
            look(slice);
        }
    };
    match frame {
        Frame::Heartbeat { .. } | Frame::Ack { .. } | Frame::Skipped { .. } => {}
        Frame::Bind(bind) => {
            let optional = [bind.device_kind, bind.app_version, bind.cursor];
            [Some(bind.token), Some(bind.device_id)]
                .into_iter()
                .chain(optional)
                .for_each(|t| maybe(t.map(str::as_bytes)));
        }
        Frame::Bound(bound) => {
            [Some(bound.session), Some(bound.user), bound.cursor].into_iter().for_each(|t| maybe(t.map(str::as_bytes)));
            maybe(bound.resume);
        }
        Frame::Push(push) => {
            [push.collapse_key, Some(push.content_type)].into_iter().for_each(|t| maybe(t.map(str::as_bytes)));
            maybe(Some(push.body));
        }
        Frame::Chat { json } => maybe(Some(json)),
        Frame::Unbind { reason } => maybe(reason.map(str::as_bytes)),
        Frame::Redirect { address, .. } => maybe(address.map(str::as_bytes)),
        Frame::Error(error) => {
            maybe(Some(error.code.as_bytes()));
            maybe(Some(error.message.as_bytes()));
        }
    }
}

/// A number for the path that these bytes take through the decoder, and the name of the outcome.
fn way_of(bytes: &[u8], limit: usize) -> (u64, std::borrow::Cow<'static, str>) {
    let kind = bytes.first().copied().unwrap_or_default();
    match read(bytes, limit) {
        Ok(None) => (hash(&(0, kind, bytes.len().min(6))), "incomplete".into()),
        Ok(Some((frame, end))) => {
            // The fields' tags, and the magnitudes of their lengths.
            let mut shape = Vec::with_capacity(8);
            each_slice(&frame, |slice| shape.push(slice.len().ilog2()));
            let written = if matches!(frame, Frame::Skipped { .. }) { 0 } else { frame.to_bytes().len().ilog2() };
            let name = match kind {
                0x80.. => "skipped".into(),
                kind => format!("kind {kind:#04x}").into(),
            };
            (hash(&(1, kind, shape, written, end < bytes.len())), name)
        }
        Err(error) => {
            let name = match &error {
                MiopError::LengthTooLong => "length too long",
                MiopError::TooLong { .. } => "payload too long",
                MiopError::BadNumber => "bad number",
                MiopError::NoVersion => "no version",
                MiopError::UnknownKind(_) => "unknown kind",
                MiopError::UnknownField(_) => "unknown critical field",
                MiopError::RepeatedField(_) => "repeated field",
                MiopError::CutField => "cut field",
                MiopError::MissingField(_) => "missing field",
                MiopError::NotText(_) => "not text",
                MiopError::OverLimit { .. } => "over a limit",
            };
            let place = match &error {
                MiopError::RepeatedField(tag) => u64::from(*tag),
                MiopError::MissingField(name) | MiopError::NotText(name) | MiopError::OverLimit { name, .. } => {
                    hash(name)
                }
                _ => 0,
            };
            (hash(&(2, discriminant(&error), kind, place)), name.into())
        }
    }
}

/// The outcomes that a run of any length must reach, or it does not cover the decoder.
pub const MUST_BE_SEEN: [&str; 22] = [
    "incomplete",
    "skipped",
    "kind 0x01",
    "kind 0x02",
    "kind 0x03",
    "kind 0x04",
    "kind 0x05",
    "kind 0x06",
    "kind 0x07",
    "kind 0x08",
    "kind 0x09",
    "length too long",
    "payload too long",
    "bad number",
    "no version",
    "unknown kind",
    "unknown critical field",
    "repeated field",
    "cut field",
    "missing field",
    "not text",
    "over a limit",
];

fn hash(value: &impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}
