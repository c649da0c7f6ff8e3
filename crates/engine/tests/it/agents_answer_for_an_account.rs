//! Users write to an account; its agents read and answer as the account, whoever of them does; a removed agent gets nothing more.

use crate::support::*;
use std::sync::Arc;
use tidings_domain::model::*;
use tidings_engine::{
    config::EngineConfig,
    delivery::{Recipients, Step},
    lists::account_list::AccountList,
};
use tidings_protocol::{entry::EntryKind, error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;
use tokio::task::JoinSet;

/// The account `news`, followed by Ben and Cleo and answered for by Ann and Amy. Zoe does not follow it.
struct Office {
    world: World,
}

const ROOM: &str = "ben~news";

impl Office {
    fn open() -> Office {
        let config = EngineConfig { shards: 1, ..patient(EngineConfig::default()) };
        Office::of(World::new(config, Arc::new(MemoryStore::default())))
    }

    fn of(world: World) -> Office {
        world.users(&["olga", "ben", "cleo", "ann", "amy", "zoe"]);
        world.conversation(ConversationKind::Official, "news", &["olga", "ben", "cleo"]);
        let office = Office { world };
        office.change(UpdateDesk { add: vec!["ann".into(), "amy".into()], ..UpdateDesk::default() }).unwrap();
        office
    }

    fn change(&self, update: UpdateDesk) -> Result<Desk, ErrorCode> {
        let engine = &self.world.engine;
        self.world.wait(engine.update_desk(&Actor::App, "news", update)).map_err(|refusal| refusal.code)
    }

    fn actor(&self, user: &str) -> Actor {
        Actor::User(self.world.user(user))
    }

    fn say(&self, user: &str, conversation: &str, id: &str) -> Result<SendReceipt, ErrorCode> {
        let mut request = message(user, conversation, id);
        request.from = None;
        request.client_msg_id = Some(id.replace([' ', '?'], "-"));
        self.world.wait(self.world.engine.send(&self.actor(user), request)).map_err(|refusal| refusal.code)
    }

    fn assign(&self, by: &str, to: Option<&str>, expected: Option<Option<&str>>) -> Result<(), ErrorCode> {
        let assign = Assign {
            assigned_to: to.map(str::to_owned),
            if_assigned_to: expected.map(|expected| expected.map(str::to_owned)),
        };
        let assigned = self.world.wait(self.world.engine.assign(&self.actor(by), ROOM, assign));
        assigned.map(drop).map_err(|refusal| refusal.code)
    }

    fn history(&self, user: &str) -> Vec<(EntryKind, Option<String>, Option<String>, String)> {
        let page = self.world.engine.history(&self.actor(user), ROOM, &HistoryQuery::default()).unwrap();
        page.entries.into_iter().map(|e| (e.kind, e.from, e.agent, e.body.get().to_owned())).collect()
    }

    /// The ids of the account's conversations that an agent lists, each with who has it and how much is unread.
    fn list(
        &self,
        agent: &str,
        assigned_to: Option<&str>,
        filter: Option<ListFilter>,
    ) -> Vec<(String, Option<String>, u64)> {
        let (mut lines, mut after) = (Vec::new(), None::<String>);
        loop {
            let list = AccountList { account: "news".into(), assigned_to: assigned_to.map(str::to_owned) };
            let actor = self.actor(agent);
            let page = self.world.engine.account_conversations(&actor, &list, filter, after.as_deref(), 2).unwrap();
            lines.extend(page.conversations.into_iter().map(|view| (view.id, view.assigned_to, view.unread)));
            match page.next {
                Some(next) => after = Some(next),
                None => return lines,
            }
        }
    }

    /// The users to whom entries of Ben's conversation went live since the last call, with the entries' JSON.
    fn handed_out(&self) -> Vec<(Vec<String>, String)> {
        let names = ["olga", "ben", "cleo", "ann", "amy", "zoe", "news"].map(|id| (self.world.user(id).no, id));
        let name = |no: &UserNo| names.iter().find(|(other, _)| other == no).unwrap().1.to_owned();
        let room = self.world.engine.directory.require_conversation(ROOM).unwrap().no;
        let newest = self.world.engine.store.head(room).unwrap().last_position;
        let (mut handed, mut through) = (Vec::new(), 0);
        while through < newest {
            let fanout = self.world.receivers[0].lanes[Lane::Direct as usize].recv_timeout(PATIENCE).unwrap();
            through = fanout.through;
            for step in &fanout.steps {
                if let Step::Block { block, .. } = step {
                    let Recipients::Users(users) = &block.recipients else { panic!("{:?}", block.recipients) };
                    let mut users: Vec<_> = users.iter().map(name).collect();
                    users.sort();
                    handed.push((users, String::from_utf8_lossy(&block.json).into_owned()));
                }
            }
        }
        handed
    }
}

#[test]
fn a_client_has_one_conversation_whoever_answers() {
    let office = Office::open();
    let sent = office.say("ben", ROOM, "hello").unwrap();
    assert_eq!((sent.conversation.as_str(), sent.seq), (ROOM, 1));
    assert_eq!(office.say("ann", ROOM, "good day").unwrap().seq, 2);
    assert_eq!(office.say("amy", ROOM, "good day").unwrap().seq, 3, "ids of agents are their own");
    assert!(office.say("ann", ROOM, "good day").unwrap().duplicate);
    let seen =
        |user: &str| -> Vec<_> { office.history(user).into_iter().map(|(_, from, agent, _)| (from, agent)).collect() };
    let of = |from: &str, agent: Option<&str>| (Some(from.to_owned()), agent.map(str::to_owned));
    let inside = [of("ben", None), of("news", Some("ann")), of("news", Some("amy"))];
    assert_eq!(seen("ann"), inside);
    assert_eq!(seen("amy"), inside);
    assert_eq!(seen("ben"), [of("ben", None), of("news", None), of("news", None)]);
    office.change(UpdateDesk { show_agents: Some(true), ..UpdateDesk::default() }).unwrap();
    assert_eq!(seen("ben"), inside);
    // What one agent has written another one may take back.
    let engine = &office.world.engine;
    office.world.wait(engine.recall_message(&office.actor("amy"), ROOM, 2, None, None)).unwrap();
    assert_eq!(office.history("ann").last().unwrap().2.as_deref(), Some("amy"));
}

#[test]
fn outsiders_learn_nothing() {
    let office = Office::open();
    office.say("ben", ROOM, "hello").unwrap();
    for stranger in ["cleo", "zoe", "olga"] {
        assert_eq!(office.say(stranger, ROOM, "me too"), Err(ErrorCode::NotFound), "{stranger}");
        let engine = &office.world.engine;
        let refused = engine.history(&office.actor(stranger), ROOM, &HistoryQuery::default()).unwrap_err();
        assert_eq!(refused.code, ErrorCode::NotFound);
        let list = AccountList { account: "news".into(), assigned_to: None };
        let refused = engine.account_conversations(&office.actor(stranger), &list, None, None, 0).unwrap_err();
        assert_eq!(refused.code, ErrorCode::Forbidden);
    }
    assert_eq!(office.assign("ben", Some("ann"), None), Err(ErrorCode::Forbidden));
    assert_eq!(office.say("zoe", "news~zoe", "hello"), Err(ErrorCode::Forbidden), "only followers begin");
    office.change(UpdateDesk { open_to: Some(OpenTo::Anyone), ..UpdateDesk::default() }).unwrap();
    assert_eq!(office.say("zoe", "news~zoe", "hello").unwrap().seq, 1);
    office.change(UpdateDesk { open_to: Some(OpenTo::Nobody), ..UpdateDesk::default() }).unwrap();
    assert_eq!(office.say("cleo", "cleo~news", "hello"), Err(ErrorCode::Forbidden));
    assert_eq!(office.say("ann", "cleo~news", "good day").unwrap().seq, 1, "an agent begins");
    assert_eq!(office.say("cleo", "cleo~news", "hello").unwrap().seq, 2);
}

#[test]
fn of_two_agents_who_take_a_conversation_one_gets_it() {
    let office = Office::open();
    office.say("ben", ROOM, "hello").unwrap();
    office.say("cleo", "cleo~news", "hello").unwrap();
    assert_eq!(office.assign("ann", Some("ann"), Some(None)), Ok(()));
    assert_eq!(office.assign("amy", Some("amy"), Some(None)), Err(ErrorCode::AssignmentConflict));
    assert_eq!(office.assign("ann", Some("ann"), Some(None)), Ok(()), "a retry");
    assert_eq!(office.assign("ann", Some("zoe"), None), Err(ErrorCode::InvalidField));
    let (ben, cleo) = ((ROOM.to_owned(), Some("ann".to_owned()), 1), ("cleo~news".to_owned(), None, 1));
    assert_eq!(office.list("amy", None, None), [ben.clone(), cleo.clone()]);
    assert_eq!(office.list("amy", Some("@me"), None), []);
    assert_eq!(office.list("ann", Some("@me"), None), std::slice::from_ref(&ben));
    assert_eq!(office.list("amy", Some("ann"), None), [ben]);
    assert_eq!(office.list("amy", Some("@nobody"), None), std::slice::from_ref(&cleo));
    let told = office.history("amy").pop().unwrap();
    assert_eq!(
        told,
        (EntryKind::Assignment, Some("news".into()), Some("ann".into()), r#"{"assigned_to":"ann"}"#.into())
    );
    assert_eq!(office.history("ben").pop().unwrap(), (EntryKind::Assignment, Some("news".into()), None, "{}".into()));
    // What one agent reads is read for all.
    office.world.wait(office.world.engine.mark_read(&office.world.user("amy"), ROOM, 1)).unwrap();
    assert_eq!(office.list("ann", None, Some(ListFilter::Unread)), [cleo]);
}

#[test]
fn entries_go_to_the_user_and_to_the_agents_of_the_moment() {
    let office = Office::open();
    office.say("ben", ROOM, "hello").unwrap();
    office.say("ann", ROOM, "good day").unwrap();
    let handed = office.handed_out();
    let to =
        |users: &[&str]| handed.iter().filter(|(to, _)| to == users).map(|(_, json)| json.as_str()).collect::<String>();
    assert!(to(&["amy", "ann", "news"]).contains(r#""agent":"ann""#), "{handed:?}");
    assert!(to(&["ben"]).contains("good day") && !to(&["ben"]).contains("ann"), "{handed:?}");
    office.change(UpdateDesk { remove: vec!["ann".into()], ..UpdateDesk::default() }).unwrap();
    office.say("ben", ROOM, "are you there?").unwrap();
    let handed = office.handed_out();
    assert!(handed.iter().any(|(to, json)| *to == ["amy", "news"] && json.contains("are you there?")), "{handed:?}");
    assert!(handed.iter().all(|(to, _)| !to.contains(&"ann".to_owned())), "{handed:?}");
    assert_eq!(office.say("ann", ROOM, "yes"), Err(ErrorCode::NotFound));
}

#[test]
fn a_bulk_send_reaches_its_followers_and_no_agent_until_one_answers() {
    let office = Office::open();
    let send = r#"{"account":"news","to":{"users":["ben","cleo"]},"message":{"body":"sale"}}"#;
    let (send, _) = office.world.engine.create_bulk_send(serde_json::from_str(send).unwrap()).unwrap();
    assert!(!office.world.wait(office.world.engine.work_on_bulk_sends()).unwrap(), "one round is enough");
    assert_eq!(office.world.engine.bulk_send(send.id).unwrap().sent, 2);
    let handed = office.handed_out();
    let sale: Vec<_> = handed.iter().filter(|(_, json)| json.contains("sale")).map(|(to, _)| to.clone()).collect();
    assert!(sale.contains(&vec!["ben".to_owned()]), "{handed:?}");
    assert!(sale.iter().all(|to| to.len() == 1), "{handed:?}");
    assert_eq!(office.list("ann", None, None), []);
    office.say("ben", ROOM, "how much?").unwrap();
    assert_eq!(office.list("ann", None, None), [(ROOM.to_owned(), None, 1)]);
    let bodies: Vec<_> = office.history("ann").into_iter().map(|(_, _, _, body)| body).collect();
    assert_eq!(bodies, [r#""sale""#, r#""how much?""#]);
}

#[test]
fn the_conversations_of_a_removed_agent_are_unassigned() {
    let office = Office::open();
    office.say("ben", ROOM, "hello").unwrap();
    office.say("cleo", "cleo~news", "hello").unwrap();
    office.assign("ann", Some("ann"), None).unwrap();
    office.change(UpdateDesk { remove: vec!["ann".into()], ..UpdateDesk::default() }).unwrap();
    // Told by an entry of its own; the worker that writes it needs no wake.
    while office.list("amy", Some("@nobody"), None).len() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(
        office.history("amy").pop().unwrap(),
        (EntryKind::Assignment, None, None, r#"{"assigned_to":null}"#.into())
    );
    let back = UpdateDesk { add: vec!["ann".into()], ..UpdateDesk::default() };
    while office.change(back.clone()) == Err(ErrorCode::NodeUnavailable) {
        std::thread::yield_now();
    }
    assert_eq!(office.list("ann", Some("@me"), None), []);
    assert_eq!(office.history("ann")[0].1.as_deref(), Some("ben"), "an agent reads what was before");
}

#[test]
fn an_agent_resumes_in_all_conversations_of_the_account() {
    let office = Office::open();
    office.say("ben", ROOM, "before").unwrap();
    let engine = &office.world.engine;
    let cursor = engine.sync(&office.world.user("ann"), None).unwrap().cursor;
    office.say("ben", ROOM, "after").unwrap();
    office.say("cleo", "cleo~news", "after").unwrap();
    office.say("amy", ROOM, "answer").unwrap();
    let missed = |user: &str| {
        let answer = engine.sync(&office.world.user(user), Some(&cursor)).unwrap();
        assert!(answer.resume.complete);
        let entry = |e: tidings_protocol::entry::Entry| (e.conversation, e.seq, e.agent);
        answer.entries.into_iter().map(entry).collect::<Vec<_>>()
    };
    let amy = || Some("amy".to_owned());
    let all = [(ROOM.to_owned(), 2, None), ("cleo~news".to_owned(), 1, None), (ROOM.to_owned(), 3, amy())];
    assert_eq!(missed("ann"), all);
    assert_eq!(missed("ben"), [(ROOM.to_owned(), 2, None), (ROOM.to_owned(), 3, None)]);
    assert_eq!(missed("zoe"), []);
}

#[test]
fn a_bulk_send_of_the_account_holds_no_conversation_up() {
    let config = EngineConfig { lane_queue: 4, ..patient(EngineConfig::default()) };
    let store = Arc::new(Troubled::on(Arc::new(MemoryStore::default())));
    let office = Office::of(World::new(config, store.clone()));
    office.say("ben", ROOM, "hello").unwrap();
    let gate = store.close_gate();
    // Sends to all followers wait at the store, until their lane has no room for a further one.
    let engine = office.world.engine.clone();
    let (refused, mut waiting) = office.world.wait(async {
        let mut sends = JoinSet::new();
        for n in 0..20 {
            let engine = engine.clone();
            let request = SendRequest { from: None, ..message("olga", "news", &format!("to-all-{n}")) };
            sends.spawn(async move { engine.send(&Actor::App, request).await });
        }
        (sends.join_next().await.unwrap().unwrap(), sends)
    });
    assert_eq!(refused.unwrap_err().code, ErrorCode::QueueFull);
    // The conversation's lane has room: the answer is taken now, and durable with the next commit.
    let (actor, of_agent) = (office.actor("ann"), engine.clone());
    let request = SendRequest { from: None, ..message("ann", ROOM, "answer") };
    let answer = office.world.spawn(async move { of_agent.send(&actor, request).await });
    drop(gate);
    assert_eq!(office.world.wait(answer).unwrap().unwrap().seq, 2);
    let taken = office.world.wait(async {
        let mut taken = 0;
        while let Some(sent) = waiting.join_next().await {
            taken += usize::from(sent.unwrap().is_ok());
        }
        taken
    });
    // Who had not tried yet when the gate opened may have found room, too.
    assert!((1..20).contains(&taken), "{taken} of 20 had room");
}
