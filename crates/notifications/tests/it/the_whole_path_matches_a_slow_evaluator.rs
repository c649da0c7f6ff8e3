//! From a message to what providers and the webhook are asked, then to replays: random policies, which are replaced between the decision and
//! the time of a channel, and people who change their minds. A slow and obvious model says what must come of it. `NOTIFICATION_SEED` replays a run.

use crate::{
    provider_world::*,
    the_notification_policy_matches_a_slow_evaluator::{Facts, conditions_hold, decide, policy},
};
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};
use tidings_domain::{
    chat_rows::{channel_job_key, deferred_until, waiting_until},
    providers::{ProviderAnswer, Retry},
    store::{NotificationTable, RowSpace, RowStore, Store},
};
use tidings_notifications::QuietHours;
use tidings_popups::Precondition;
use tidings_protocol::http::*;
use tidings_testkit::MemoryStore;

const HOUR: Duration = Duration::from_secs(60 * 60);
const HOUR_MS: u64 = 60 * 60 * 1_000;
const PEOPLE: [&str; 4] = ["ben", "cleo", "dan", "eve"];

/// A person, as far as notifications go.
#[derive(Debug, Clone, Default)]
struct Person {
    plan: Option<&'static str>,
    is_muted: bool,
    only_mentions: bool,
    off: BTreeSet<PolicyChannel>,
    snooze_until: u64,
    has_read: bool,
}

impl Person {
    /// Whether the person may be notified by the channel at this time.
    fn wants(&self, channel: PolicyChannel, is_mentioned: bool, now_ms: u64) -> bool {
        self.snooze_until <= now_ms && self.wants_awake(channel, is_mentioned)
    }

    /// The same, but for a snooze.
    fn wants_awake(&self, channel: PolicyChannel, is_mentioned: bool) -> bool {
        let is_silent = self.has_read || self.is_muted;
        !is_silent && !self.off.contains(&channel) && (is_mentioned || !self.only_mentions)
    }
}

struct Message {
    content_type: &'static str,
    mentions: Vec<&'static str>,
}

impl Message {
    fn mentions(&self, user: &str) -> bool {
        self.mentions.contains(&user) || self.mentions.contains(&"@all")
    }

    fn facts(&self, user: &'static str, person: &Person, now_ms: u64) -> Facts {
        let unread = u64::from(!person.has_read && !person.is_muted);
        Facts {
            user,
            kind: "group",
            content_type: self.content_type,
            sender: Some("ada"),
            mentions: self.mentions.iter().map(|id| (*id).to_owned()).collect(),
            unread: Some(unread),
            unread_since: None,
            language: None,
            zone: None,
            attributes: person.plan.map_or(json!({}), |plan| json!({ "plan": plan })),
            now_ms,
        }
    }
}

/// A policy whose channels come at once or an hour later.
fn delayed_policy(random: &mut StdRng) -> Value {
    let mut policy = policy(random);
    for rule in policy["rules"].as_array_mut().unwrap() {
        for step in rule["channels"].as_array_mut().unwrap().iter_mut().filter(|step| step["channel"] != "session") {
            step["on_success"] = json!("continue");
            if random.random_bool(0.5) {
                step["after_s"] = json!(3_600);
            }
        }
    }
    policy
}

async fn put(world: &World, policy: &Value) {
    let (policies, text) = (world.notifications.policies.clone(), policy.to_string());
    let put = move || policies.put(text.as_bytes(), None, Precondition::None).unwrap();
    tokio::task::spawn_blocking(put).await.unwrap();
}

async fn store_wishes(world: &World, user: &str, person: &Person) {
    let group = Some(KindPreferences { only_mentions: person.only_mentions, ..Default::default() });
    let preferences = NotificationPreferences {
        off: person.off.iter().copied().collect(),
        group,
        snooze_until: Some(person.snooze_until).filter(|until| *until > 0),
        ..Default::default()
    };
    world.notifications.set_notification_preferences(user, preferences).await.unwrap();
}

/// Some people change their minds.
async fn change_minds(random: &mut StdRng, world: &World, people: &mut BTreeMap<&'static str, Person>, now_ms: u64) {
    for (user, person) in people {
        match random.random_range(0..8) {
            0 => {
                person.is_muted = !person.is_muted;
                let mute = Mute { muted: person.is_muted, until: None };
                world.engine.set_mute(&world.user(user), "room", mute).await.unwrap();
            }
            1 => {
                world.engine.mark_read(&world.user(user), "room", 1).await.unwrap();
                person.has_read = true;
            }
            2 | 3 => {
                person.only_mentions = random.random_bool(0.3);
                let channels = [PolicyChannel::Providers, PolicyChannel::Webhook];
                person.off = channels.into_iter().filter(|_| random.random_bool(0.2)).collect();
                person.snooze_until = *[0, 0, now_ms + HOUR_MS / 2, now_ms + 3 * HOUR_MS].choose(random).unwrap();
                store_wishes(world, user, person).await;
            }
            4 | 5 => {
                person.plan = Some(["gold", "free"].choose(random).unwrap());
                let attributes = Some(json!({ "plan": person.plan }));
                let upsert = UserUpsert { id: (*user).to_owned(), attributes, ..UserUpsert::default() };
                world.engine.upsert_users(vec![upsert]).await.unwrap();
            }
            _ => {}
        }
    }
}

/// Waits until everything through the newest message is decided, and no channel has anything to do before `now_ms` is over.
async fn settle(world: &World, store: &MemoryStore, now_ms: u64) {
    let rows = |(from, to): (Vec<u8>, Vec<u8>)| store.rows(RowSpace::Chat, &from, &to, 100).unwrap().len();
    let jobs = |number| rows((channel_job_key(number, 0, 0), channel_job_key(number, u64::MAX, u64::MAX)));
    let is_settled = || {
        world.has_decided_all()
            // What was deferred may wait once more, and what waits becomes a job.
            && rows(deferred_until(now_ms)) == 0
            && rows(waiting_until(now_ms)) == 0
            && jobs(PushProvider::Fcm as u64) == 0
            && jobs(WEBHOOK_NUMBER) == 0
            // Of events that are refused together the first is given up, and the others are tried by themselves.
            && store.stored_notifications(NotificationTable::Retries, None, 1).unwrap().is_empty()
    };
    let settled = async {
        while !is_settled() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, settled).await.expect("all is decided and tried");
}

/// The number of the webhook in the keys of jobs.
const WEBHOOK_NUMBER: u64 = 64;

type Attempts = BTreeSet<(PolicyChannel, String)>;

/// Whom providers and the webhook were asked to notify since the last call, each once; `known` are the webhook's events so far.
fn attempts(world: &World, known: &mut BTreeSet<u64>) -> Attempts {
    let mut found = Attempts::new();
    for shipment in world.fcm.try_iter() {
        let user = shipment.token.address().to_owned();
        assert!(found.insert((PolicyChannel::Providers, user.clone())), "{user} twice");
    }
    for delivery in world.webhook.try_iter() {
        let body: Value = serde_json::from_slice(&delivery.body).unwrap();
        for event in body["events"].as_array().unwrap() {
            if !known.insert(event["id"].as_u64().unwrap()) {
                continue;
            }
            for user in event["recipients"].as_array().unwrap() {
                let user = user.as_str().unwrap().to_owned();
                assert!(found.insert((PolicyChannel::Webhook, user.clone())), "{user} twice");
            }
        }
    }
    found
}

/// Whom providers and the webhook would notify of the message, now or later.
fn explained(world: &World, message: &Message) -> Attempts {
    let mut found = Attempts::new();
    for user in PEOPLE {
        let ask = json!({ "user": user, "conversation": "room", "from": "ada", "type": message.content_type,
            "mentions": message.mentions, "body": { "text": "hi" } });
        let explained = world.notifications.explain_notifications(&serde_json::from_value(ask).unwrap()).unwrap();
        let taken = explained.channels.iter().filter(|channel| channel.taken).map(|channel| channel.channel);
        found.extend(taken.map(|channel| (channel, user.to_owned())));
    }
    found
}

/// A channel that is planned for a person: the place of its rule and its own in the policy that decided.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Planned {
    user: &'static str,
    rule: usize,
    at: usize,
    channel: PolicyChannel,
}

/// A channel of a person that is due at a time, so long after its times began to count.
#[derive(Debug, Clone, Copy)]
struct Pending {
    planned: Planned,
    due: u64,
    delay: u64,
}

/// What is still to be done for a message under the policy that decided it.
struct Model<'a> {
    policy: &'a Value,
    message: &'a Message,
    /// Whether a snooze defers.
    defers: bool,
    pending: Vec<Pending>,
}

impl Model<'_> {
    /// What is planned when the message is decided.
    fn decide(&mut self, people: &BTreeMap<&'static str, Person>, now_ms: u64) {
        let rules = self.policy["rules"].as_array().unwrap();
        let all: BTreeSet<(PolicyChannel, bool)> =
            rules.iter().flat_map(channels).map(|(_, channel, later)| (channel, later)).collect();
        for (user, person) in people {
            let is_mentioned = self.message.mentions(user);
            // Who does not want any of the policy's channels at its time, as far as it is known now, is left out for good.
            let wants_some = all.iter().any(|(channel, is_later)| {
                let due = now_ms + u64::from(*is_later) * HOUR_MS;
                if self.defers {
                    person.wants_awake(*channel, is_mentioned)
                } else {
                    person.wants(*channel, is_mentioned, due)
                }
            });
            let rule = decide(self.policy, &self.message.facts(user, person, now_ms), 2).map(|(rule, _)| rule);
            let Some(rule) = rule.filter(|_| wants_some) else { continue };
            // A channel that is deferred takes those after it with it.
            let mut from = now_ms;
            for (at, channel, is_later) in channels(&rules[rule]) {
                if !matches!(channel, PolicyChannel::Providers | PolicyChannel::Webhook) {
                    continue;
                }
                let delay = u64::from(is_later) * HOUR_MS;
                let is_asleep = person.snooze_until > now_ms && person.wants_awake(channel, is_mentioned);
                if self.defers && !is_later && is_asleep {
                    from = from.max(person.snooze_until);
                }
                self.pending.push(Pending { planned: Planned { user, rule, at, channel }, due: from + delay, delay });
            }
        }
    }

    /// What is taken by each channel in the end, if nobody changes their mind.
    fn forecast(&self, people: &BTreeMap<&'static str, Person>) -> Vec<Planned> {
        let Model { policy, message, defers, ref pending } = *self;
        let mut future = Model { policy, message, defers, pending: pending.clone() };
        let mut taken = Vec::new();
        while let Some(now_ms) = future.pending.iter().map(|pending| pending.due).min() {
            taken.extend(future.take(people, now_ms));
        }
        taken
    }

    /// Which of them are taken by this time: the condition is of the policy that decided, the rest is as it is now.
    fn take(&mut self, people: &BTreeMap<&'static str, Person>, now_ms: u64) -> Vec<Planned> {
        let (due, later): (Vec<_>, Vec<_>) = self.pending.drain(..).partition(|pending| pending.due <= now_ms);
        self.pending = later;
        let mut taken = Vec::new();
        for Pending { planned, delay, .. } in due {
            let person = &people[planned.user];
            let step = &self.policy["rules"][planned.rule]["channels"][planned.at];
            let is_wanted = person.wants_awake(planned.channel, self.message.mentions(planned.user));
            if is_wanted && self.defers && person.snooze_until > now_ms {
                self.pending.push(Pending { planned, due: person.snooze_until + delay, delay });
            } else if is_wanted
                && person.snooze_until <= now_ms
                && conditions_hold(&self.message.facts(planned.user, person, now_ms), step, 2)
            {
                taken.push(planned);
            }
        }
        taken
    }
}

/// The channels of a rule but for the session, with their places, and whether they come later.
fn channels(rule: &Value) -> Vec<(usize, PolicyChannel, bool)> {
    let steps = rule["channels"].as_array().unwrap().iter().enumerate().skip(1);
    let channel = |step: &Value| serde_json::from_value(step["channel"].clone()).unwrap();
    steps.map(|(at, step)| (at, channel(step), step.get("after_s").is_some())).collect()
}

/// Those of the planned channels that may be taken once more at this time.
fn taken(
    planned: &[Planned],
    policy: &Value,
    message: &Message,
    people: &BTreeMap<&'static str, Person>,
    now_ms: u64,
) -> Vec<Planned> {
    let is_taken = |planned: &&Planned| {
        let person = &people[planned.user];
        let step = &policy["rules"][planned.rule]["channels"][planned.at];
        person.wants(planned.channel, message.mentions(planned.user), now_ms)
            && conditions_hold(&message.facts(planned.user, person, now_ms), step, 2)
    };
    planned.iter().filter(is_taken).copied().collect()
}

fn asked(taken: &[Planned]) -> Attempts {
    taken.iter().map(|planned| (planned.channel, planned.user.to_owned())).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn policies_and_people_may_change_at_any_time() {
    // The same ones each time, so that a change fails for what it does; another number tries others.
    let seed = std::env::var("NOTIFICATION_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(1);
    let mut counts = [0; 5];
    // At the last one the webhook refuses two events of one message together.
    for seed in (0..40_u64).map(|run| run.wrapping_add(seed)).chain([7_161_827_929_918_582_084]) {
        println!("NOTIFICATION_SEED={seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let defers = random.random_bool(0.5);
        let quiet_hours = if defers { QuietHours::DeferAll } else { QuietHours::DeferNone };
        let store: Arc<MemoryStore> = Arc::default();
        let never = || ProviderAnswer::Refused { code: "no".into(), retry: Retry::Never };
        let setup = Setup {
            store: store.clone(),
            answers: (0..100).map(|_| never()).collect(),
            webhook: Some(true),
            webhook_attempts_max: 1,
            webhook_backoff: Duration::ZERO,
            quiet_hours,
            ..Setup::default()
        };
        let members: Vec<&str> = ["ada"].into_iter().chain(PEOPLE).collect();
        let refusing = world(setup).with_room(&members).await;
        let mut people: BTreeMap<&'static str, Person> = PEOPLE.map(|user| (user, Person::default())).into();
        let message = Message {
            content_type: ["text", "order"].choose(&mut random).unwrap(),
            mentions: [vec![], vec!["ben"], vec!["@all"]].choose(&mut random).unwrap().clone(),
        };
        let first = delayed_policy(&mut random);
        put(&refusing, &first).await;
        for _ in 0..2 {
            change_minds(&mut random, &refusing, &mut people, NOON).await;
        }
        for (user, person) in people.iter_mut().filter(|_| defers) {
            person.snooze_until = *[0, NOON + HOUR_MS / 2, NOON + 3 * HOUR_MS].choose(&mut random).unwrap();
            store_wishes(&refusing, user, person).await;
        }
        // Nobody has read a message that was not sent.
        people.values_mut().for_each(|person| person.has_read = false);
        let (content_type, mentions) = (message.content_type, &message.mentions);
        let explained = explained(&refusing, &message);
        refusing
            .send(json!({ "conversation": "room", "from": "ada", "type": content_type, "body": { "text": "hi" },
                "mentions": mentions }))
            .await;
        settle(&refusing, &store, NOON).await;
        let mut model = Model { policy: &first, message: &message, defers, pending: Vec::new() };
        model.decide(&people, NOON);
        assert_eq!(
            explained,
            asked(&model.forecast(&people)),
            "explained: NOTIFICATION_SEED={seed} {first} {people:?}"
        );
        let planned = model.pending.len();
        let mut known = BTreeSet::new();
        let at_once = model.take(&people, NOON);
        let found = attempts(&refusing, &mut known);
        assert_eq!(found, asked(&at_once), "at once: NOTIFICATION_SEED={seed} {first} {people:?}");

        // Another policy, other wishes: what waits goes by the policy that decided it, and by the wishes of its time.
        put(&refusing, &delayed_policy(&mut random)).await;
        change_minds(&mut random, &refusing, &mut people, NOON).await;
        refusing.clock.advance(HOUR);
        settle(&refusing, &store, NOON + HOUR_MS).await;
        let an_hour_later = model.take(&people, NOON + HOUR_MS);
        let found = attempts(&refusing, &mut known);
        assert_eq!(found, asked(&an_hour_later), "later: NOTIFICATION_SEED={seed} {first} {people:?}");

        // Snoozes end, and some begin.
        change_minds(&mut random, &refusing, &mut people, NOON + HOUR_MS).await;
        refusing.clock.advance(HOUR * 5);
        settle(&refusing, &store, NOON + 6 * HOUR_MS).await;
        let at_last = model.take(&people, NOON + 6 * HOUR_MS);
        let found = attempts(&refusing, &mut known);
        assert_eq!(found, asked(&at_last), "at last: NOTIFICATION_SEED={seed} {first} {people:?}");

        // Whatever was refused is a dead letter, and is replayed by another engine; it also takes what is due by then.
        change_minds(&mut random, &refusing, &mut people, NOON + 6 * HOUR_MS).await;
        put(&refusing, &delayed_policy(&mut random)).await;
        refusing.stop();
        let now_ms = NOON + 8 * HOUR_MS;
        let setup = Setup { store: store.clone(), webhook: Some(false), quiet_hours, ..Setup::default() };
        let accepting = world(setup);
        accepting.clock.advance(HOUR * 8);
        accepting.replay(SelectDeadLetters::default()).await.unwrap();
        accepting.until_dead(0).await;
        settle(&accepting, &store, now_ms).await;
        let dead: Vec<Planned> = at_once.iter().chain(&an_hour_later).chain(&at_last).copied().collect();
        let of_providers: Vec<_> =
            dead.iter().filter(|dead| dead.channel == PolicyChannel::Providers).copied().collect();
        let mut expected = asked(&taken(&of_providers, &first, &message, &people, now_ms));
        // An event of the webhook does not say by which rule it was.
        let wants = |dead: &&Planned| people[dead.user].wants(dead.channel, message.mentions(dead.user), now_ms);
        expected.extend(asked(
            &dead
                .iter()
                .filter(|dead| dead.channel == PolicyChannel::Webhook)
                .filter(wants)
                .copied()
                .collect::<Vec<_>>(),
        ));
        expected.extend(asked(&model.take(&people, now_ms)));
        let found = attempts(&accepting, &mut BTreeSet::new());
        assert_eq!(found, expected, "replayed: NOTIFICATION_SEED={seed} {first} {people:?}");
        accepting.stop();
        for (count, more) in
            counts.iter_mut().zip([planned, at_once.len(), an_hour_later.len(), at_last.len(), expected.len()])
        {
            *count += more;
        }
    }
    println!(
        "planned {}; taken at once {}, an hour later {}, when snoozes have ended {}; replayed or taken then {}",
        counts[0], counts[1], counts[2], counts[3], counts[4]
    );
    // Some dozens of each usually: chance leaves none of these out.
    let [planned, at_once, later, at_last, replayed] = counts;
    assert!(planned > 2 && at_once + later + at_last > 2 && replayed > 2, "{counts:?}");
}
