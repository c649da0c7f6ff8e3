//! Accepting pushes: checked by the caller, made durable by the worker, many in one write.

use super::{
    PushDesk,
    devices::Many,
    draft::Draft,
    rows::*,
    start::{Plan, build_frame},
    worker::Worker,
};
use crate::{
    commit::store_refusal,
    store::{StoreError, StoreResult},
};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PushAccepted, PushReach, PushState},
};
use tokio::sync::oneshot;

/// Whom a push is for.
#[derive(Debug, Clone, serde::Serialize, serde::Deserialize)]
pub(super) enum Aim {
    Named {
        users: Vec<u64>,
        /// Users and their device's id: the device may come to be only until a scheduled push starts.
        devices: Vec<(u64, String)>,
        kinds: Vec<String>,
    },
    Many(Many),
}

/// A push that may be accepted: everything about it that needs no look at the devices is checked.
#[derive(Debug, Clone)]
pub struct PreparedPush {
    pub(super) aim: Aim,
    pub(super) content_type: String,
    pub(super) body: String,
    pub(super) collapse_key: Option<String>,
    pub(super) high: bool,
    pub(super) ttl_ms: u64,
    pub(super) send_at: Option<u64>,
    pub(super) client_push_id: Option<String>,
    pub(super) unknown: u32,
}

impl PreparedPush {
    /// Users and devices named.
    pub(super) fn names(&self) -> usize {
        match &self.aim {
            Aim::Named { users, devices, .. } => users.len() + devices.len(),
            Aim::Many(_) => 1,
        }
    }
}

type Answer = Result<PushAccepted, Refusal>;

/// A push on its way to the worker.
pub(super) struct Accept {
    pub(super) push: PreparedPush,
    reply: oneshot::Sender<Answer>,
}

impl PushDesk {
    /// Makes a push durable; what is answered survives a crash.
    pub async fn accept(&self, push: PreparedPush) -> Answer {
        let (reply, answer) = oneshot::channel();
        self.inbox.accept(Accept { push, reply })?;
        answer.await.map_err(|_| self.inbox.why_not())?
    }

    /// Whom it would reach now. Blocks.
    pub fn reach(&self, push: PreparedPush) -> Result<PushReach, Refusal> {
        self.ask(move |worker| worker.reach(&push.aim))
    }
}

/// Pushes that are stored in one write, and what follows from each once that is done.
struct Group<'a> {
    draft: Draft<'a>,
    /// Answers, and what is to be started; duplicates start nothing.
    done: Vec<(oneshot::Sender<Answer>, PushAccepted, Option<Plan>)>,
    to_many: usize,
    scheduled: usize,
}

impl Worker {
    pub(super) fn accept_all(&mut self, accepts: Vec<Accept>) {
        let store = self.store.clone();
        let new_group = || Group { draft: Draft::new(&*store), done: Vec::new(), to_many: 0, scheduled: 0 };
        let mut group = new_group();
        for Accept { push, reply } in accepts {
            let planned = self.decide(&group, push);
            let (accepted, plan) = match planned {
                Ok(decided) => decided,
                Err(refusal) => {
                    let _ = reply.send(Err(refusal));
                    continue;
                }
            };
            let Some(plan) = plan else {
                group.done.push((reply, accepted, None));
                continue;
            };
            if group.draft.len() + plan.rows() > PUSH_ROWS_PER_WRITE {
                self.finish_group(std::mem::replace(&mut group, new_group()));
            }
            if plan.rows() > PUSH_ROWS_PER_WRITE {
                let answer = self.accept_large(plan).map(|()| accepted).map_err(store_refusal);
                let _ = reply.send(answer);
                continue;
            }
            match self.put_plan(&mut group.draft, &plan) {
                Ok(()) => {
                    group.to_many += usize::from(plan.runs_to_many());
                    group.scheduled += usize::from(plan.header.stage == Stage::Scheduled);
                    group.done.push((reply, accepted, Some(plan)));
                }
                // Half of it may be in the draft: the whole group is refused.
                Err(error) => {
                    let refusal = store_refusal(error);
                    let _ = reply.send(Err(refusal.clone()));
                    let failed = std::mem::replace(&mut group, new_group());
                    failed.done.into_iter().for_each(|(reply, ..)| drop(reply.send(Err(refusal.clone()))));
                }
            }
        }
        self.finish_group(group);
    }

    fn finish_group(&mut self, group: Group<'_>) {
        match self.store_draft(group.draft) {
            Ok(()) => {
                for (reply, accepted, plan) in group.done {
                    if let Some(plan) = plan {
                        self.begin(plan);
                    }
                    let _ = reply.send(Ok(accepted));
                }
            }
            Err(error) => {
                let refusal = store_refusal(error);
                group.done.into_iter().for_each(|(reply, ..)| drop(reply.send(Err(refusal.clone()))));
            }
        }
    }

    /// What a push would be: its answer, and its rows unless it is there already.
    fn decide(&mut self, group: &Group<'_>, push: PreparedPush) -> Result<(PushAccepted, Option<Plan>), Refusal> {
        // A first try that may have been stored is neither there nor not.
        self.check_sure().map_err(store_refusal)?;
        if let Some(client_push_id) = &push.client_push_id
            && let Some(first) = self.named(&group.draft, client_push_id).map_err(store_refusal)?
        {
            return Ok((PushAccepted { duplicate: true, ..accepted(&first) }, None));
        }
        let now = self.now();
        let send_at = push.send_at.filter(|at| *at > now);
        let full = |what: &str, limit: usize| {
            Refusal::new(ErrorCode::QueueFull, format!("{what} are limited to {limit}")).retry_after(60_000)
        };
        if send_at.is_some() && self.scheduled + group.scheduled >= self.config.scheduled {
            return Err(full("scheduled pushes", self.config.scheduled));
        }
        let to_many = matches!(push.aim, Aim::Many(_));
        if send_at.is_none() && to_many && self.audiences.len() + group.to_many >= self.config.running_to_many {
            return Err(full("pushes to all or by tags that run at once", self.config.running_to_many));
        }
        self.last_push += 1;
        let header = StoredPush {
            push: self.last_push,
            stage: if send_at.is_some() { Stage::Scheduled } else { Stage::Running },
            closed: false,
            to_many,
            content_type: push.content_type,
            collapse_key: push.collapse_key,
            high: push.high,
            body_bytes: push.body.len() as u32,
            parts: 0,
            client_push_id: push.client_push_id,
            accepted_at: now,
            send_at,
            started_at: None,
            expires_at: send_at.unwrap_or(now) + push.ttl_ms,
            ended_at: None,
            due_at: send_at.unwrap_or(0),
            order: self.last_push,
            targets: 0,
            refused_full: 0,
            unknown: push.unknown,
        };
        let plan = match send_at {
            Some(_) => Plan::scheduled(header, &push.body, &push.aim),
            None => {
                let frame = build_frame(&header, &push.body);
                let mut plan = Plan::new(header, frame);
                plan.put_parts(push.body.as_bytes());
                self.aim(&mut plan, &push.aim, &group.draft.pending).map_err(store_refusal)?;
                plan
            }
        };
        Ok((accepted(&plan.header), Some(plan)))
    }

    /// The push that a `client_push_id` stands for.
    fn named(&self, draft: &Draft<'_>, client_push_id: &str) -> StoreResult<Option<StoredPush>> {
        let Some(PushRow::Name { push, .. }) = draft.get(&PushKey::Name(client_push_id.to_owned()))? else {
            return Ok(None);
        };
        match draft.get(&PushKey::Push(push))? {
            Some(PushRow::Push(first)) if first.stage != Stage::Preparing => Ok(Some(first)),
            _ => Ok(None),
        }
    }

    /// One with more rows than a write has: all but the last write leave it something that a restart removes.
    fn accept_large(&mut self, plan: Plan) -> StoreResult<()> {
        let push = plan.header.push;
        let result = self.store_large(plan);
        // One that may have been stored is looked at first: it stays if its last write is there.
        if result.is_err() && !self.is_unsure {
            self.jobs.insert(push, super::jobs::Job::forget());
        }
        result
    }

    fn store_large(&mut self, mut plan: Plan) -> StoreResult<()> {
        let store = self.store.clone();
        let mut preparing = Draft::new(&*store);
        preparing.put(PushRow::Push(StoredPush { stage: Stage::Preparing, ..plan.header.clone() }));
        preparing.put(PushRow::Mark { mark: Mark::Preparing, push: plan.header.push });
        preparing.put(self.counters());
        self.store_draft(preparing)?;
        plan.drops.push(PushKey::Mark(Mark::Preparing, plan.header.push));
        self.store_in_pieces(plan)
    }

    pub(super) fn counters(&self) -> PushRow {
        PushRow::Counters { push: self.last_push, device: self.numbers.next, epoch: self.store.epoch() }
    }
}

/// How a push is answered for.
pub(super) fn accepted(push: &StoredPush) -> PushAccepted {
    PushAccepted {
        push: push.push,
        state: state_of(push.stage),
        targets: u64::from(push.targets),
        refused_full: u64::from(push.refused_full),
        unknown: u64::from(push.unknown),
        expires_at: push.expires_at,
        duplicate: false,
    }
}

pub(super) fn state_of(stage: Stage) -> PushState {
    match stage {
        Stage::Preparing | Stage::Scheduled => PushState::Scheduled,
        Stage::Running => PushState::Running,
        Stage::Completed => PushState::Completed,
        Stage::Expired => PushState::Expired,
        Stage::Cancelled => PushState::Cancelled,
    }
}

/// Text that was stored as text.
pub(super) fn text(bytes: &[u8]) -> StoreResult<String> {
    String::from_utf8(bytes.to_vec()).map_err(|_| StoreError::Damaged("a push's body is not text".into()))
}
