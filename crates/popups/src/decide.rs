//! Decisions: one is tried in memory; if it lacks context, the context is loaded and the decision is tried again. The
//! answer is held back until its exposure is durable, if it must be.

use super::{
    PopupService,
    attempt::{DecisionAttempt, Exposure, Question},
    context::{MissingContext, UserContext},
};
use std::sync::Arc;
use tidings_protocol::error::{ErrorCode, Refusal};
use tokio::sync::oneshot::Receiver;

/// The cache may evict the user between the load and the decision; seldom twice.
const LOADS_MAX: usize = 4;
/// Loads of user context that run at once, each on a thread that may block. There are fewer than blocking threads, so
/// that history and resumes can be read meanwhile; further loads wait, at most one for each open connection or request.
pub const CONCURRENT_CONTEXT_READS_MAX: usize = 16;

/// A decision that is final and, if it must be, durable.
#[derive(Debug)]
pub struct PopupDecision {
    pub exposure: Option<Exposure>,
    /// If nothing is shown: after how many milliseconds to ask again.
    pub retry_after_ms: Option<u64>,
}

/// The next step towards the final decision.
enum Step {
    Load(MissingContext),
    /// The decision, and what tells when its exposure is durable, if that must be waited for.
    Finish(PopupDecision, Option<Receiver<Result<(), Refusal>>>),
}

impl PopupService {
    /// Decides which popup to show. Waits for a blocking thread only if something must be read from the store, and for
    /// durability only if the exposure must be durable first.
    ///
    /// # Errors
    /// The question is malformed (`invalid_field`), another node leads (`node_unavailable`), exposures cannot be stored
    /// (`queue_full`, `store_unavailable`), the store cannot be read, or the server is stopping (`draining`). A refused
    /// question shows and counts nothing, except where a strict popup's exposure could not be stored: it is counted,
    /// since it may be stored later.
    pub async fn decide(self: &Arc<Self>, question: &Question<'_>) -> Result<PopupDecision, Refusal> {
        let mut context = None;
        let mut may_be_cached = true;
        for _ in 0..=LOADS_MAX {
            match self.step(question, context.as_ref())? {
                Step::Load(missing) => {
                    // A cached context that was not enough the first time is not tried again.
                    let cached = if std::mem::take(&mut may_be_cached) {
                        self.cached_context(question.user, missing)
                    } else {
                        None
                    };
                    context = Some(match cached {
                        Some(context) => context,
                        None => self.load_off_thread(question.user.to_owned(), missing).await?,
                    });
                }
                Step::Finish(decision, durable) => {
                    if let Some(durable) = durable {
                        durable.await.unwrap_or_else(|_| Err(self.worker_gone()))?;
                    }
                    return Ok(decision);
                }
            }
        }
        Err(evicted())
    }

    async fn load_off_thread(self: &Arc<Self>, user: String, missing: MissingContext) -> Result<UserContext, Refusal> {
        let internal = |error: &dyn std::fmt::Display| Refusal::new(ErrorCode::Internal, error.to_string());
        let _permit = self.context_reads.acquire().await.map_err(|closed| internal(&closed))?;
        let service = self.clone();
        let loaded = tokio::task::spawn_blocking(move || service.load_user_context(&user, missing));
        loaded.await.map_err(|error| internal(&error))?
    }

    /// [`PopupService::decide`] for a thread that may block.
    ///
    /// # Errors
    /// The same.
    pub fn decide_blocking(&self, question: &Question<'_>) -> Result<PopupDecision, Refusal> {
        let mut context = None;
        for _ in 0..=LOADS_MAX {
            match self.step(question, context.as_ref())? {
                Step::Load(missing) => context = Some(self.load_user_context(question.user, missing)?),
                Step::Finish(decision, durable) => {
                    if let Some(durable) = durable {
                        durable.blocking_recv().unwrap_or_else(|_| Err(self.worker_gone()))?;
                    }
                    return Ok(decision);
                }
            }
        }
        Err(evicted())
    }

    fn step(&self, question: &Question<'_>, context: Option<&UserContext>) -> Result<Step, Refusal> {
        Ok(match self.try_decide(question, context)? {
            DecisionAttempt::MissingContext(missing) => Step::Load(missing),
            DecisionAttempt::Nothing { retry_after_ms } => {
                Step::Finish(PopupDecision { exposure: None, retry_after_ms }, None)
            }
            DecisionAttempt::Show(mut exposure) => {
                let durable = exposure.durable.take();
                Step::Finish(PopupDecision { exposure: Some(exposure), retry_after_ms: None }, durable)
            }
        })
    }
}

/// Questions about so many other users came in that the cache evicted this one each time.
fn evicted() -> Refusal {
    let why = "too many users are asked about at once: popups.users_max is too small for them";
    Refusal::new(ErrorCode::QueueFull, why).retry_after(1_000)
}
