//! Answers requests of the fast path, here or by the leader, and knows who calls on a connection.

use super::head::FrequentRequest;
use crate::{
    Api,
    api_keys::{
        permissions::{self, OperationName},
        shows_stored_key,
    },
    extract::parse,
    forward::does_not_lead,
    internal, needs_key,
    pipelines::{Operation, Request, response::Response},
    request_service::{catch_panic, panic_text},
    routes::accept_push,
};
use axum::http::StatusCode;
use std::{ops::Range, panic::AssertUnwindSafe};
use tidings_domain::model::Actor;
use tidings_engine::{
    access,
    engine::popup_questions::{PopupAnswer, PopupCaller},
};
use tidings_listen::{ConnectionActivity, ThrottleKey};
use tidings_protocol::{
    error::Refusal,
    http::{PopupEvents, PopupEventsAccepted, PushAnswer},
};

impl Operation {
    /// Its name in the description.
    fn name(self) -> OperationName<'static> {
        match self {
            Operation::Decide => permissions::DECIDE,
            Operation::Report => permissions::REPORT,
            Operation::Push => permissions::PUSH,
        }
    }

    /// Checks what the caller's token allows.
    fn check(self, caller: &access::Caller) -> Result<(), Refusal> {
        match (self, &caller.actor) {
            (Operation::Decide, _) => caller.scopes.check(access::Operation::AskForPopup),
            (Operation::Report, _) => caller.scopes.check(access::Operation::ReportPopupEvents),
            (Operation::Push, Actor::App) => Ok(()),
            (Operation::Push, Actor::User(_)) => Err(needs_key()),
        }
    }
}

/// A complete request in the bytes that were read.
pub(super) struct WholeRequest {
    pub(super) operation: Operation,
    credential: Option<Range<usize>>,
    pub(super) body: Range<usize>,
}

impl WholeRequest {
    /// A request that begins at `start`.
    pub(super) fn at(start: usize, request: FrequentRequest) -> Self {
        let here = |part: Range<usize>| start + part.start..start + part.end;
        let FrequentRequest { operation, body, credential, .. } = request;
        WholeRequest { operation, credential: credential.map(here), body: here(body) }
    }

    fn credential<'a>(&self, read: &'a [u8]) -> Option<&'a [u8]> {
        self.credential.clone().map(|credential| &read[credential])
    }

    pub(super) fn has_stored_key(&self, read: &[u8]) -> bool {
        self.credential(read).is_some_and(shows_stored_key)
    }
}

pub(super) enum Answer {
    Decided(PopupAnswer),
    Reported(PopupEventsAccepted),
    Pushed(StatusCode, PushAnswer),
    FromLeader(Response),
}

/// Who calls on one connection.
pub(super) struct Callers<'a> {
    api: &'a Api,
    throttle_key: ThrottleKey,
    activity: &'a ConnectionActivity,
    /// The `Authorization` header of the last request, if it shows an API key of the settings: no other credential is sure to be good for the
    /// next request.
    cached: Option<Vec<u8>>,
}

impl<'a> Callers<'a> {
    pub(super) fn new(api: &'a Api, throttle_key: ThrottleKey, activity: &'a ConnectionActivity) -> Self {
        Callers { api, throttle_key, activity, cached: None }
    }

    /// The caller of a request whose credential passes this check. Failures are counted by the client's address.
    fn check(
        &mut self,
        credential: Option<&[u8]>,
        check: impl FnOnce() -> Result<Actor, Refusal>,
    ) -> Result<Actor, Refusal> {
        if credential.is_some() && self.cached.as_deref() == credential {
            return Ok(Actor::App);
        }
        self.api.check_throttle(self.throttle_key, credential)?;
        let actor = check().map_err(|refusal| match credential {
            Some(_) => self.api.count_if_auth_failure(self.throttle_key, refusal),
            None => refusal,
        })?;
        let cached = credential.filter(|credential| self.api.is_configured_key(credential));
        self.cached = cached.map(<[u8]>::to_owned);
        Ok(actor)
    }

    /// The caller, who may do what is asked.
    fn authenticate(&mut self, read: &[u8], request: &WholeRequest) -> Result<Actor, Refusal> {
        let (api, activity, operation) = (self.api, self.activity, request.operation);
        let credential = request.credential(read);
        self.check(credential, || {
            let found = api.authenticate_header(credential, operation.name(), Some(activity))?;
            operation.check(&found)?;
            Ok(found.actor)
        })
    }

    pub(super) async fn answer(&mut self, read: &[u8], request: &WholeRequest) -> Result<Answer, Refusal> {
        let answered = catch_panic(async {
            let actor = self.authenticate(read, request)?;
            answer(self.api, &actor, request.operation, &read[request.body.clone()]).await
        });
        answered.await.unwrap_or_else(panicked)
    }

    /// Answers a request of another node, apart from the bytes that were read.
    pub(super) fn answer_forwarded(
        &mut self,
        read: &[u8],
        request: &WholeRequest,
    ) -> impl Future<Output = Result<Answer, Refusal>> + Send + use<'a> {
        let (api, operation) = (self.api, request.operation);
        let actor = std::panic::catch_unwind(AssertUnwindSafe(|| self.authenticate(read, request)));
        let body = read[request.body.clone()].to_owned();
        async move {
            let answered = catch_panic(async {
                let actor = actor.unwrap_or_else(|panic| panicked(panic_text(&*panic)))?;
                // A request is forwarded once.
                if api.is_led_by_another_node(operation.function()) {
                    return Err(does_not_lead());
                }
                answer(api, &actor, operation, &body).await
            });
            answered.await.unwrap_or_else(panicked)
        }
    }

    /// Has the leader answer a request. `None`: the library forwards it.
    pub(super) async fn ask_leader(&mut self, read: &[u8], request: &WholeRequest) -> Result<Option<Answer>, Refusal> {
        let (api, activity, operation) = (self.api, self.activity, request.operation);
        let answered = catch_panic(async {
            let credential = request.credential(read);
            self.check(credential, || api.check_credential(credential, Some(activity)))?;
            let (credential, body) = (credential.unwrap_or_default(), &read[request.body.clone()]);
            let response = api.ask_leader(&Request { operation, credential, body }).await?;
            Ok(response.map(Answer::FromLeader))
        });
        answered.await.unwrap_or_else(panicked)
    }
}

async fn answer(api: &Api, actor: &Actor, operation: Operation, body: &[u8]) -> Result<Answer, Refusal> {
    let caller = PopupCaller { actor, session: None };
    match operation {
        Operation::Decide => Ok(Answer::Decided(api.engine.answer_popup_question(caller, body).await?)),
        Operation::Report => {
            let PopupEvents { events } = parse(body)?;
            Ok(Answer::Reported(api.engine.report_popup_events(caller, events).await?))
        }
        Operation::Push => {
            // Boxed: its state is large, and no part of that of every connection.
            let (status, answer) = Box::pin(accept_push(api, parse(body)?)).await?;
            Ok(Answer::Pushed(status, answer))
        }
    }
}

fn panicked<T>(panic: String) -> Result<T, Refusal> {
    Err(internal(&format!("panic: {panic}")))
}
