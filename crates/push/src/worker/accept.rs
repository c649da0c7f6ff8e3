//! Accepting pushes: the worker makes them durable, many in one write.

use super::{
    Worker,
    inbox::{Accept, AcceptResult},
    jobs::Job,
    start::Plan,
};
use crate::{
    PushFrame,
    draft::Draft,
    prepared_push::{PreparedPush, TargetSpec},
};
use tidings_domain::{push_store::*, refusals::store_refusal, request_digest::RequestDigest, store::StoreResult};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{PushAccepted, PushState},
};
use tokio::sync::oneshot;

/// Pushes that are stored in one write.
struct AcceptBatch<'a> {
    draft: Draft<'a>,
    /// Answers to send and plans to start once the write is durable; duplicates start nothing.
    pushes: Vec<(oneshot::Sender<AcceptResult>, PushAccepted, Option<Plan>)>,
    to_many: usize,
    scheduled: usize,
}

impl Worker {
    pub(super) fn accept_all(&mut self, accepts: Vec<Accept>) {
        let store = self.store.clone();
        let new_batch = || AcceptBatch { draft: Draft::new(&*store), pushes: Vec::new(), to_many: 0, scheduled: 0 };
        let mut batch = new_batch();
        for Accept { push, reply } in accepts {
            let (accepted, plan) = match self.plan(&batch, push) {
                Ok(planned) => planned,
                Err(refusal) => {
                    let _ = reply.send(Err(refusal));
                    continue;
                }
            };
            let Some(plan) = plan else {
                batch.pushes.push((reply, accepted, None));
                continue;
            };
            if batch.draft.len() + plan.rows() > PUSH_ROWS_PER_WRITE {
                self.finish_batch(std::mem::replace(&mut batch, new_batch()));
            }
            if plan.rows() > PUSH_ROWS_PER_WRITE {
                let answer = self.accept_large(plan).map(|()| accepted).map_err(store_refusal);
                let _ = reply.send(answer);
                continue;
            }
            match self.put_plan(&mut batch.draft, &plan) {
                Ok(()) => {
                    batch.to_many += usize::from(plan.runs_to_many());
                    batch.scheduled += usize::from(plan.header.stage == PushStage::Scheduled);
                    batch.pushes.push((reply, accepted, Some(plan)));
                }
                // Half of the plan may be in the draft: the whole batch is refused.
                Err(error) => {
                    let refusal = store_refusal(error);
                    let _ = reply.send(Err(refusal.clone()));
                    let failed = std::mem::replace(&mut batch, new_batch());
                    failed.pushes.into_iter().for_each(|(reply, ..)| drop(reply.send(Err(refusal.clone()))));
                }
            }
        }
        self.finish_batch(batch);
    }

    fn finish_batch(&mut self, batch: AcceptBatch<'_>) {
        match self.store_draft(batch.draft) {
            Ok(()) => {
                for (reply, accepted, plan) in batch.pushes {
                    if let Some(plan) = plan {
                        self.start(plan);
                    }
                    let _ = reply.send(Ok(accepted));
                }
            }
            Err(error) => {
                let refusal = store_refusal(error);
                batch.pushes.into_iter().for_each(|(reply, ..)| drop(reply.send(Err(refusal.clone()))));
            }
        }
    }

    /// The answer to a push, and its plan unless a first try of it is stored already.
    fn plan(&mut self, batch: &AcceptBatch<'_>, push: PreparedPush) -> Result<(PushAccepted, Option<Plan>), Refusal> {
        // While the outcome of a write is unknown, nobody can say whether a first try is stored.
        self.check_in_sync().map_err(store_refusal)?;
        if let Some(client_push_id) = &push.client_push_id
            && let Some((first, request)) =
                self.find_by_client_id(&batch.draft, client_push_id).map_err(store_refusal)?
        {
            if let (Some(first), Some(again)) = (request, push.request)
                && first != again
            {
                let why = "this client_push_id stands for another push: give each push an id of its own";
                return Err(Refusal::new(ErrorCode::ClientPushIdReused, why));
            }
            return Ok((PushAccepted { duplicate: true, ..accepted(&first) }, None));
        }
        let now = self.now();
        let send_at = push.send_at.filter(|at| *at > now);
        let full = |what: &str, limit: usize| {
            Refusal::new(ErrorCode::QueueFull, format!("{what} are limited to {limit}")).retry_after(60_000)
        };
        if send_at.is_some() && self.scheduled + batch.scheduled >= self.config.scheduled {
            return Err(full("scheduled pushes", self.config.scheduled));
        }
        let to_many = matches!(push.targets, TargetSpec::Many(_));
        if send_at.is_none() && to_many && self.audiences.len() + batch.to_many >= self.config.running_to_many {
            return Err(full("pushes to all or by tags that run at once", self.config.running_to_many));
        }
        self.last_push += 1;
        let header = StoredPush {
            push: self.last_push,
            stage: if send_at.is_some() { PushStage::Scheduled } else { PushStage::Running },
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
            start_order: self.last_push,
            targets: 0,
            refused_full: 0,
            unknown: push.unknown,
            request: push.request,
        };
        let mut plan = match send_at {
            Some(_) => Plan::scheduled(header, &push.body, &push.targets),
            None => {
                let frame = PushFrame::encode(&header, &push.body);
                let mut plan = Plan::new(header, frame);
                plan.put_parts(push.body.as_bytes());
                self.resolve_targets(&mut plan, &push.targets, &batch.draft.pending).map_err(store_refusal)?;
                plan
            }
        };
        if let Some(fallback) = &push.fallback {
            plan.put_fallback(fallback);
        }
        Ok((accepted(&plan.header), Some(plan)))
    }

    /// The push that a `client_push_id` stands for, and what a retry must ask for.
    fn find_by_client_id(
        &self,
        draft: &Draft<'_>,
        client_push_id: &str,
    ) -> StoreResult<Option<(StoredPush, Option<RequestDigest>)>> {
        let Some(PushRow::ClientPushId { push, request, .. }) =
            draft.get(&PushKey::ClientPushId(client_push_id.to_owned()))?
        else {
            return Ok(None);
        };
        match draft.get(&PushKey::Push(push))? {
            Some(PushRow::Push(first)) if first.stage != PushStage::Preparing => Ok(Some((first, request))),
            _ => Ok(None),
        }
    }

    /// Accepts a push with more rows than one write takes. Until the last write it is `Preparing`, and a restart purges it.
    fn accept_large(&mut self, plan: Plan) -> StoreResult<()> {
        let push = plan.header.push;
        let result = self.store_large(plan);
        // If the outcome of the last write is unknown, the store decides: the push stays if that write is there.
        if result.is_err() && self.check_in_sync().is_ok() {
            self.jobs.insert(push, Job::Purge);
        }
        result
    }

    fn store_large(&mut self, mut plan: Plan) -> StoreResult<()> {
        let store = self.store.clone();
        let mut preparing = Draft::new(&*store);
        preparing.put(PushRow::Push(StoredPush { stage: PushStage::Preparing, ..plan.header.clone() }));
        preparing.put(PushRow::RecoveryIndex { index: RecoveryIndex::Preparing, push: plan.header.push });
        preparing.put(self.counters());
        self.store_draft(preparing)?;
        plan.deletes.push(PushKey::RecoveryIndex(RecoveryIndex::Preparing, plan.header.push));
        self.store_in_writes(plan)
    }

    pub(super) fn counters(&self) -> PushRow {
        PushRow::Counters { push: self.last_push, device: self.numbers.next, epoch: self.store.epoch() }
    }
}

/// The answer to an accepted push.
fn accepted(push: &StoredPush) -> PushAccepted {
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

pub(crate) fn state_of(stage: PushStage) -> PushState {
    match stage {
        PushStage::Preparing | PushStage::Scheduled => PushState::Scheduled,
        PushStage::Running => PushState::Running,
        PushStage::Completed => PushState::Completed,
        PushStage::Expired => PushState::Expired,
        PushStage::Cancelled => PushState::Cancelled,
    }
}
