//! A user's list: what the user sets for its conversations, which of them it shows, and what the user's other sessions learn.

use crate::support::*;
use std::sync::Arc;
use tidings_client::session::Session;
use tidings_domain::model::Actor;
use tidings_protocol::{
    error::ErrorCode,
    frames::{ClientFrame, ServerFrame},
    http::*,
};
use tidings_testkit::{LocalBus, MemoryStore};

/// Ada with a group `a`, `b` and `c` of all, in which one message was sent in turn.
fn server() -> Server {
    let server = Server::start();
    server.users(&["ada", "ben"]);
    for id in ["a", "b", "c"] {
        server.group(id, &["ada", "ben"]);
        server.say("ben", id, "one");
    }
    server
}

fn set(server: &Server, user: &str, conversation: &str, update: UpdatePreferences) -> ConversationView {
    let user = server.engine.directory.require_user(user).unwrap();
    let conversation = server.wait(server.engine.set_preferences(&user, conversation, update)).unwrap();
    server.engine.list_view(&user, &conversation).unwrap()
}

fn update() -> UpdatePreferences {
    UpdatePreferences::default()
}

fn page(server: &Server, filter: Option<ListFilter>, after: Option<&str>, limit: usize) -> ConversationPage {
    let user = server.engine.directory.require_user("ada").unwrap();
    server.engine.conversations(&user, filter, after, limit).unwrap()
}

/// The ids of ada's list, read two at a time.
fn listed(server: &Server, filter: Option<ListFilter>) -> String {
    let (mut ids, mut after) = (Vec::new(), None);
    loop {
        let page = page(server, filter, after.as_deref(), 2);
        ids.extend(page.conversations.into_iter().map(|view| view.id));
        after = page.next;
        if after.is_none() {
            return ids.join(" ");
        }
    }
}

fn view(server: &Server, id: &str) -> ConversationView {
    let user = server.engine.directory.require_user("ada").unwrap();
    let card = server.engine.directory.require_conversation(id).unwrap();
    server.engine.list_view(&user, &card).unwrap()
}

fn read(server: &Server, user: &str, conversation: &str, seq: u64) {
    let user = server.engine.directory.require_user(user).unwrap();
    server.wait(server.engine.mark_read(&user, conversation, seq)).unwrap();
}

/// The next line of the list that the session is sent.
#[track_caller]
fn line(session: &mut Session) -> ConversationView {
    loop {
        if let ServerFrame::Conversation { conversation } = any_next(session) {
            return *conversation;
        }
    }
}

#[test]
fn pinned_conversations_come_first_on_every_page() {
    let server = server();
    assert_eq!(listed(&server, None), "c b a");
    let pinned = set(&server, "ada", "a", UpdatePreferences { pinned: Some(true), ..update() });
    assert!(pinned.pinned_at.is_some());
    assert_eq!(listed(&server, None), "a c b");
    server.say("ben", "b", "two");
    assert_eq!(listed(&server, None), "a b c");
    set(&server, "ada", "c", UpdatePreferences { pinned: Some(true), ..update() });
    assert_eq!(listed(&server, None), "c a b", "of pinned ones the latest active first");
    set(&server, "ada", "a", UpdatePreferences { pinned: Some(false), ..update() });
    assert_eq!((listed(&server, None), view(&server, "a").pinned_at), ("c b a".into(), None));
}

#[test]
fn archived_conversations_have_a_list_of_their_own_and_hidden_ones_come_back_with_a_message() {
    let server = server();
    set(&server, "ada", "b", UpdatePreferences { archived: Some(true), ..update() });
    assert!(set(&server, "ada", "c", UpdatePreferences { hidden: Some(true), ..update() }).hidden);
    assert_eq!(listed(&server, None), "a");
    assert_eq!(listed(&server, Some(ListFilter::Archived)), "b");
    // What is no message brings nothing back.
    server.users(&["cleo"]);
    server.change_members("c", &["cleo"], &[]);
    assert_eq!(listed(&server, None), "a");
    server.say("ben", "b", "two");
    assert_eq!(listed(&server, None), "a", "an archived one stays apart");
    server.say("ben", "c", "two");
    assert_eq!((listed(&server, None), view(&server, "c").hidden), ("c a".into(), false));
    // Archived and hidden: still in the list of archived ones, and in no other.
    set(&server, "ada", "b", UpdatePreferences { hidden: Some(true), ..update() });
    assert_eq!((listed(&server, None), listed(&server, Some(ListFilter::Archived))), ("c a".into(), "b".into()));
    set(&server, "ada", "b", UpdatePreferences { archived: Some(false), ..update() });
    assert_eq!(listed(&server, None), "c a", "hidden");
    set(&server, "ada", "b", UpdatePreferences { hidden: Some(false), ..update() });
    assert_eq!(listed(&server, None), "c b a");
}

#[test]
fn filters_find_what_is_unread_and_what_mentions_the_user() {
    let server = server();
    for id in ["a", "b", "c"] {
        read(&server, "ada", id, 1);
    }
    assert_eq!(listed(&server, Some(ListFilter::Unread)), "");
    set(&server, "ada", "c", UpdatePreferences { marked_unread: Some(true), ..update() });
    server.say("ben", "a", "two");
    let mut mention = message_to("ben", "b", "@ada");
    mention.mentions = vec!["ada".into()];
    server.wait(server.engine.send(&Actor::App, mention)).unwrap();
    assert_eq!(listed(&server, Some(ListFilter::Unread)), "b a c");
    assert_eq!(listed(&server, Some(ListFilter::Mentions)), "b");
    read(&server, "ada", "c", 1);
    assert!(!view(&server, "c").marked_unread, "reading ends it");
    assert_eq!(listed(&server, Some(ListFilter::Unread)), "b a");
    // Many that do not pass lie before the one that does.
    for n in 0..30 {
        let id = format!("quiet-{n}");
        server.group(&id, &["ada", "ben"]);
        server.say("ada", &id, "mine");
    }
    assert_eq!(listed(&server, Some(ListFilter::Mentions)), "b");
}

#[test]
fn mentions_behind_a_capped_count_are_counted_and_found() {
    let server = server();
    let mention = |conversation, of: &str| {
        let mentions = vec![of.to_owned()];
        let request = SendRequest { mentions, ..message_to("ben", conversation, "look") };
        server.wait(server.engine.send(&Actor::App, request)).unwrap().seq
    };
    let flood = |conversation| {
        for _ in 0..3 {
            let batch = (0..400).map(|_| message_to("ben", conversation, "…")).collect();
            server.wait(server.engine.send_batch(&Actor::App, batch)).unwrap();
        }
    };
    let counted = |id| {
        let line = view(&server, id);
        (line.unread, line.unread_capped, line.mentions)
    };
    mention("a", "ada");
    flood("a");
    flood("b");
    assert_eq!((counted("a"), counted("b")), ((1_000, true, 1), (1_000, true, 0)));
    let last = mention("a", "ada");
    mention("a", "@all");
    mention("b", "ben");
    mention("c", "ada");
    assert_eq!((counted("a"), counted("b"), counted("c")), ((1_000, true, 3), (1_000, true, 0), (2, false, 1)));
    assert_eq!(listed(&server, Some(ListFilter::Mentions)), "c a");
    server.wait(server.engine.recall_message(&Actor::App, "a", last, None, None)).unwrap();
    assert_eq!(counted("a"), (1_000, true, 2));
    read(&server, "ada", "a", 2);
    assert_eq!(counted("a").2, 1);
}

#[test]
fn the_last_message_is_neither_a_notice_nor_recalled() {
    let server = server();
    let text = |view: &ConversationView| view.last_message.as_ref().map(text_of);
    server.say("ben", "a", "two");
    server.users(&["cleo"]);
    server.change_members("a", &["cleo"], &[]);
    let line = view(&server, "a");
    assert_eq!((text(&line).as_deref(), line.last_entry.as_ref().map(|entry| entry.seq)), (Some("two"), Some(3)));
    server.wait(server.engine.recall_message(&Actor::App, "a", 2, None, None)).unwrap();
    assert_eq!(text(&view(&server, "a")).as_deref(), Some("one"));
    // Farther back than the first look goes.
    for n in 0..40 {
        let update = UpdateConversation { name: Some(format!("{n}")), ..UpdateConversation::default() };
        server.wait(server.engine.update_conversation(&Actor::App, "a", update)).unwrap();
    }
    assert_eq!(text(&view(&server, "a")).as_deref(), Some("one"));
}

#[test]
fn cleared_entries_are_gone_from_history_counts_and_resumes_of_one_user() {
    let server = server();
    let seqs = |user: &str| -> Vec<u64> {
        let actor = Actor::User(server.engine.directory.require_user(user).unwrap());
        let page = server.engine.history(&actor, "a", &HistoryQuery::default()).unwrap();
        page.entries.iter().map(|entry| entry.seq).collect()
    };
    let entry = |seq| {
        let actor = Actor::User(server.engine.directory.require_user("ada").unwrap());
        server.engine.entry(&actor, "a", seq).map(|entry| entry.seq).map_err(|refusal| refusal.code)
    };
    let ada = server.engine.directory.require_user("ada").unwrap();
    let cursor = server.engine.sync(&ada, None).unwrap().cursor;
    for text in ["two", "three", "four"] {
        server.say("ben", "a", text);
    }
    let line = set(&server, "ada", "a", UpdatePreferences { clear_to_seq: Some(3), ..update() });
    assert_eq!((line.cleared_seq, line.unread, line.last_seq), (3, 1, 4));
    assert_eq!((seqs("ada"), seqs("ben")), (vec![4], vec![1, 2, 3, 4]));
    assert_eq!((entry(3), entry(4)), (Err(ErrorCode::NotFound), Ok(4)));
    let synced = server.engine.sync(&ada, Some(&cursor)).unwrap();
    assert!(synced.resume.complete);
    assert_eq!(synced.entries.iter().map(|entry| entry.seq).collect::<Vec<_>>(), [4]);
    let line = set(&server, "ada", "a", UpdatePreferences { clear_to_seq: Some(99), ..update() });
    assert_eq!((line.cleared_seq, line.unread, line.last_message, seqs("ada")), (4, 0, None, vec![]));
}

#[test]
fn members_read_from_before_their_joining_what_the_conversation_shows() {
    let server = Server::start();
    server.users(&["ada", "ben"]);
    server.group("g", &["ada"]);
    for n in 1..=5 {
        server.say("ada", "g", &n.to_string());
    }
    server.change_members("g", &["ben"], &[]);
    let first = |history: HistoryVisibility| {
        let update = UpdateConversation { history: Some(history), ..UpdateConversation::default() };
        let card = server.wait(server.engine.update_conversation(&Actor::App, "g", update)).unwrap();
        assert_eq!(card.history, history);
        let ben = Actor::User(server.engine.directory.require_user("ben").unwrap());
        let page = server.engine.history(&ben, "g", &HistoryQuery::default()).unwrap();
        let first = page.entries[0].seq;
        assert_eq!(page.conversation_first_seq, first);
        let below = HistoryQuery { from_seq: Some(1), ..HistoryQuery::default() };
        assert_eq!(server.engine.history(&ben, "g", &below).unwrap().entries[0].seq, first);
        for (seq, is_readable) in [(first - 1, false), (first, true)] {
            let found = [
                server.engine.entry(&ben, "g", seq).map(drop),
                server.engine.body_versions(&ben, "g", seq).map(drop),
                server.engine.message_receipts(&ben, "g", seq).map(drop),
            ];
            let is_found = |result: &Result<(), tidings_protocol::error::Refusal>| !matches!(result, Err(refusal) if refusal.code == ErrorCode::NotFound);
            assert!(seq == 0 || found.iter().all(|found| is_found(found) == is_readable), "{seq}: {found:?}");
        }
        first
    };
    assert_eq!(first(HistoryVisibility::All), 1);
    assert_eq!(first(HistoryVisibility::Join), 6);
    assert_eq!(first(HistoryVisibility::Last(2)), 4);
    assert_eq!(first(HistoryVisibility::Last(99)), 1);
}

#[test]
fn other_sessions_of_the_user_are_sent_the_changed_line() {
    let (memory, bus) = (Arc::new(MemoryStore::shared()), LocalBus::default());
    let nodes = ["a", "b"].map(|name| Server::node(name, &memory, &bus));
    let all_known = |server: &Server| server.engine.cluster.as_ref().unwrap().nodes.all().len() == 2;
    until("the nodes know each other", || nodes.iter().all(all_known));
    let [a, b] = &nodes;
    a.users(&["ada", "ben"]);
    let mut phone = a.open("ada", "phone");
    let mut laptop = b.open("ada", "laptop");
    let mut ben = b.open("ben", "phone");
    a.group("g", &["ada"]);
    for session in [&mut phone, &mut laptop] {
        assert_eq!((line(session).id, bound(session).user.as_str()), ("g".into(), "ada"), "she has joined");
    }
    let title = Some(Some("Mine".to_owned()));
    let update = UpdatePreferences { pinned: Some(true), title: title.clone(), ..update() };
    phone.write(&ClientFrame::Preferences { reference: Some(7), conversation: "g".into(), update }).unwrap();
    for session in [&mut phone, &mut laptop] {
        let line = line(session);
        assert_eq!((line.pinned_at.is_some(), Some(line.title)), (true, title.clone()));
    }
    let ada = b.engine.directory.require_user("ada").unwrap();
    b.wait(b.engine.set_mute(&ada, "g", Mute { muted: true, until: None })).unwrap();
    assert!([&mut phone, &mut laptop].into_iter().all(|session| line(session).muted));
    let card = UpdateConversation { name: Some("Gee".into()), ..UpdateConversation::default() };
    a.wait(a.engine.update_conversation(&Actor::App, "g", card)).unwrap();
    for session in [&mut phone, &mut laptop] {
        let line = line(session);
        assert_eq!((line.name.as_deref(), line.title.as_deref()), (Some("Gee"), Some("Mine")));
    }
    b.say("ada", "g", "hi");
    read(a, "ada", "g", 2);
    assert!([&mut phone, &mut laptop].into_iter().all(|session| line(session).read_seq == 2));
    // What has not changed is not sent, and others learn nothing.
    phone
        .write(&ClientFrame::Preferences { reference: Some(8), conversation: "g".into(), update: self::update() })
        .unwrap();
    let not_a_member =
        ClientFrame::Preferences { reference: Some(9), conversation: "g".into(), update: self::update() };
    ben.write(&not_a_member).unwrap();
    let (reference, code, _) = error(&mut ben);
    assert_eq!((reference, code), (Some(9), ErrorCode::NotAMember));
}

#[test]
fn the_list_over_websocket_takes_filters() {
    let server = server();
    let mut ada = server.open("ada", "phone");
    let update = UpdatePreferences { archived: Some(true), ..update() };
    ada.write(&ClientFrame::Preferences { reference: Some(1), conversation: "b".into(), update }).unwrap();
    while !matches!(next(&mut ada), ServerFrame::Ok { reference: 1 }) {}
    for (filter, expected) in [(None, "c a"), (Some(ListFilter::Archived), "b")] {
        let (reference, account, assigned_to) = (Some(2), None, None);
        let (conversation, search, after, limit) = (None, None, None, None);
        let ask =
            ClientFrame::Conversations { reference, conversation, search, filter, account, assigned_to, after, limit };
        ada.write(&ask).unwrap();
        let ids = loop {
            if let ServerFrame::Conversations { page, .. } = next(&mut ada) {
                break page.conversations.into_iter().map(|view| view.id).collect::<Vec<_>>().join(" ");
            }
        };
        assert_eq!(ids, expected);
    }
}

fn unread_total(server: &Server) -> UnreadTotal {
    let user = server.engine.directory.require_user("ada").unwrap();
    server.engine.unread_total(&user).unwrap()
}

fn read_all(server: &Server, user: &str) -> ReadAll {
    let user = server.engine.directory.require_user(user).unwrap();
    let unread = server.engine.unread_conversations(&user).unwrap();
    server.wait(server.engine.read_all(&user, unread)).unwrap()
}

fn mention(server: &Server, from: &str, conversation: &str) {
    let mentions = vec!["ada".into()];
    let request = SendRequest { mentions, ..message_to(from, conversation, "look") };
    server.wait(server.engine.send(&Actor::App, request)).unwrap();
}

#[test]
fn the_total_is_of_all_conversations_and_reading_all_ends_it() {
    let server = server();
    for n in 0..600 {
        let id = format!("many-{n}");
        server.group(&id, &["ada", "ben"]);
        server.say("ben", &id, "one");
    }
    mention(&server, "ben", "a");
    let muted = |server: &Server| {
        let user = server.engine.directory.require_user("ada").unwrap();
        server.wait(server.engine.set_mute(&user, "b", Mute { muted: true, until: None })).unwrap();
    };
    muted(&server);
    set(&server, "ada", "c", UpdatePreferences { archived: Some(true), ..update() });
    let total = unread_total(&server);
    let counts = (total.unread, total.mentions, total.conversations, total.lines.len(), total.capped);
    assert_eq!(counts, (602, 1, 602, 602, false), "without what is muted and archived");
    let line = |id: &str| total.lines.iter().find(|line| line.conversation == id).cloned();
    assert_eq!(line("b"), Some(UnreadLine { conversation: "b".into(), unread: 1, mentions: 0, muted: true }));
    let mut ada = server.open("ada", "phone");
    ada.write(&ClientFrame::Unread { reference: Some(3) }).unwrap();
    loop {
        if let ServerFrame::Unread { reference: Some(3), total: told } = next(&mut ada) {
            assert_eq!(told, total);
            break;
        }
    }
    set(&server, "ada", "a", UpdatePreferences { marked_unread: Some(true), ..update() });
    assert_eq!(read_all(&server, "ada"), ReadAll { marked: 500, more: true });
    assert_eq!(read_all(&server, "ada"), ReadAll { marked: 103, more: false });
    assert_eq!(unread_total(&server), UnreadTotal::default());
    assert_eq!((view(&server, "c").unread, view(&server, "a").marked_unread), (0, false), "archived ones, too");
    assert_eq!(read_all(&server, "ada"), ReadAll { marked: 0, more: false });
}

/// The total is the sum of the list's lines, whatever was done.
#[test]
fn the_total_is_the_sum_of_all_lines() {
    use rand::{RngExt, SeedableRng, rngs::SmallRng};
    for seed in 0..40 {
        let mut random = SmallRng::seed_from_u64(seed);
        let server = server();
        for _ in 0..40 {
            let id = ["a", "b", "c", "ada~ben"][random.random_range(0..4)];
            let is_on = random.random();
            match random.random_range(0..8) {
                0 | 1 => drop(server.say(if is_on { "ben" } else { "ada" }, id, "x")),
                2 => mention(&server, "ben", id),
                _ if server.engine.directory.conversation_by_id(id).unwrap().is_none() => {}
                3 => drop(set(&server, "ada", id, UpdatePreferences { archived: Some(is_on), ..update() })),
                4 => drop(set(&server, "ada", id, UpdatePreferences { hidden: Some(is_on), ..update() })),
                5 => drop(set(&server, "ada", id, UpdatePreferences { marked_unread: Some(is_on), ..update() })),
                6 => {
                    let user = server.engine.directory.require_user("ada").unwrap();
                    server.wait(server.engine.set_mute(&user, id, Mute { muted: is_on, until: None })).unwrap();
                }
                _ => {
                    let last = view(&server, id).last_seq;
                    read(&server, "ada", id, random.random_range(0..=last));
                }
            }
        }
        let lines = page(&server, None, None, 0).conversations;
        let expected = UnreadTotal {
            unread: lines.iter().filter(|line| !line.muted).map(|line| line.unread).sum(),
            mentions: lines.iter().map(|line| line.mentions).sum(),
            conversations: lines.iter().filter(|line| line.unread > 0 || line.marked_unread).count() as u64,
            ..UnreadTotal::default()
        };
        let total = UnreadTotal { lines: vec![], ..unread_total(&server) };
        assert_eq!(total, expected, "seed {seed}");
        while read_all(&server, "ada").more {}
        assert_eq!(unread_total(&server), UnreadTotal::default(), "seed {seed}");
    }
}

/// What a session's request for conversations is answered with.
#[track_caller]
fn asked(
    session: &mut Session,
    conversation: Option<&str>,
    search: Option<&str>,
) -> Result<ConversationPage, ErrorCode> {
    let [conversation, search] = [conversation, search].map(|text| text.map(str::to_owned));
    let (account, assigned_to, filter, after, limit) = (None, None, None, None, None);
    let reference = Some(4);
    let request =
        ClientFrame::Conversations { reference, conversation, search, account, assigned_to, filter, after, limit };
    session.write(&request).unwrap();
    loop {
        match next(session) {
            ServerFrame::Conversations { reference: Some(4), page } => return Ok(page),
            ServerFrame::Error { code, .. } => return Err(code),
            _ => {}
        }
    }
}

#[test]
fn one_conversation_and_those_with_a_name_are_found_wherever_they_stand() {
    let server = server();
    let names = r#"{"users":[{"id":"ben","name":"Ben Müller"},{"id":"ada","name":"Ada"}]}"#;
    assert_eq!(server.app().exchange("PUT", "/v1/users", names.as_bytes()).unwrap().status, 200);
    server.say("ben", "ada~ben", "hello");
    server.group("elsewhere", &["ben"]);
    set(
        &server,
        "ada",
        "a",
        UpdatePreferences { archived: Some(true), title: Some(Some("Neighbours".into())), ..update() },
    );
    set(&server, "ada", "b", UpdatePreferences { title: Some(Some("The NEIGHBOURS' dog".into())), ..update() });
    let mut ada = server.open("ada", "phone");
    let one = asked(&mut ada, Some("a"), None).unwrap();
    assert_eq!((one.conversations[0].id.as_str(), one.conversations[0].archived, one.next), ("a", true, None));
    assert_eq!(asked(&mut ada, Some("elsewhere"), None).unwrap_err(), ErrorCode::NotAMember);
    assert_eq!(asked(&mut ada, Some("nowhere"), None).unwrap_err(), ErrorCode::NotFound);
    let mut found = |search: &str| {
        let page = asked(&mut ada, None, Some(search)).unwrap();
        page.conversations.into_iter().map(|view| view.id).collect::<Vec<_>>().join(" ")
    };
    assert_eq!((found("neighbours"), found("müLLER"), found("ada~ben")), ("b".into(), "ada~ben".into(), String::new()));
    let ada = server.engine.directory.require_user("ada").unwrap();
    let archived = Some(ListFilter::Archived);
    assert_eq!(server.engine.search_conversations(&ada, "neigh", archived, None, 0).unwrap().conversations.len(), 1);
    let long = "x".repeat(129);
    let refused = server.engine.search_conversations(&ada, &long, None, None, 0).unwrap_err();
    assert_eq!(refused.code, ErrorCode::LimitExceeded);
    // The page has the names that it shows.
    let page = page(&server, None, None, 1);
    let names: Vec<_> = page.users.iter().map(|user| (user.id.as_str(), user.name.as_deref())).collect();
    assert_eq!(names, [("ada", Some("Ada")), ("ben", Some("Ben Müller"))]);
    let history = server.engine.history(&Actor::App, "ada~ben", &HistoryQuery::default()).unwrap();
    assert_eq!(history.users.len(), 1);
    let members = server.engine.members(&Actor::App, "b", None, 0).unwrap().members;
    assert_eq!(members[1].name.as_deref(), Some("Ben Müller"));
}
