//! Recorded chats: files with one JSON object a line with `at` (UTC), `room`, `user` and `text`, possibly gzipped.

use serde::Deserialize;
use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};
use tidings_protocol::ids::check_new_id;

/// One line of the file.
#[derive(Debug, Deserialize)]
struct ChatLine {
    at: String,
    user: String,
    text: String,
}

/// A recorded chat whose authors have valid user ids.
#[derive(Debug, Default)]
pub(crate) struct Corpus {
    pub(crate) authors: Vec<Author>,
    pub(crate) messages: Vec<ChatMessage>,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Author {
    /// The nick, or `irc-N` if the nick is no valid id.
    pub(crate) id: String,
    pub(crate) nick: String,
}

#[derive(Debug)]
pub(crate) struct ChatMessage {
    pub(crate) author: usize,
    /// Milliseconds after the first message. Messages of one minute are spread evenly over that minute.
    pub(crate) after_ms: u64,
    pub(crate) text: String,
}

/// Reads a file, gzipped or not, up to `limit` messages.
pub(crate) fn read(path: &Path, limit: Option<usize>) -> io::Result<Corpus> {
    let mut magic = [0; 2];
    let is_gzip = File::open(path)?.read_exact(&mut magic).is_ok() && magic == [0x1f, 0x8b];
    let file = File::open(path)?;
    if is_gzip {
        parse(BufReader::new(flate2::read::GzDecoder::new(file)), limit)
    } else {
        parse(BufReader::new(file), limit)
    }
}

fn parse(lines: impl BufRead, limit: Option<usize>) -> io::Result<Corpus> {
    let mut corpus = Corpus::default();
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut minutes = Vec::new();
    for (number, line) in lines.lines().take(limit.unwrap_or(usize::MAX)).enumerate() {
        let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {what}", number + 1));
        let line: ChatLine = serde_json::from_str(&line?).map_err(|error| bad(&error.to_string()))?;
        minutes.push(parse_minute(&line.at).ok_or_else(|| bad("`at` is not a UTC time"))?);
        let author = *known.entry(line.user.clone()).or_insert_with(|| {
            let number = corpus.authors.len();
            let id = if check_new_id("user", &line.user).is_ok() { line.user.clone() } else { format!("irc-{number}") };
            corpus.authors.push(Author { id, nick: line.user });
            number
        });
        corpus.messages.push(ChatMessage { author, after_ms: 0, text: line.text });
    }
    spread_within_minutes(&mut corpus.messages, &minutes);
    Ok(corpus)
}

/// Gives the messages of each minute evenly spaced times within it; times never decrease.
fn spread_within_minutes(messages: &mut [ChatMessage], minutes: &[i64]) {
    let Some(first) = minutes.first().copied() else { return };
    let mut at = 0;
    let mut start = 0;
    while start < messages.len() {
        let count = minutes[start..].iter().take_while(|minute| **minute == minutes[start]).count();
        let minute_ms = ((minutes[start] - first).max(0) as u64) * 60_000;
        for (index, message) in messages[start..start + count].iter_mut().enumerate() {
            at = at.max(minute_ms + index as u64 * 60_000 / count as u64);
            message.after_ms = at;
        }
        start += count;
    }
}

/// Minutes since 1970 of a UTC time such as `2004-12-25T09:14:00Z`.
fn parse_minute(at: &str) -> Option<i64> {
    let at: jiff::Timestamp = at.parse().ok().filter(|_| at.ends_with('Z'))?;
    Some(at.as_second().div_euclid(60))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/ubuntu-irc-sample.jsonl");

    #[test]
    fn the_sample_is_read_with_valid_ids_and_times_in_order() {
        let corpus = read(Path::new(SAMPLE), None).unwrap();
        assert!(corpus.messages.len() >= 100);
        assert!(corpus.authors.iter().all(|author| check_new_id("user", &author.id).is_ok()));
        assert!(corpus.messages.windows(2).all(|pair| pair[0].after_ms <= pair[1].after_ms));
        assert_eq!(read(Path::new(SAMPLE), Some(7)).unwrap().messages.len(), 7);
    }

    #[test]
    fn a_minute_is_counted_from_1970() {
        assert_eq!(parse_minute("1970-01-01T00:00:00Z"), Some(0));
        assert_eq!(parse_minute("2000-03-01T00:01:00Z"), Some(951_868_860 / 60));
        assert_eq!(parse_minute("2004-12-25T09:14:00Z"), Some(1_103_966_040 / 60));
        assert_eq!(parse_minute("yesterday"), None);
    }

    #[test]
    fn an_author_whose_nick_is_no_valid_id_gets_a_generated_id() {
        // The id `me` is reserved, and somebody had that nick.
        for nick in ["a/b", "me"] {
            let line = format!(r#"{{"at":"2004-12-25T09:14:00Z","room":"r","user":"{nick}","text":"x"}}"#);
            let corpus = parse(format!("{line}\n").as_bytes(), None).unwrap();
            assert_eq!(corpus.authors, [Author { id: "irc-0".into(), nick: nick.into() }]);
        }
    }
}
