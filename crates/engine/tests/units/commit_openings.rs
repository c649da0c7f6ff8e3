//! Unit tests of `src/commit/openings.rs`.

use super::*;
use crate::commit::Reply;
use tidings_domain::store::NewConversation;

fn entry(text: &str) -> NewEntry {
    NewEntry {
        kind: EntryKind::Message,
        sender: None,
        client_msg_id: None,
        content_type: "text".into(),
        body: text.into(),
        mentions: Vec::new(),
        silent: false,
        skip_push: false,
        details: None,
        request: EntryRequest::default(),
    }
}

fn conversation(no: u64, id: &str) -> Arc<Conversation> {
    Arc::new(Conversation {
        no: ConversationNo(no),
        id: id.into(),
        kind: ConversationKind::Direct,
        pair: Some((UserNo(1), UserNo(2))),
        name: None,
        avatar: None,
        attributes: None,
        created_at: 0,
        member_count: 2,
        settings: ConversationSettings::default(),
        blocks: PairBlocks::default(),
    })
}

fn opening(id: &str, text: &str) -> Proposal {
    let (kind, settings) = (ConversationKind::Direct, ConversationSettings::default());
    let (name, avatar, attributes, members) = (None, None, None, Vec::new());
    let new = NewConversation { id: id.into(), kind, pair: None, name, avatar, attributes, members, settings };
    Proposal::OpenDirect { new: Box::new(new), entry: entry(text) }
}

#[test]
fn an_opening_before_an_append_to_the_same_conversation_is_an_append() {
    let append = Proposal::Append { conversation: ConversationNo(7), entry: entry("2") };
    let mut proposals = [opening("ada~ben", "1"), append, opening("ada~cleo", "3")];
    let about = [conversation(0, "ada~ben"), conversation(7, "ada~ben"), conversation(0, "ada~cleo")];
    let nobody = || Reply::Session { shard: 0, session: 0, reference: None };
    let mut pending = about.map(|conversation| (Some(conversation), nobody(), None, None));
    follow_opened(&mut proposals, &mut pending);
    let Proposal::Append { conversation: ConversationNo(7), entry: follows } = &proposals[0] else {
        panic!("{:?}", proposals[0]);
    };
    assert_eq!(&*follows.body, "1");
    assert!(matches!(&proposals[2], Proposal::OpenDirect { .. }), "nobody knows that one yet");
    let known = pending.map(|(conversation, ..)| conversation.map_or(0, |conversation| conversation.no.0));
    assert_eq!(known, [7, 7, 0]);
}
