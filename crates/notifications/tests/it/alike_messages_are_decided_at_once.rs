//! Messages that wait together are decided together: whoever is told, and what is said of it, is as if each had been decided by itself.
// Slow: left out by `make test-quick`.

use crate::provider_world::*;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tidings_domain::{
    chat_rows::channel_job_key,
    model::Actor,
    providers::{ProviderAnswer, Retry},
    store::{RowSpace, RowStore},
};
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

const MINUTE: Duration = Duration::from_secs(60);

impl World {
    async fn join(&self, user: &str) {
        let change = json!({ "add": [user] });
        self.engine.change_members(&Actor::App, "room", serde_json::from_value(change).unwrap()).await.unwrap();
    }

    fn outcome(&self, seq: u64, user: &str) -> NotificationOutcome {
        self.notifications.message_notifications("room", seq, user).unwrap().outcome
    }

    /// The next notifications: the `seq` that each token is told of.
    fn next_seqs(&self, count: usize) -> BTreeMap<String, u64> {
        (0..count).map(|_| next(&self.fcm)).map(|(token, shown)| (token, message_of(&shown))).collect()
    }
}

/// A store with a group of these members, each of whom has a phone.
async fn room_of(members: &[&str]) -> Arc<MemoryStore> {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(Setup { store: store.clone(), ..Setup::default() }).with_room(members).await;
    world.stop();
    store
}

/// An engine on this store that tells nobody of messages.
fn quiet(store: &Arc<MemoryStore>) -> World {
    world(Setup { store: store.clone(), has_providers: false, ..Setup::default() })
}

fn told<const N: usize>(seqs: [(&str, u64); N]) -> BTreeMap<String, u64> {
    seqs.into_iter().map(|(user, seq)| (user.to_owned(), seq)).collect()
}

/// The rows of Firebase that wait.
fn waiting_rows(store: &MemoryStore) -> usize {
    let number = PushProvider::Fcm as u64;
    let (from, to) = (channel_job_key(number, 0, 0), channel_job_key(number, u64::MAX, u64::MAX));
    store.rows(RowSpace::Chat, &from, &to, 1_000).unwrap().len()
}

async fn five_messages_wait(members: &[&str]) -> Arc<MemoryStore> {
    let store = room_of(members).await;
    let before = quiet(&store);
    for number in 1..=5 {
        before.say(&format!("message {number}")).await;
    }
    before.stop();
    store
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_is_told_of_the_newest_message_and_each_has_its_record() {
    let store = five_messages_wait(&["ada", "ben", "cleo"]).await;
    let world = world(Setup { store, webhook: Some(false), ..Setup::default() });
    assert_eq!(world.next_seqs(2), told([("ben", 5), ("cleo", 5)]));
    world.until_counted("accepted", 2).await;
    world.until_counted("superseded", 8).await;
    for user in ["ben", "cleo"] {
        world.until_reached(5, user, NotificationOutcome::Accepted).await;
        for seq in 1..=4 {
            let notifications = world.notifications.message_notifications("room", seq, user).unwrap();
            let by_provider = notifications.steps.iter().filter(|step| step.channel == Some(Channel::Fcm));
            let steps: Vec<_> = by_provider.map(|step| (step.outcome, step.device.as_deref())).collect();
            assert_eq!(steps, [(NotificationOutcome::Superseded, Some("phone"))], "{notifications:?}");
        }
    }
    for seq in 1..=5 {
        assert_eq!(world.outcome(seq, "ada"), NotificationOutcome::Sender);
        let steps = world.notifications.message_notifications("room", seq, "ada").unwrap().steps;
        assert!(steps.iter().all(|step| step.outcome == NotificationOutcome::Sender), "{steps:?}");
    }
    world.stop();
    assert_eq!((world.fcm.try_iter().count(), world.count("accepted"), world.count("superseded")), (0, 2, 8));
}

#[tokio::test(flavor = "multi_thread")]
async fn while_the_provider_is_away_one_row_waits_for_all_and_each_says_so() {
    let store = five_messages_wait(&["ada", "ben"]).await;
    let setup = Setup { store: store.clone(), is_away: true, backoff: MINUTE, ..Setup::default() };
    let away = world(setup);
    away.until_counted("retried", 1).await;
    for seq in 1..=5 {
        away.until_reached(seq, "ben", NotificationOutcome::Waiting).await;
    }
    assert_eq!(waiting_rows(&store), 1);
    away.clock.advance(MINUTE);
    away.until_counted("retried", 2).await;
    away.stop();
    assert_eq!(away.count("superseded"), 0);

    // What expires is kept for each message.
    let setup = Setup { store: store.clone(), is_away: true, backoff: MINUTE, ..Setup::default() };
    let late = world(setup);
    late.until_counted("retried", 1).await;
    late.clock.advance(Duration::from_secs(25 * 60 * 60));
    late.until_counted("dead_expired", 5).await;
    for seq in 1..=5 {
        late.until_reached(seq, "ben", NotificationOutcome::Expired).await;
    }
    let page = late.notifications.dead_letters(None, 100, &SelectDeadLetters::default()).unwrap();
    let seqs: BTreeSet<u64> = page.dead_letters.iter().map(seq_of).collect();
    assert_eq!(seqs, (1..=5).collect());
    late.stop();
    assert_eq!(waiting_rows(&store), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn when_the_newest_is_recalled_the_device_is_told_of_the_one_before() {
    let store = five_messages_wait(&["ada", "ben", "cleo"]).await;
    let setup = Setup { store, answers: vec![later(), later()], backoff: MINUTE, ..Setup::default() };
    let world = world(setup);
    assert_eq!(world.next_seqs(2), told([("ben", 5), ("cleo", 5)]));
    world.until_counted("retried", 2).await;
    world.engine.recall_message(&Actor::App, "room", 5, None, None).await.unwrap();
    world.engine.recall_message(&Actor::App, "room", 4, None, None).await.unwrap();
    world.clock.advance(MINUTE);
    assert_eq!(world.next_seqs(2), told([("ben", 3), ("cleo", 3)]));
    world.until_counted("accepted", 2).await;
    world.until_counted("superseded", 4).await;
    world.until_counted("obsolete", 4).await;
    world.until_reached(3, "ben", NotificationOutcome::Accepted).await;
    for (seq, outcome) in
        [(1, NotificationOutcome::Superseded), (2, NotificationOutcome::Superseded), (5, NotificationOutcome::Recalled)]
    {
        assert_eq!(world.outcome(seq, "ben"), outcome, "{seq}");
    }
    world.stop();
    assert_eq!(world.fcm.try_iter().count(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_one_device_is_refused_for_is_not_the_fault_of_older_messages() {
    let refused = ProviderAnswer::Refused { code: "400 too large".into(), retry: Retry::Never };
    let store = five_messages_wait(&["ada", "ben"]).await;
    let world = world(Setup { store: store.clone(), answers: vec![refused], ..Setup::default() });
    assert_eq!(world.next_seqs(1), told([("ben", 5)]));
    assert_eq!(world.next_seqs(1), told([("ben", 4)]));
    world.until_counted("accepted", 1).await;
    world.until_counted("superseded", 3).await;
    world.until_reached(4, "ben", NotificationOutcome::Accepted).await;
    assert_eq!(world.outcome(5, "ben"), NotificationOutcome::Refused);
    assert_eq!((1..=3).map(|seq| world.outcome(seq, "ben")).collect::<BTreeSet<_>>().len(), 1);
    assert_eq!(world.outcome(1, "ben"), NotificationOutcome::Superseded);
    world.stop();
    assert_eq!((world.count("dead_refused"), world.fcm.try_iter().count(), waiting_rows(&store)), (1, 0, 0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_that_is_gone_ends_all_of_its_messages() {
    let gone = ProviderAnswer::TokenGone { since: None };
    let store = five_messages_wait(&["ada", "ben"]).await;
    let world = world(Setup { store: store.clone(), answers: vec![gone], ..Setup::default() });
    world.until_counted("token_gone", 1).await;
    world.until_counted("obsolete", 4).await;
    for seq in 1..=4 {
        world.until_reached(seq, "ben", NotificationOutcome::NoDevice).await;
    }
    world.stop();
    assert_eq!((world.fcm.try_iter().count(), waiting_rows(&store)), (1, 0));
}

/// What the members of a random history are to be told of, by a model that looks at each message by itself.
#[derive(Default)]
struct Model {
    /// The sender, the type and the mentioned users of each message, by `seq`.
    messages: BTreeMap<u64, (&'static str, &'static str, Vec<&'static str>)>,
    recalled: BTreeSet<u64>,
    /// The `seq` at which each member joined, and through which the member has read.
    members: BTreeMap<&'static str, (u64, u64)>,
    muted: BTreeSet<&'static str>,
    only_mentions: BTreeSet<&'static str>,
}

impl Model {
    /// Why the member is not to be told; `None`: the member is.
    fn why_not(&self, seq: u64, user: &str) -> Option<NotificationOutcome> {
        let (sender, _, mentions) = &self.messages[&seq];
        let (joined, read) = self.members[user];
        let is_mentioned = mentions.contains(&user) || mentions.contains(&"@all");
        let causes = [
            (self.recalled.contains(&seq), NotificationOutcome::Recalled),
            (*sender == user, NotificationOutcome::Sender),
            (joined >= seq, NotificationOutcome::JoinedLater),
            (read >= seq, NotificationOutcome::Read),
            (self.muted.contains(user), NotificationOutcome::Muted),
            (self.only_mentions.contains(user) && !is_mentioned, NotificationOutcome::OnlyMentions),
        ];
        causes.into_iter().find(|(holds, _)| *holds).map(|(_, outcome)| outcome)
    }

    fn told(&self, user: &str) -> Vec<u64> {
        self.messages.keys().copied().filter(|seq| self.why_not(*seq, user).is_none()).collect()
    }
}

const USERS: [&str; 7] = ["ada", "ben", "cleo", "dan", "eve", "fay", "gus"];

/// A random history in a store, which nobody was told of, and what they are to be told of.
async fn random_history(seed: u64) -> (Arc<MemoryStore>, Model) {
    let mut random = StdRng::seed_from_u64(seed);
    let store = room_of(&USERS[..4]).await;
    let world = quiet(&store);
    let upserts = USERS[4..].iter().map(|id| UserUpsert { id: (*id).into(), ..UserUpsert::default() }).collect();
    world.engine.upsert_users(upserts).await.unwrap();
    let mut model = Model { members: USERS[..4].iter().map(|user| (*user, (0, 0))).collect(), ..Model::default() };
    let mut last = 0;
    // Most histories have one writer and little else, as most busy groups have for some milliseconds.
    let (writers, busy) = (random.random_range(1..=3), random.random_range(0..=3));
    for _ in 0..random.random_range(5..60) {
        let members: Vec<&str> = model.members.keys().copied().collect();
        let user = *members.choose(&mut random).unwrap();
        match random.random_range(0..20) {
            0 if busy > 0 && last > 0 => {
                let seq = random.random_range(1..=last);
                world.engine.mark_read(&world.user(user), "room", seq).await.unwrap();
                let (_, read) = model.members.get_mut(user).unwrap();
                *read = seq.max(*read);
            }
            1 if busy > 1 && members.len() < USERS.len() => {
                let joins = USERS[members.len()];
                world.join(joins).await;
                // The notice of it has a number, too.
                last += 1;
                model.members.insert(joins, (last, 0));
            }
            2 if busy > 1 && last > 0 => {
                let seq = random.random_range(1..=last);
                if model.messages.contains_key(&seq) && model.recalled.insert(seq) {
                    world.engine.recall_message(&Actor::App, "room", seq, None, None).await.unwrap();
                    last += 1;
                }
            }
            3 if busy > 2 => {
                world.engine.set_mute(&world.user(user), "room", Mute { muted: true, until: None }).await.unwrap();
                model.muted.insert(user);
            }
            4 if busy > 2 => {
                let group = Some(KindPreferences { only_mentions: true, ..Default::default() });
                world
                    .notifications
                    .set_notification_preferences(user, NotificationPreferences { group, ..Default::default() })
                    .await
                    .unwrap();
                model.only_mentions.insert(user);
            }
            _ => {
                let from = USERS[random.random_range(0..writers)];
                let content_type = *["text", "text", "text", "image"].choose(&mut random).unwrap();
                let mentions = match random.random_range(0..12) {
                    0 if busy > 0 => vec![*members.choose(&mut random).unwrap()],
                    1 if busy > 0 => vec!["@all"],
                    _ => vec![],
                };
                let body = json!({ "text": "hi" });
                world
                    .send(json!({ "conversation": "room", "from": from, "type": content_type, "body": body, "mentions": mentions }))
                    .await;
                last += 1;
                model.messages.insert(last, (from, content_type, mentions));
            }
        }
    }
    world.stop();
    (store, model)
}

/// The users whom the webhook is told of each message for, until there are so many.
fn by_webhook(world: &World, count: usize) -> BTreeSet<(u64, String)> {
    let mut told = BTreeSet::new();
    while told.len() < count {
        let delivery = world.webhook.recv_timeout(PATIENCE).expect("a call of the webhook");
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        for event in body["events"].as_array().unwrap() {
            for user in event["recipients"].as_array().unwrap() {
                let one = (event["entry"]["seq"].as_u64().unwrap(), user.as_str().unwrap().to_owned());
                assert!(told.insert(one.clone()), "{one:?} twice");
            }
        }
    }
    told
}

#[tokio::test(flavor = "multi_thread")]
async fn random_histories_are_decided_as_a_slow_model_says() {
    let first: u64 = std::env::var("FIRST_SEED").map_or(1, |seed| seed.parse().unwrap());
    for seed in first..first + 60 {
        let (store, model) = random_history(seed).await;
        let world = world(Setup { store: store.clone(), webhook: Some(false), ..Setup::default() });
        let due: BTreeSet<(u64, String)> = model
            .members
            .keys()
            .flat_map(|user| model.told(user).into_iter().map(|seq| (seq, (*user).to_owned())))
            .collect();
        assert_eq!(by_webhook(&world, due.len()), due, "seed {seed}");
        // The first four have a phone.
        let newest: BTreeMap<String, u64> =
            USERS[..4].iter().filter_map(|user| Some(((*user).to_owned(), *model.told(user).last()?))).collect();
        let mut shown = BTreeMap::new();
        while shown != newest {
            let (token, notification) = next(&world.fcm);
            let before = shown.insert(token, message_of(&notification));
            assert!(
                before.is_none_or(|before| before < message_of(&notification)),
                "seed {seed}: an older one came later"
            );
        }
        for user in model.members.keys() {
            for seq in model.messages.keys().filter(|seq| !model.recalled.contains(seq)) {
                // The webhook takes each; by providers a newer one may have been told in its place.
                let outcome = model.why_not(*seq, user).unwrap_or(NotificationOutcome::Accepted);
                world.until_reached(*seq, user, outcome).await;
            }
        }
        world.stop();
        assert_eq!(world.fcm.try_iter().count(), 0, "seed {seed}");
        assert_eq!(waiting_rows(&store), 0, "seed {seed}");
        assert!(world.webhook.try_iter().next().is_none(), "seed {seed}");
    }
}
