//! The texts that grow: what is written, and how far each reader has come.

use crate::{load_times::LoadTimes, problems::Problems};

/// The chunks of all streams: chunk `n` of a stream is as long as every other, and differs from it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Chunks {
    pub(super) bytes: usize,
    pub(super) count: usize,
}

impl Chunks {
    /// The text of one chunk: ASCII, so that its bytes are its characters.
    pub(super) fn text(&self, stream: usize, chunk: usize) -> String {
        let mut text = format!("{stream:05}:{chunk:05} ");
        text.extend(std::iter::repeat_n('.', self.bytes.saturating_sub(text.len())));
        text
    }

    /// The whole text of a stream.
    pub(super) fn whole(&self, stream: usize) -> String {
        (0..self.count).map(|chunk| self.text(stream, chunk)).collect()
    }
}

/// A reader's view of one stream.
#[derive(Debug, Default)]
pub(super) struct Reader {
    /// Bytes of the text that the reader has.
    have: usize,
    /// The end has come, with the whole text.
    has_whole: bool,
}

/// All readers of all streams, and their faults.
#[derive(Debug, Default)]
pub(super) struct Readers {
    chunks: Chunks,
    /// The written texts.
    texts: Vec<String>,
    readers: Vec<Vec<Reader>>,
    /// Per stream and chunk: how many readers lack it.
    lacking: Vec<Vec<u32>>,
    pub(super) delivered: u64,
    pub(super) frames: u64,
    pub(super) gaps: u64,
    pub(super) altered: u64,
    pub(super) problems: Vec<String>,
    /// From when a chunk was due to its last reader.
    pub(super) times: LoadTimes,
}

impl Readers {
    pub(super) fn new(chunks: Chunks, streams: usize, readers: usize, start_ns: u64) -> Self {
        Readers {
            chunks,
            texts: (0..streams).map(|stream| chunks.whole(stream)).collect(),
            readers: (0..streams).map(|_| (0..readers).map(|_| Reader::default()).collect()).collect(),
            lacking: vec![vec![readers as u32; chunks.count]; streams],
            times: LoadTimes::from(start_ns),
            ..Readers::default()
        }
    }

    /// A `stream` frame reached a reader at `now`; `due` says when a chunk of the stream was due.
    pub(super) fn receive(
        &mut self,
        stream: usize,
        reader: usize,
        offset: usize,
        text: &str,
        due: impl Fn(usize) -> u64,
        now: u64,
    ) {
        self.frames += 1;
        let state = &mut self.readers[stream][reader];
        if offset > state.have {
            self.gaps += 1;
            let what = format!("stream {stream}, reader {reader}: {offset} follows {}", state.have);
            return self.problems.note(what);
        }
        if self.texts[stream].get(offset..offset + text.len()) != Some(text) {
            self.altered += 1;
            return self.problems.note(format!("stream {stream}, reader {reader}: at {offset} is {text:?}"));
        }
        let (before, after) = (state.have, state.have.max(offset + text.len()));
        state.have = after;
        for chunk in before / self.chunks.bytes..after / self.chunks.bytes {
            self.delivered += 1;
            self.times.series.arrived(now);
            let lacking = &mut self.lacking[stream][chunk];
            *lacking -= 1;
            if *lacking == 0 {
                self.times.ended(due(chunk), now);
            }
        }
    }

    /// The entry that ends the stream reached a reader, with this body.
    pub(super) fn receive_end(&mut self, stream: usize, reader: usize, body: &str) {
        if body == end_body(&self.texts[stream]) {
            self.readers[stream][reader].has_whole = true;
        } else {
            self.altered += 1;
            self.problems.note(format!("stream {stream}, reader {reader}: ended with another text: {body}"));
        }
    }

    /// Whether the stored body of a stream is the written text.
    pub(super) fn is_whole(&self, stream: usize, body: &str) -> bool {
        body == end_body(&self.texts[stream])
    }

    /// Readers that had the whole text chunk by chunk, and were handed it once more at the end.
    pub(super) fn complete(&self) -> u64 {
        let length = self.chunks.bytes * self.chunks.count;
        self.readers.iter().flatten().filter(|reader| reader.have == length && reader.has_whole).count() as u64
    }
}

/// The body of a stream with this text, as the server writes it.
fn end_body(text: &str) -> String {
    format!("{{\"text\":\"{text}\"}}")
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNKS: Chunks = Chunks { bytes: 14, count: 3 };

    fn readers() -> Readers {
        Readers::new(CHUNKS, 2, 2, 0)
    }

    fn receive(readers: &mut Readers, reader: usize, offset: usize, text: &str) {
        readers.receive(1, reader, offset, text, |_| 0, 5_000_000);
    }

    #[test]
    fn chunks_differ_and_have_the_length_that_was_asked_for() {
        assert_eq!(CHUNKS.text(1, 2), "00001:00002 ..");
        assert_eq!(CHUNKS.whole(0).len(), 14 * 3);
    }

    #[test]
    fn joined_and_repeated_chunks_count_once_at_the_last_reader() {
        let (mut all, whole) = (readers(), CHUNKS.whole(1));
        receive(&mut all, 0, 0, &whole[..14]);
        receive(&mut all, 0, 0, &whole[..28]);
        receive(&mut all, 0, 28, &whole[28..]);
        assert_eq!((all.delivered, all.times.latency.len()), (3, 0), "the other reader has none");
        receive(&mut all, 1, 0, &whole);
        assert_eq!((all.delivered, all.times.latency.len(), all.complete()), (6, 3, 0));
        all.receive_end(1, 0, &format!("{{\"text\":\"{whole}\"}}"));
        assert_eq!((all.complete(), all.gaps, all.altered), (1, 0, 0));
    }

    #[test]
    fn a_lost_an_altered_and_a_foreign_chunk_are_found() {
        let (mut all, whole) = (readers(), CHUNKS.whole(1));
        receive(&mut all, 0, 14, &whole[14..28]);
        assert_eq!((all.gaps, all.altered), (1, 0));
        receive(&mut all, 0, 0, &whole[14..28]);
        receive(&mut all, 0, 0, &CHUNKS.text(0, 0));
        all.receive_end(1, 0, &format!("{{\"text\":\"{}\"}}", &whole[..28]));
        assert_eq!((all.gaps, all.altered, all.delivered, all.complete()), (1, 3, 0, 0));
    }
}
