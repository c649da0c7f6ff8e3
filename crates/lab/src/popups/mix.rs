//! What a home page asks: mostly for users of whom nothing is due, for some who are due, and a few events.
//!
//! Who is due follows from the answers alone: a user who was shown something may be asked for again when the gap between
//! popups is over, and one who was told `Retry-After` when that is over.

use super::{
    catalogue::{Catalogue, HOME},
    drive::Traffic,
    judge::{Tally, judge_shown, took_one_event},
    people::{People, mixed},
    wire::{Answer, Endpoint, put_number},
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Of twenty requests one is an event and five are for users who are due; spread, so that no burst forms.
const PATTERN: [Wish; 20] = {
    let (n, d, e) = (Wish::Early, Wish::Due, Wish::Event);
    [n, n, d, n, n, n, d, n, n, e, n, d, n, n, n, d, n, n, d, n]
};
/// A user whose gap ends sooner than this is left alone: who would be right could not be told.
const MARGIN_MS: u32 = 1000;
/// Clocks of both sides round to milliseconds.
const ROUNDING_MS: u32 = 2;
/// Decisions that events can be about.
const RECENT: usize = 8192;
const DECISION_BYTES_MAX: usize = 256;
/// Kinds of events in the order of their counts.
pub(crate) const KINDS: [&str; 3] = ["impression", "click", "dismiss"];

#[derive(Debug, Clone, Copy)]
enum Wish {
    Early,
    Due,
    Event,
}

/// What a connection asked for.
#[derive(Debug, Clone, Copy)]
enum Ticket {
    Nothing,
    Early { was: Was, sent_ms: u32 },
    Due { user: u32, asked_ms: u32 },
    Event { popup: u16, variant: u8, kind: u8 },
}

/// A user who was shown something between these times, in milliseconds since the run began.
#[derive(Debug, Clone, Copy)]
struct Was {
    user: u32,
    asked_ms: u32,
    answered_ms: u32,
}

struct Recent {
    bytes: [u8; DECISION_BYTES_MAX],
    length: usize,
    popup: u16,
    variant: u8,
}

/// Whom to ask for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Each user once, so that the server knows them all.
    Introduce,
    Mix,
    /// As `Mix`, of a server that knows nobody: all that is looked at is the status.
    Blind,
}

/// Shown and reported: per popup and variant what was shown, then each kind of event.
pub(crate) type Counts = [u64; 1 + KINDS.len()];

pub(crate) struct Mix<'a> {
    catalogue: &'a Catalogue,
    people: &'a People,
    decide: Endpoint,
    report: Endpoint,
    users: u32,
    gap_ms: u32,
    begin_ns: u64,
    pub(crate) phase: Phase,
    tickets: Vec<Ticket>,
    turn: usize,
    random: SmallRng,
    /// Users that were not asked for yet begin here.
    fresh: u32,
    /// In the order in which they were shown something, and so in which they are due again.
    shown: VecDeque<Was>,
    /// How many were taken from the front of `shown` before, so that a place has a number that stays.
    taken: u64,
    /// The first place whose gap does not end within the margin.
    unripe: u64,
    /// Told to come back at a time, in milliseconds since the run began.
    waiting: BinaryHeap<Reverse<(u32, u32)>>,
    recent: Vec<Recent>,
    recent_next: usize,
    event_tag: &'a str,
    event_number: u64,
    body: Vec<u8>,
    pub(crate) tally: Tally,
    /// By popup, then variant.
    pub(crate) counts: Vec<Vec<Counts>>,
}

pub(crate) struct MixSetting<'a> {
    pub(crate) catalogue: &'a Catalogue,
    pub(crate) people: &'a People,
    pub(crate) api_key: &'a str,
    pub(crate) users: u32,
    pub(crate) gap_s: u64,
    pub(crate) connections: usize,
    /// Event ids begin with this.
    pub(crate) tag: &'a str,
}

impl<'a> Mix<'a> {
    pub(crate) fn new(setting: &MixSetting<'a>, phase: Phase) -> Self {
        let mut mix = Mix {
            catalogue: setting.catalogue,
            people: setting.people,
            decide: Endpoint::post("/v1/popups/decide", setting.api_key),
            report: Endpoint::post("/v1/popup-events", setting.api_key),
            users: setting.users,
            gap_ms: (setting.gap_s * 1000) as u32,
            begin_ns: crate::process::monotonic_ns(),
            phase,
            tickets: vec![Ticket::Nothing; setting.connections],
            turn: 0,
            random: SmallRng::seed_from_u64(7),
            fresh: 0,
            shown: VecDeque::with_capacity(setting.users as usize + setting.connections),
            taken: 0,
            unripe: 0,
            waiting: BinaryHeap::new(),
            recent: Vec::with_capacity(RECENT),
            recent_next: 0,
            event_tag: setting.tag,
            event_number: 0,
            body: Vec::with_capacity(1024),
            tally: Tally::default(),
            counts: setting
                .catalogue
                .popups
                .iter()
                .map(|known| vec![Counts::default(); known.variants.len()])
                .collect(),
        };
        if phase == Phase::Blind {
            // As long as a decision's id.
            mix.remember(&[b'x'; 64], 0, 0);
        }
        mix
    }

    fn ms(&self, now_ns: u64) -> u32 {
        (now_ns.saturating_sub(self.begin_ns) / 1_000_000) as u32
    }

    /// A user who is due now.
    fn take_due(&mut self, now_ms: u32) -> Option<u32> {
        if let Some(was) = self.shown.front()
            && was.answered_ms + self.gap_ms + ROUNDING_MS <= now_ms
        {
            self.taken += 1;
            self.unripe = self.unripe.max(self.taken);
            return self.shown.pop_front().map(|was| was.user);
        }
        if let Some(Reverse((due_ms, _))) = self.waiting.peek()
            && *due_ms <= now_ms
        {
            return self.waiting.pop().map(|Reverse((_, user))| user);
        }
        if self.fresh < self.users {
            self.fresh += 1;
            return Some(self.fresh - 1);
        }
        None
    }

    /// Any user of whom nothing is due for a while.
    fn find_early(&mut self, now_ms: u32) -> Option<Was> {
        let ripe_by = now_ms + MARGIN_MS;
        while let Some(was) = self.shown.get((self.unripe - self.taken) as usize)
            && was.answered_ms + self.gap_ms <= ripe_by
        {
            self.unripe += 1;
        }
        let first = (self.unripe - self.taken) as usize;
        (first < self.shown.len()).then(|| self.shown[self.random.random_range(first..self.shown.len())])
    }

    fn put_event(&mut self, out: &mut Vec<u8>) -> Option<Ticket> {
        if self.recent.is_empty() {
            return None;
        }
        let place = self.random.random_range(0..self.recent.len());
        let recent = &self.recent[place];
        // Of ten events six are impressions, two clicks, two dismissals.
        let kind = [0, 1, 0, 2, 0, 0, 1, 0, 2, 0][(self.event_number % 10) as usize];
        self.body.clear();
        self.body.extend_from_slice(br#"{"events":[{"id":"e"#);
        self.body.extend_from_slice(self.event_tag.as_bytes());
        self.body.push(b'-');
        put_number(&mut self.body, self.event_number);
        self.body.extend_from_slice(br#"","decision":""#);
        self.body.extend_from_slice(&recent.bytes[..recent.length]);
        self.body.extend_from_slice(br#"","type":""#);
        self.body.extend_from_slice(KINDS[usize::from(kind)].as_bytes());
        self.body.extend_from_slice(br#""}]}"#);
        self.event_number += 1;
        self.report.put(out, &self.body);
        Some(Ticket::Event { popup: recent.popup, variant: recent.variant, kind })
    }

    fn put_question(&mut self, out: &mut Vec<u8>, user: u32) {
        self.body.clear();
        self.people.put_question(&mut self.body, user, HOME);
        self.decide.put(out, &self.body);
    }

    fn remember(&mut self, decision: &[u8], popup: u16, variant: u8) {
        if decision.len() > DECISION_BYTES_MAX {
            return;
        }
        let mut recent = Recent { bytes: [0; DECISION_BYTES_MAX], length: decision.len(), popup, variant };
        recent.bytes[..decision.len()].copy_from_slice(decision);
        if self.recent.len() < RECENT {
            self.recent.push(recent);
        } else {
            self.recent[self.recent_next] = recent;
            self.recent_next = (self.recent_next + 1) % RECENT;
        }
    }

    fn showed(&mut self, user: u32, asked_ms: u32, now_ms: u32, body: &[u8]) {
        self.tally.shown += 1;
        self.shown.push_back(Was { user, asked_ms, answered_ms: now_ms });
        let mut named = None;
        let judged = judge_shown(self.catalogue, body, |decision, popup, variant| {
            let mut bytes = [0; DECISION_BYTES_MAX];
            let length = decision.len().min(DECISION_BYTES_MAX);
            bytes[..length].copy_from_slice(&decision[..length]);
            named = Some((bytes, length, popup, variant));
        });
        if let Some((bytes, length, popup, variant)) = named {
            self.counts[usize::from(popup)][usize::from(variant)][0] += 1;
            self.remember(&bytes[..length], popup, variant);
        }
        if let Err(why) = judged {
            self.tally.wrong_content += 1;
            self.tally.problem(|| why);
        }
    }

    fn answered_early(&mut self, was: Was, sent_ms: u32, now_ms: u32, answer: &Answer<'_>) {
        self.tally.asked_early += 1;
        match answer.status {
            204 => {
                let due_ms = |shown_ms: u32| u64::from(shown_ms) + u64::from(self.gap_ms);
                let rest_s = |due_ms: u64, now_ms: u32| due_ms.saturating_sub(u64::from(now_ms)).div_ceil(1000);
                // A second more or less: both clocks round, and both times are those of the client.
                let least = rest_s(due_ms(was.asked_ms), now_ms).saturating_sub(1);
                let most = rest_s(due_ms(was.answered_ms), sent_ms) + 1;
                if !answer.retry_after.is_some_and(|seconds| (least..=most).contains(&u64::from(seconds))) {
                    self.tally.wrong_wait += 1;
                    self.tally.problem(|| {
                        let (said, gap_ms) = (answer.retry_after, self.gap_ms);
                        format!(
                            "Retry-After {said:?} for user {} shown a popup {} ms ago, of a gap of {gap_ms} ms",
                            self.people.id(was.user),
                            now_ms - was.answered_ms
                        )
                    });
                }
            }
            200 => {
                let ago_ms = now_ms - was.asked_ms;
                // An answer that took longer than the margin may be right.
                if ago_ms + ROUNDING_MS < self.gap_ms {
                    self.tally.too_early += 1;
                    let user = self.people.id(was.user);
                    self.tally.problem(|| format!("user {user} was shown a popup {ago_ms} ms ago, and now the next"));
                }
                // It is counted all the same; the user stays where it was.
                let _ = judge_shown(self.catalogue, answer.body, |_, popup, variant| {
                    self.counts[usize::from(popup)][usize::from(variant)][0] += 1;
                });
                self.tally.shown += 1;
            }
            _ => self.other(answer),
        }
    }

    fn answered_due(&mut self, user: u32, asked_ms: u32, now_ms: u32, answer: &Answer<'_>) {
        self.tally.asked_due += 1;
        match answer.status {
            200 => self.showed(user, asked_ms, now_ms, answer.body),
            204 => {
                self.tally.due_but_nothing += 1;
                if let Some(seconds) = answer.retry_after {
                    self.waiting.push(Reverse((now_ms.saturating_add(seconds.saturating_mul(1000)), user)));
                }
            }
            _ => {
                self.other(answer);
                self.waiting.push(Reverse((now_ms + 1000, user)));
            }
        }
    }

    fn other(&mut self, answer: &Answer<'_>) {
        match answer.status {
            429 | 503 => self.tally.refused += 1,
            _ => self.tally.wrong_answer += 1,
        }
        self.tally.problem(|| format!("{}: {}", answer.status, String::from_utf8_lossy(answer.body)));
    }
}

impl Traffic for Mix<'_> {
    fn ask(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let now_ms = self.ms(now_ns);
        self.turn = (self.turn + 1) % PATTERN.len();
        let wish = match self.phase {
            Phase::Introduce if self.fresh >= self.users => return false,
            Phase::Introduce => {
                self.fresh += 1;
                self.put_question(out, self.fresh - 1);
                self.tickets[connection] = Ticket::Due { user: self.fresh - 1, asked_ms: now_ms };
                return true;
            }
            Phase::Blind => {
                let user = mixed(self.event_number) as u32 % self.users;
                if matches!(PATTERN[self.turn], Wish::Event)
                    && let Some(ticket) = self.put_event(out)
                {
                    self.tickets[connection] = ticket;
                    return true;
                }
                self.event_number += 1;
                self.put_question(out, user);
                self.tickets[connection] = Ticket::Due { user, asked_ms: now_ms };
                return true;
            }
            Phase::Mix => PATTERN[self.turn],
        };
        if matches!(wish, Wish::Event)
            && let Some(ticket) = self.put_event(out)
        {
            self.tickets[connection] = ticket;
            return true;
        }
        let due = if matches!(wish, Wish::Due) { self.take_due(now_ms) } else { None };
        let early = if due.is_none() { self.find_early(now_ms) } else { None };
        // With nobody of the kind that is wished for, the other kind it is; how many of which is counted.
        let due = if early.is_none() { due.or_else(|| self.take_due(now_ms)) } else { due };
        self.tickets[connection] = match (due, early) {
            (Some(user), _) => {
                self.put_question(out, user);
                Ticket::Due { user, asked_ms: now_ms }
            }
            (None, Some(was)) => {
                self.put_question(out, was.user);
                Ticket::Early { was, sent_ms: now_ms }
            }
            (None, None) => return false,
        };
        true
    }

    fn answered(&mut self, connection: usize, now_ns: u64, answer: &Answer<'_>) {
        let now_ms = self.ms(now_ns);
        let ticket = std::mem::replace(&mut self.tickets[connection], Ticket::Nothing);
        if self.phase == Phase::Blind {
            match answer.status {
                200 => self.tally.shown += 1,
                _ => self.other(answer),
            }
            return;
        }
        match ticket {
            Ticket::Nothing => {}
            Ticket::Early { was, sent_ms } => self.answered_early(was, sent_ms, now_ms, answer),
            Ticket::Due { user, asked_ms } => self.answered_due(user, asked_ms, now_ms, answer),
            Ticket::Event { popup, variant, kind } => {
                self.tally.events += 1;
                match took_one_event(answer) {
                    true => self.counts[usize::from(popup)][usize::from(variant)][1 + usize::from(kind)] += 1,
                    false => self.other(answer),
                }
            }
        }
    }

    fn lost(&mut self, connection: usize) {
        self.tickets[connection] = Ticket::Nothing;
        self.tally.lost += 1;
    }
}
