//! Who takes part: users with their habits, devices and wishes, and the conversations that they are in. All of it follows from a seed.

use crate::offline_push::notice::OfflineChannel;
use rand::{RngExt, SeedableRng, rngs::StdRng, seq::SliceRandom};
use std::collections::{HashMap, HashSet};

/// Where a user is when a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Whereabouts {
    /// Somebody looks at the session.
    Foreground,
    /// There is a session, and nobody looks.
    Background,
    /// There is no session.
    Away,
}

/// Whether a client says what it has stored.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum AckHabit {
    /// Soon after each message.
    #[default]
    Stores,
    /// Never, as a client that keeps no messages.
    Silent,
    /// Once, and then no more, as an app that the system has stopped while its socket lives on.
    Freezes,
}

#[derive(Debug, Clone)]
pub(crate) struct Participant {
    pub(crate) id: String,
    pub(crate) whereabouts: Whereabouts,
    pub(crate) habit: AckHabit,
    /// Each device's provider; its name is [`device_name`] of its place.
    pub(crate) devices: Vec<OfflineChannel>,
    /// The user's do-not-disturb window covers the run.
    pub(crate) undisturbed: bool,
    /// Changes attention while messages are under way.
    pub(crate) restless: bool,
    /// Reads over HTTP, as on another device, while messages are under way.
    pub(crate) reads: bool,
}

#[derive(Debug, Clone)]
pub(crate) struct ParticipantConversation {
    pub(crate) id: String,
    pub(crate) is_group: bool,
    /// By their numbers in the participants.
    pub(crate) members: Vec<usize>,
    pub(crate) muted_by: HashSet<usize>,
}

#[derive(Debug)]
pub(crate) struct Participants {
    pub(crate) users: Vec<Participant>,
    pub(crate) conversations: Vec<ParticipantConversation>,
    user_numbers: HashMap<String, usize>,
    conversation_numbers: HashMap<String, usize>,
}

/// How many there are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ParticipantCounts {
    pub(crate) users: usize,
    pub(crate) group_size: usize,
}

/// Of a hundred users, or memberships, so many.
const FREEZES_PERCENT: u32 = 4;
const SILENT_PERCENT: u32 = 20;
const UNDISTURBED_PERCENT: u32 = 5;
const MUTED_PERCENT: u32 = 10;
const RESTLESS_PERCENT: u32 = 4;
const READS_PERCENT: u32 = 10;

/// The name of a user's device that a provider reaches.
pub(crate) fn device_name(place: usize) -> String {
    format!("phone-{place}")
}

impl Participants {
    pub(crate) fn draw(tag: &str, size: ParticipantCounts, random: &mut StdRng) -> Participants {
        let mut places: Vec<usize> = (0..size.users).collect();
        places.shuffle(random);
        let mut users: Vec<Participant> =
            (0..size.users).map(|number| user(tag, number, places[number], random)).collect();
        // Small participants have one of each, too.
        let foreground: Vec<usize> =
            (0..users.len()).filter(|number| users[*number].whereabouts == Whereabouts::Foreground).collect();
        for (number, habit) in foreground.iter().zip([AckHabit::Stores, AckHabit::Freezes, AckHabit::Silent]) {
            (users[*number].habit, users[*number].restless) = (habit, false);
        }
        let mut conversations = Vec::new();
        let mut everybody: Vec<usize> = (0..size.users).collect();
        everybody.shuffle(random);
        for (number, members) in everybody.chunks(size.group_size).filter(|members| members.len() > 1).enumerate() {
            conversations.push(conversation(format!("{tag}-group-{number}"), true, members, random));
        }
        // Pairs of users who are neighbours in another order.
        everybody.shuffle(random);
        for pair in everybody.as_chunks::<2>().0 {
            let [first, second] = pair.map(|number| users[number].id.as_str());
            let id = tidings_protocol::ids::direct_id(first, second);
            conversations.push(conversation(id, false, pair, random));
        }
        let user_numbers = users.iter().enumerate().map(|(number, user)| (user.id.clone(), number)).collect();
        let by_id = |(number, one): (usize, &ParticipantConversation)| (one.id.clone(), number);
        let conversation_numbers = conversations.iter().enumerate().map(by_id).collect();
        Participants { users, conversations, user_numbers, conversation_numbers }
    }

    pub(crate) fn user_number(&self, id: &str) -> Option<usize> {
        self.user_numbers.get(id).copied()
    }

    pub(crate) fn conversation_number(&self, id: &str) -> Option<usize> {
        self.conversation_numbers.get(id).copied()
    }

    pub(crate) fn count(&self, whereabouts: Whereabouts) -> usize {
        self.users.iter().filter(|user| user.whereabouts == whereabouts).count()
    }
}

fn user(tag: &str, number: usize, place: usize, random: &mut StdRng) -> Participant {
    let whereabouts = [Whereabouts::Foreground, Whereabouts::Background, Whereabouts::Away][place % 3];
    let mut one_in = |percent: u32| random.random_ratio(percent, 100);
    let habit = match (one_in(FREEZES_PERCENT), one_in(SILENT_PERCENT)) {
        // One that is in the background is notified anyway.
        (true, _) if whereabouts == Whereabouts::Foreground => AckHabit::Freezes,
        (_, true) => AckHabit::Silent,
        _ => AckHabit::Stores,
    };
    let (undisturbed, reads) = (one_in(UNDISTURBED_PERCENT), one_in(READS_PERCENT));
    // A frozen app changes nothing.
    let restless = one_in(RESTLESS_PERCENT) && habit != AckHabit::Freezes && whereabouts != Whereabouts::Away;
    // Some have no device, most one, some two: of the same provider or of another.
    let count = [0, 0, 1, 1, 1, 1, 2][random.random_range(0..7)];
    let provider =
        |random: &mut StdRng| OfflineChannel::PROVIDERS[random.random_range(0..OfflineChannel::PROVIDERS.len())];
    let devices = (0..count).map(|_| provider(random)).collect();
    Participant { id: format!("{tag}-u{number}"), whereabouts, habit, devices, undisturbed, restless, reads }
}

fn conversation(id: String, is_group: bool, members: &[usize], random: &mut StdRng) -> ParticipantConversation {
    let muted_by = members.iter().copied().filter(|_| random.random_ratio(MUTED_PERCENT, 100)).collect();
    ParticipantConversation { id, is_group, members: members.to_vec(), muted_by }
}

/// A message of the run, before it is sent.
#[derive(Debug, Clone)]
pub(crate) struct PlannedMessage {
    /// When it is due, from the begin of the round on, in nanoseconds.
    pub(crate) due_ns: u64,
    pub(crate) conversation: usize,
    pub(crate) sender: usize,
    pub(crate) silent: bool,
    pub(crate) skip_push: bool,
    pub(crate) mentions: Option<usize>,
}

const SILENT_MESSAGES_PERCENT: u32 = 5;
const SKIP_PUSH_PERCENT: u32 = 5;
const MENTIONS_PERCENT: u32 = 10;

impl Participants {
    /// The messages of a round: half to groups, half to pairs, evenly spaced.
    pub(crate) fn plan(&self, per_second: f64, seconds: f64, random: &mut StdRng) -> Vec<PlannedMessage> {
        let (groups, pairs): (Vec<usize>, Vec<usize>) =
            (0..self.conversations.len()).partition(|number| self.conversations[*number].is_group);
        (0..(per_second * seconds).round() as u64)
            .map(|number| {
                let kind = if number % 2 == 0 && !groups.is_empty() { &groups } else { &pairs };
                let conversation = kind[random.random_range(0..kind.len())];
                let members = &self.conversations[conversation].members;
                let sender = members[random.random_range(0..members.len())];
                let mentioned = members[random.random_range(0..members.len())];
                let mut one_in = |percent| random.random_ratio(percent, 100);
                PlannedMessage {
                    due_ns: (number as f64 / per_second * 1e9) as u64,
                    conversation,
                    sender,
                    silent: one_in(SILENT_MESSAGES_PERCENT),
                    skip_push: one_in(SKIP_PUSH_PERCENT),
                    mentions: one_in(MENTIONS_PERCENT).then_some(mentioned).filter(|user| *user != sender),
                }
            })
            .collect()
    }
}

/// A generator of random numbers that a seed determines.
pub(crate) fn random_of(seed: u64) -> StdRng {
    StdRng::seed_from_u64(seed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn participants_follow_from_its_seed_and_has_a_third_of_each() {
        let size = ParticipantCounts { users: 99, group_size: 20 };
        let draw = |seed| Participants::draw("t", size, &mut random_of(seed));
        let participants = draw(1);
        for whereabouts in [Whereabouts::Foreground, Whereabouts::Background, Whereabouts::Away] {
            assert_eq!(participants.count(whereabouts), 33);
        }
        assert_eq!(format!("{:?}", participants.users), format!("{:?}", draw(1).users));
        assert_ne!(format!("{:?}", participants.users), format!("{:?}", draw(2).users));
        assert_eq!(participants.conversations.iter().filter(|one| one.is_group).count(), 5);
        assert!(participants.users.iter().any(|user| user.habit == AckHabit::Freezes));
    }
}
