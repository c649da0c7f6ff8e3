//! The traffic of a home page: mostly decisions for users who are not due, some for users who are due, and a few events.
//!
//! Which users are due follows from the answers alone: a user who was shown a popup is due when the gap between popups is
//! over, and a user who was answered with `Retry-After` when that time is over.

use super::{
    answer_verifier::{AnswerCounts, is_one_new_event, verify_decision},
    catalogue::{Catalogue, HOME},
    load_loop::TrafficSource,
    user_profiles::{UserProfiles, hash},
};
use crate::{
    client_engine::http::{ConnectionUse, HttpAnswer, RequestTemplate, put_number},
    problems::Problems,
};
use rand::{RngExt, SeedableRng, rngs::SmallRng};
use std::{
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
};

/// Of twenty requests one is an event and five are for users who are due; spread evenly, so that there are no bursts.
const PATTERN: [RequestKind; 20] = {
    let (n, d, e) = (RequestKind::NotDue, RequestKind::Due, RequestKind::Event);
    [n, n, d, n, n, n, d, n, n, e, n, d, n, n, n, d, n, n, d, n]
};
/// A user whose gap ends sooner than this is not asked for: either answer could be right.
const MARGIN_MS: u32 = 1000;
/// Lab and server both round times to milliseconds.
const ROUNDING_MS: u32 = 2;
/// The number of recent decisions that events are about.
const RECENT: usize = 8192;
const DECISION_BYTES_MAX: usize = 256;
/// The kinds of events, in the order of their counts.
pub(crate) const EVENT_KINDS: [&str; 3] = ["impression", "click", "dismiss"];

#[derive(Debug, Clone, Copy)]
enum RequestKind {
    NotDue,
    Due,
    Event,
}

/// The request in flight on a connection.
#[derive(Debug, Clone, Copy)]
enum PendingRequest {
    None,
    NotDue { shown_user: ShownUser, sent_ms: u32 },
    Due { user: u32, asked_ms: u32 },
    Event { popup: u16, variant: u8, kind: u8 },
}

/// A user who was shown a popup between these times, in milliseconds since the run began.
#[derive(Debug, Clone, Copy)]
struct ShownUser {
    user: u32,
    asked_ms: u32,
    answered_ms: u32,
}

/// The id of a decision, about which events are reported.
struct RecentDecision {
    bytes: [u8; DECISION_BYTES_MAX],
    length: usize,
    popup: u16,
    variant: u8,
}

/// The phase of a run, which determines the requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MixPhase {
    /// A decision for each user once, so that the server has all users in memory.
    FirstContact,
    /// The mix of requests.
    Mix,
    /// The same requests to a server that knows no users: only the status of answers is checked.
    StatusOnly,
}

/// The counts of one variant: how often it was shown, then each kind of event.
pub(crate) type VariantCounts = [u64; 1 + EVENT_KINDS.len()];

pub(crate) struct HomePageMix {
    pub(crate) catalogue: Catalogue,
    profiles: UserProfiles,
    decide: RequestTemplate,
    report: RequestTemplate,
    users: u32,
    gap_ms: u32,
    begin_ns: u64,
    pub(crate) phase: MixPhase,
    pending: Vec<PendingRequest>,
    turn: usize,
    random: SmallRng,
    /// The number of the first user for whom no decision was requested yet.
    first_unasked: u32,
    /// Users in the order in which they were shown a popup, which is that in which they are due again.
    shown: VecDeque<ShownUser>,
    /// How many users were taken from the front of `shown`: added to an index, it gives a number that stays the same.
    taken: u64,
    /// The number of the first user in `shown` whose gap does not end within the margin.
    first_safe: u64,
    /// Users who were answered with `Retry-After`, by the time at which they are due, in milliseconds since the run began.
    waiting: BinaryHeap<Reverse<(u32, u32)>>,
    recent: Vec<RecentDecision>,
    recent_next: usize,
    event_id_tag: String,
    event_number: u64,
    body: Vec<u8>,
    pub(crate) answer_counts: AnswerCounts,
    /// Counts by popup and variant.
    pub(crate) counts: Vec<Vec<VariantCounts>>,
}

/// The options of a mix.
pub(crate) struct MixConfig<'a> {
    pub(crate) api_key: &'a str,
    pub(crate) users: u32,
    pub(crate) gap_s: u64,
    pub(crate) connections: usize,
    /// The prefix of event ids.
    pub(crate) tag: String,
    pub(crate) connection_use: ConnectionUse,
}

impl HomePageMix {
    pub(crate) fn new(catalogue: Catalogue, profiles: UserProfiles, setting: MixConfig<'_>, phase: MixPhase) -> Self {
        let counts = catalogue.popups.iter().map(|known| vec![VariantCounts::default(); known.variants.len()]);
        let mut mix = HomePageMix {
            counts: counts.collect(),
            catalogue,
            profiles,
            decide: RequestTemplate::post_over("/v1/popups/decide", setting.api_key, setting.connection_use),
            report: RequestTemplate::post_over("/v1/popup-events", setting.api_key, setting.connection_use),
            users: setting.users,
            gap_ms: (setting.gap_s * 1000) as u32,
            begin_ns: crate::process::monotonic_ns(),
            phase,
            pending: vec![PendingRequest::None; setting.connections],
            turn: 0,
            random: SmallRng::seed_from_u64(7),
            first_unasked: 0,
            shown: VecDeque::with_capacity(setting.users as usize + setting.connections),
            taken: 0,
            first_safe: 0,
            waiting: BinaryHeap::new(),
            recent: Vec::with_capacity(RECENT),
            recent_next: 0,
            event_id_tag: setting.tag,
            event_number: 0,
            body: Vec::with_capacity(1024),
            answer_counts: AnswerCounts::default(),
        };
        if phase == MixPhase::StatusOnly {
            // As long as the id of a decision.
            mix.remember(&[b'x'; 64], 0, 0);
        }
        mix
    }

    fn ms(&self, now_ns: u64) -> u32 {
        (now_ns.saturating_sub(self.begin_ns) / 1_000_000) as u32
    }

    /// Takes a user who is due now.
    fn take_due_user(&mut self, now_ms: u32) -> Option<u32> {
        if let Some(shown_user) = self.shown.front()
            && shown_user.answered_ms + self.gap_ms + ROUNDING_MS <= now_ms
        {
            self.taken += 1;
            self.first_safe = self.first_safe.max(self.taken);
            return self.shown.pop_front().map(|shown_user| shown_user.user);
        }
        if let Some(Reverse((due_ms, _))) = self.waiting.peek()
            && *due_ms <= now_ms
        {
            return self.waiting.pop().map(|Reverse((_, user))| user);
        }
        if self.first_unasked < self.users {
            self.first_unasked += 1;
            return Some(self.first_unasked - 1);
        }
        None
    }

    /// A random user who is not due for a while.
    fn find_user_not_due(&mut self, now_ms: u32) -> Option<ShownUser> {
        let due_by = now_ms + MARGIN_MS;
        while let Some(shown_user) = self.shown.get((self.first_safe - self.taken) as usize)
            && shown_user.answered_ms + self.gap_ms <= due_by
        {
            self.first_safe += 1;
        }
        let first = (self.first_safe - self.taken) as usize;
        (first < self.shown.len()).then(|| self.shown[self.random.random_range(first..self.shown.len())])
    }

    fn put_event(&mut self, out: &mut Vec<u8>) -> Option<PendingRequest> {
        if self.recent.is_empty() {
            return None;
        }
        let place = self.random.random_range(0..self.recent.len());
        let recent = &self.recent[place];
        // Of ten events six are impressions, two clicks, two dismissals.
        let kind = [0, 1, 0, 2, 0, 0, 1, 0, 2, 0][(self.event_number % 10) as usize];
        self.body.clear();
        self.body.extend_from_slice(br#"{"events":[{"id":"e"#);
        self.body.extend_from_slice(self.event_id_tag.as_bytes());
        self.body.push(b'-');
        put_number(&mut self.body, self.event_number);
        self.body.extend_from_slice(br#"","decision":""#);
        self.body.extend_from_slice(&recent.bytes[..recent.length]);
        self.body.extend_from_slice(br#"","type":""#);
        self.body.extend_from_slice(EVENT_KINDS[usize::from(kind)].as_bytes());
        self.body.extend_from_slice(br#""}]}"#);
        self.event_number += 1;
        self.report.put(out, &self.body);
        Some(PendingRequest::Event { popup: recent.popup, variant: recent.variant, kind })
    }

    fn put_decide_request(&mut self, out: &mut Vec<u8>, user: u32) {
        self.body.clear();
        self.profiles.put_decide_request(&mut self.body, user, HOME);
        self.decide.put(out, &self.body);
    }

    fn remember(&mut self, decision: &[u8], popup: u16, variant: u8) {
        if decision.len() > DECISION_BYTES_MAX {
            return;
        }
        let mut recent = RecentDecision { bytes: [0; DECISION_BYTES_MAX], length: decision.len(), popup, variant };
        recent.bytes[..decision.len()].copy_from_slice(decision);
        if self.recent.len() < RECENT {
            self.recent.push(recent);
        } else {
            self.recent[self.recent_next] = recent;
            self.recent_next = (self.recent_next + 1) % RECENT;
        }
    }

    fn record_shown(&mut self, user: u32, asked_ms: u32, now_ms: u32, body: &[u8]) {
        self.answer_counts.shown += 1;
        self.shown.push_back(ShownUser { user, asked_ms, answered_ms: now_ms });
        let mut named = None;
        let judged = verify_decision(&self.catalogue, body, |decision, popup, variant| {
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
            self.answer_counts.wrong_content += 1;
            self.answer_counts.problems.note(why);
        }
    }

    fn verify_not_due_answer(&mut self, shown_user: ShownUser, sent_ms: u32, now_ms: u32, answer: &HttpAnswer<'_>) {
        self.answer_counts.asked_early += 1;
        match answer.status {
            204 => {
                let due_ms = |shown_ms: u32| u64::from(shown_ms) + u64::from(self.gap_ms);
                let rest_s = |due_ms: u64, now_ms: u32| due_ms.saturating_sub(u64::from(now_ms)).div_ceil(1000);
                // A second more or less: both clocks round, and both times are those of the client.
                let least = rest_s(due_ms(shown_user.asked_ms), now_ms).saturating_sub(1);
                let most = rest_s(due_ms(shown_user.answered_ms), sent_ms) + 1;
                if !answer.retry_after.is_some_and(|seconds| (least..=most).contains(&u64::from(seconds))) {
                    self.answer_counts.wrong_wait += 1;
                    let (retry_after, gap_ms) = (answer.retry_after, self.gap_ms);
                    self.answer_counts.problems.note(format!(
                        "Retry-After {retry_after:?} for user {} shown a popup {} ms ago, of a gap of {gap_ms} ms",
                        self.profiles.id(shown_user.user),
                        now_ms - shown_user.answered_ms
                    ));
                }
            }
            200 => {
                let ago_ms = now_ms - shown_user.asked_ms;
                // An answer that took longer than the margin may be right.
                if ago_ms + ROUNDING_MS < self.gap_ms {
                    self.answer_counts.too_early += 1;
                    let user = self.profiles.id(shown_user.user);
                    self.answer_counts
                        .problems
                        .note(format!("user {user} was shown a popup {ago_ms} ms ago, and now the next"));
                }
                // The decision is counted all the same; the user keeps the place in `shown`.
                let _ = verify_decision(&self.catalogue, &answer.body, |_, popup, variant| {
                    self.counts[usize::from(popup)][usize::from(variant)][0] += 1;
                });
                self.answer_counts.shown += 1;
            }
            _ => self.record_other_answer(answer),
        }
    }

    fn verify_due_answer(&mut self, user: u32, asked_ms: u32, now_ms: u32, answer: &HttpAnswer<'_>) {
        self.answer_counts.asked_due += 1;
        match answer.status {
            200 => self.record_shown(user, asked_ms, now_ms, &answer.body),
            204 => {
                self.answer_counts.due_but_nothing += 1;
                if let Some(seconds) = answer.retry_after {
                    self.waiting.push(Reverse((now_ms.saturating_add(seconds.saturating_mul(1000)), user)));
                }
            }
            _ => {
                self.record_other_answer(answer);
                self.waiting.push(Reverse((now_ms + 1000, user)));
            }
        }
    }

    fn record_other_answer(&mut self, answer: &HttpAnswer<'_>) {
        match answer.status {
            429 | 503 => self.answer_counts.refused += 1,
            _ => self.answer_counts.wrong_answer += 1,
        }
        self.answer_counts.problems.note(format!("{}: {}", answer.status, String::from_utf8_lossy(&answer.body)));
    }
}

impl TrafficSource for HomePageMix {
    fn next_request(&mut self, connection: usize, now_ns: u64, out: &mut Vec<u8>) -> bool {
        let now_ms = self.ms(now_ns);
        self.turn = (self.turn + 1) % PATTERN.len();
        let kind_wanted = match self.phase {
            MixPhase::FirstContact if self.first_unasked >= self.users => return false,
            MixPhase::FirstContact => {
                self.first_unasked += 1;
                self.put_decide_request(out, self.first_unasked - 1);
                self.pending[connection] = PendingRequest::Due { user: self.first_unasked - 1, asked_ms: now_ms };
                return true;
            }
            MixPhase::StatusOnly => {
                let user = hash(self.event_number) as u32 % self.users;
                if matches!(PATTERN[self.turn], RequestKind::Event)
                    && let Some(request) = self.put_event(out)
                {
                    self.pending[connection] = request;
                    return true;
                }
                self.event_number += 1;
                self.put_decide_request(out, user);
                self.pending[connection] = PendingRequest::Due { user, asked_ms: now_ms };
                return true;
            }
            MixPhase::Mix => PATTERN[self.turn],
        };
        if matches!(kind_wanted, RequestKind::Event)
            && let Some(request) = self.put_event(out)
        {
            self.pending[connection] = request;
            return true;
        }
        let due = if matches!(kind_wanted, RequestKind::Due) { self.take_due_user(now_ms) } else { None };
        let not_due = if due.is_none() { self.find_user_not_due(now_ms) } else { None };
        // Without a user of the wanted kind, one of the other kind is taken; the shares of both are reported.
        let due = if not_due.is_none() { due.or_else(|| self.take_due_user(now_ms)) } else { due };
        self.pending[connection] = match (due, not_due) {
            (Some(user), _) => {
                self.put_decide_request(out, user);
                PendingRequest::Due { user, asked_ms: now_ms }
            }
            (None, Some(shown_user)) => {
                self.put_decide_request(out, shown_user.user);
                PendingRequest::NotDue { shown_user, sent_ms: now_ms }
            }
            (None, None) => return false,
        };
        true
    }

    fn handle_answer(&mut self, connection: usize, now_ns: u64, answer: &HttpAnswer<'_>) {
        let now_ms = self.ms(now_ns);
        let request = std::mem::replace(&mut self.pending[connection], PendingRequest::None);
        if self.phase == MixPhase::StatusOnly {
            match answer.status {
                200 => self.answer_counts.shown += 1,
                _ => self.record_other_answer(answer),
            }
            return;
        }
        match request {
            PendingRequest::None => {}
            PendingRequest::NotDue { shown_user, sent_ms } => {
                self.verify_not_due_answer(shown_user, sent_ms, now_ms, answer)
            }
            PendingRequest::Due { user, asked_ms } => self.verify_due_answer(user, asked_ms, now_ms, answer),
            PendingRequest::Event { popup, variant, kind } => {
                self.answer_counts.events += 1;
                if is_one_new_event(answer) {
                    self.counts[usize::from(popup)][usize::from(variant)][1 + usize::from(kind)] += 1
                } else {
                    self.record_other_answer(answer)
                }
            }
        }
    }

    fn connection_lost(&mut self, connection: usize) {
        self.pending[connection] = PendingRequest::None;
        self.answer_counts.lost += 1;
    }
}
