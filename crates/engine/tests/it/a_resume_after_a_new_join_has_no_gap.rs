//! A user who was removed, or left, and was added again while the user's client was away: the client has the conversation,
//! and gets, or is told the ranges of, every entry since its cursor that the user may read.

use crate::support::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::sync::Arc;
use tidings_domain::model::*;
use tidings_engine::config::EngineConfig;
use tidings_protocol::http::*;
use tidings_store::{EmbeddedOptions, EmbeddedStore};
use tidings_testkit::MemoryStore;

const HISTORIES: [HistoryVisibility; 3] = [HistoryVisibility::All, HistoryVisibility::Join, HistoryVisibility::Last(2)];

/// What bob's client should get of the room, kept as plainly as possible.
#[derive(Default)]
struct Model {
    last_seq: u64,
    is_member: bool,
    joined_seq: u64,
    cleared_seq: u64,
    /// The newest `seq` at the cursor.
    cursor_seq: u64,
    /// Whether bob has left since the cursor; of an account, which tells nobody, whether bob ever has.
    has_left: bool,
}

impl Model {
    /// The `seq`s that a resume hands or names.
    fn missed(&self, history: HistoryVisibility) -> Vec<u64> {
        if !self.is_member {
            return vec![];
        }
        let hidden = match history {
            HistoryVisibility::All => 0,
            HistoryVisibility::Join => self.joined_seq,
            HistoryVisibility::Last(count) => self.joined_seq.saturating_sub(count),
        };
        let hidden = if self.has_left { hidden } else { self.joined_seq };
        (self.cursor_seq.max(hidden).max(self.cleared_seq) + 1..=self.last_seq).collect()
    }
}

/// Runs a story of bob and a room: `m` a message, `l` bob leaves, `r` bob is removed, `j` bob is added, `c` bob clears,
/// `s` bob's client resumes.
fn run(world: &World, room: &str, kind: ConversationKind, history: HistoryVisibility, story: &str) {
    world.conversation(kind, room, &["ann", "bob"]);
    let update = UpdateConversation { history: Some(history), ..UpdateConversation::default() };
    world.wait(world.engine.update_conversation(&Actor::App, room, update)).unwrap();
    let bob = world.user("bob");
    let members = |actor: &Actor, add: &[&str], remove: &[&str]| {
        let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
        let change = ChangeMembers { add: ids(add), remove: ids(remove), role: None };
        world.wait(world.engine.change_members(actor, room, change)).unwrap();
    };
    let mut model = Model { last_seq: 1, is_member: true, cursor_seq: 1, ..Model::default() };
    let mut cursor = world.engine.sync(&bob, None).unwrap().cursor;
    // Changes of an account's members are told by no entry.
    let notices = u64::from(kind == ConversationKind::Group);
    for act in story.chars().chain(['s', 's']) {
        match act {
            'm' => {
                world
                    .wait(world.engine.send(&Actor::App, message("ann", room, &format!("{room}-{}", model.last_seq))))
                    .unwrap();
                model.last_seq += 1;
            }
            'l' | 'r' if model.is_member => {
                let by = if act == 'l' { Actor::User(bob.clone()) } else { Actor::App };
                members(&by, &[], &["bob"]);
                (model.is_member, model.has_left) = (false, true);
                model.last_seq += notices;
            }
            'j' if !model.is_member => {
                members(&Actor::App, &["bob"], &[]);
                (model.is_member, model.joined_seq) = (true, model.last_seq);
                model.last_seq += notices;
            }
            'c' if model.is_member => {
                let clear = UpdatePreferences { clear_to_seq: Some(model.last_seq), ..UpdatePreferences::default() };
                world.wait(world.engine.set_preferences(&bob, room, clear)).unwrap();
                model.cleared_seq = model.last_seq;
            }
            's' => {
                let answer = world.engine.sync(&bob, Some(&cursor)).unwrap();
                let of_room = answer.entries.iter().filter(|entry| entry.conversation == room).map(|entry| entry.seq);
                let ranges = answer.resume.ranges.iter().filter(|range| range.conversation == room);
                let mut got: Vec<u64> = of_room.chain(ranges.flat_map(|range| range.from_seq..=range.to_seq)).collect();
                got.sort_unstable();
                assert_eq!(got, model.missed(history), "{kind:?} {history:?} {story}");
                assert_eq!(answer.resume.complete, answer.resume.ranges.is_empty(), "{story}");
                (model.cursor_seq, cursor) = (model.last_seq, answer.cursor);
                model.has_left &= kind == ConversationKind::Official;
            }
            _ => {}
        }
        world.take_fanouts();
    }
}

fn all_stories(world: &World, stories: impl IntoIterator<Item = String>) {
    world.users(&["ann", "bob"]);
    let mut rooms = 0;
    for story in stories {
        for kind in [ConversationKind::Group, ConversationKind::Official] {
            for history in HISTORIES {
                rooms += 1;
                run(world, &format!("room{rooms}"), kind, history, &story);
            }
        }
    }
}

#[test]
fn whoever_was_added_again_misses_nothing_that_may_be_read() {
    let world = World::new(EngineConfig::default(), Arc::new(MemoryStore::default()));
    let stories = [
        "mmrj",
        "mmlj",
        "mmrmmjm",
        "rmmsjm",
        "mrmjmrmjm",
        "mcmrmjm",
        "mrmjmcm",
        "rmjmsmrmjm",
        "rsmmjmsm",
        "rjsmm",
        "mrm",
    ];
    all_stories(&world, stories.map(str::to_owned));
}

#[test]
fn random_joins_and_leaves_on_disk_leave_no_gap() {
    let folder = tempfile::tempdir().unwrap();
    let store = EmbeddedStore::open(EmbeddedOptions::new(folder.path())).unwrap();
    let world = World::new(EngineConfig::default(), Arc::new(store));
    let seed: u64 = std::env::var("TIDINGS_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or(29);
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let story = |_| (0..20).map(|_| *b"mmmmlrjjjcs".get(random.random_range(0..11)).unwrap_or(&b'm') as char).collect();
    all_stories(&world, (0..25).map(story).collect::<Vec<String>>());
}

#[test]
fn more_than_an_inbox_is_named_in_ranges_that_begin_before_the_new_join() {
    let world = World::new(EngineConfig::default(), Arc::new(MemoryStore::default()));
    world.users(&["ann", "bob"]);
    let story = ["m".repeat(500), "r".into(), "m".repeat(10), "j".into(), "m".repeat(500)].concat();
    run(&world, "room", ConversationKind::Group, HistoryVisibility::All, &story);
}
