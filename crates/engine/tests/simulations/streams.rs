//! The text of a stream at its owner and at the other nodes, whatever becomes of the chunks on their way.
#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use tidings_domain::{
    clock::SystemClock,
    store::{Appended, Outcome, Proposal},
};
use tidings_testkit::ManualClock;

const KEY: StreamKey = StreamKey { conversation: ConversationNo(7), seq: 3 };
const OWNER: u64 = 1;
const OTHER: u64 = 2;

fn group() -> Arc<Conversation> {
    Arc::new(Conversation {
        no: KEY.conversation,
        id: "g".into(),
        kind: ConversationKind::Group,
        pair: None,
        name: None,
        avatar: None,
        attributes: None,
        created_at: 0,
        member_count: 2,
        settings: Default::default(),
        blocks: PairBlocks::default(),
    })
}

fn entry() -> StoredEntry {
    let details = MessageDetails { stream: StreamState::Open { node: OWNER }, ..MessageDetails::NONE };
    let content = NewEntry {
        kind: EntryKind::Message,
        sender: None,
        client_msg_id: None,
        content_type: "text".into(),
        body: r#"{"text":""}"#.into(),
        mentions: vec![],
        silent: false,
        skip_push: false,
        details: Some(details.into()),
        request: EntryRequest::default(),
    };
    StoredEntry { seq: KEY.seq, position: 1, at: 1, content }
}

fn node(id: u64) -> Arc<Streams> {
    Streams::new(StreamsConfig::default(), id, Arc::new(SystemClock))
}

/// A node whose message grows, as far as its lanes have not its entry yet.
fn owner() -> Arc<Streams> {
    let streams = node(OWNER);
    let body = GrowingBody::parse(&entry().content.body).unwrap();
    let permit = streams.reserve(Some(KEY.conversation), None, body.bytes()).unwrap();
    let new = NewStream { permit, body, beginner: None, session: None };
    let proposal = Proposal::Append { conversation: KEY.conversation, entry: entry().content };
    let (conversation, seq) = (KEY.conversation, KEY.seq);
    let appended = Appended { conversation, seq, at: 1, position: 1, duplicate: false };
    streams.on_outcome(&proposal, &Outcome::Appended(appended), Some(&group()), Some(Box::new(new)));
    streams
}

fn announce(streams: &Streams) -> Option<Touch> {
    streams.announce(begun_stream(&group(), &entry()).unwrap())
}

fn append(streams: &Streams, chunk: &str) -> Option<Touch> {
    let length = streams.own_body(KEY).map(|(_, body)| GrowingBody::parse(&body).unwrap().text().len()).unwrap();
    streams.append(KEY, &Actor::App, length as u64, chunk).unwrap().unwrap().1
}

/// The offset and the text of a chunk's frame.
fn read(json: &[u8]) -> (u64, String) {
    let frame: serde_json::Value = serde_json::from_slice(json).unwrap();
    (frame["offset"].as_u64().unwrap(), frame["text"].as_str().unwrap().to_owned())
}

#[test]
fn chunks_follow_the_entry_and_wait_in_the_lane_as_one() {
    let streams = owner();
    assert_eq!(append(&streams, "a"), None, "the lane does not have the entry yet");
    let touch = announce(&streams).unwrap();
    assert_eq!(touch, Touch { lane: Lane::Group, key: KEY });
    assert_eq!((append(&streams, "b"), append(&streams, "c")), (None, None), "it is queued already");
    assert_eq!(read(&streams.take_chunk(KEY).unwrap().0.json), (0, "abc".into()));
    assert!(streams.take_chunk(KEY).is_none());
    assert!(append(&streams, "d").is_some());
    streams.close(KEY);
    assert!(streams.take_chunk(KEY).is_none(), "the entry that ends it has the whole body");
    assert_eq!(streams.depth().0, 0);
}

#[test]
fn a_copy_is_made_of_another_nodes_stream_only() {
    for (id, expected) in [(OWNER, None), (OTHER, Some(OWNER))] {
        let streams = node(id);
        assert_eq!(announce(&streams), None);
        assert_eq!(streams.owner(KEY), expected, "a stream of {id} that is not there has ended");
    }
}

/// A node that was sent the first of three chunks before the entry, and then, as it asked for it, the text so far.
fn copy_without_entry(clock: &Arc<ManualClock>) -> Arc<Streams> {
    let here = owner();
    announce(&here);
    append(&here, "a");
    let there = Streams::new(StreamsConfig::default(), OTHER, clock.clone());
    assert_eq!(there.on_chunk(KEY, 0, "a"), ChunkEffect::Ask);
    let (conversation, body) = here.own_body(KEY).unwrap();
    assert_eq!(there.on_body(KEY.seq, &conversation, OWNER, &body), None);
    assert_eq!(there.on_chunk(KEY, 1, "b"), ChunkEffect::Nothing, "the lane does not have the entry yet");
    there
}

#[test]
fn chunks_that_overtake_their_entry_follow_it() {
    let there = copy_without_entry(&Arc::new(ManualClock::default()));
    assert!(announce(&there).is_some());
    assert_eq!(read(&there.take_chunk(KEY).unwrap().0.json), (0, "ab".into()));
    assert!(matches!(there.on_chunk(KEY, 2, "c"), ChunkEffect::Queue(_)));
    assert_eq!(read(&there.take_chunk(KEY).unwrap().0.json), (2, "c".into()));
}

#[test]
fn chunks_do_not_wait_for_ever_for_an_entry_that_does_not_come() {
    let clock = Arc::new(ManualClock::default());
    let there = copy_without_entry(&clock);
    clock.advance(Duration::from_secs(1));
    // The owner tells the length of the text.
    assert!(matches!(there.on_chunk(KEY, 2, ""), ChunkEffect::Queue(_)));
    assert_eq!(read(&there.take_chunk(KEY).unwrap().0.json), (1, "b".into()));
}

#[test]
fn copies_beyond_the_limit_are_not_made() {
    let config = StreamsConfig { bytes_max: 5, ..StreamsConfig::default() };
    let streams = Streams::new(config, OTHER, Arc::new(SystemClock));
    announce(&streams);
    assert_eq!(streams.owner(KEY), None);
    assert_eq!(streams.on_chunk(KEY, 0, "a"), ChunkEffect::Nothing, "and not asked for");
}

proptest! {
    #[test]
    fn a_copy_comes_to_the_owners_text_whatever_the_bus_loses(
        steps in prop::collection::vec(("[aé🙂\"]{0,4}", any::<bool>(), any::<bool>()), 1..40),
        knows_entry in any::<bool>(),
    ) {
        let (here, there) = (owner(), node(OTHER));
        announce(&here);
        if knows_entry {
            announce(&there);
        }
        let mut received = String::new();
        let mut take = |there: &Streams, from_copy: u64| {
            while let Some((chunk, _)) = there.take_chunk(KEY) {
                let (offset, text) = read(&chunk.json);
                prop_assert_eq!(offset, received.len() as u64 + from_copy, "a session gets chunks without a gap");
                received.push_str(&text);
            }
            Ok(())
        };
        let mut copied_from = if knows_entry { Some(0) } else { None };
        for (text, is_lost, is_doubled) in steps {
            if append(&here, &text).is_none() {
                continue;
            }
            let (offset, text) = read(&here.take_chunk(KEY).unwrap().0.json);
            for _ in 0..1 + usize::from(is_doubled) {
                if !is_lost && there.on_chunk(KEY, offset, &text) == ChunkEffect::Ask {
                    let (conversation, body) = here.own_body(KEY).unwrap();
                    let _ = there.on_body(KEY.seq, &conversation, OWNER, &body);
                    copied_from.get_or_insert(GrowingBody::parse(&body).unwrap().text().len() as u64);
                }
            }
            take(&there, copied_from.unwrap_or(0))?;
        }
        // The owner tells the length of the text now and then.
        let (conversation, body) = here.own_body(KEY).unwrap();
        let length = GrowingBody::parse(&body).unwrap().text().len() as u64;
        if there.on_chunk(KEY, length, "") == ChunkEffect::Ask {
            let _ = there.on_body(KEY.seq, &conversation, OWNER, &body);
            take(&there, copied_from.unwrap_or(length))?;
        }
        let mut read_there = entry();
        there.overlay(KEY.conversation, &mut read_there);
        prop_assert_eq!(&*read_there.content.body, &*body);
    }
}
