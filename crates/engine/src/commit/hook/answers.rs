//! What the hook answers, and what that makes of a request.

use crate::{commit::CommitRequest, streams::GrowingBody};
use serde::Deserialize;
use serde_json::value::RawValue;
use tidings_domain::store::Proposal;
use tidings_protocol::{
    depth::check_depth,
    error::{ErrorCode, Refusal},
    limits::BODY_BYTES_MAX,
};

/// The longest code and text of a refusal, in bytes.
const CODE_BYTES_MAX: usize = 64;
const TEXT_BYTES_MAX: usize = 1_024;

/// The hook's answer to one question.
pub(super) enum Answer {
    Allow,
    /// The operation is done with another body.
    Replace(Box<RawValue>),
    /// The sender sees the message, and nobody else.
    Hide,
    Refuse {
        code: Option<String>,
        text: String,
    },
}

/// What an answer has made of a request.
pub(super) enum Applied {
    Allowed,
    Replaced,
    Hidden,
    Refused(Refusal),
}

#[derive(Deserialize)]
struct Answers {
    answers: Vec<RawAnswer>,
}

#[derive(Deserialize)]
struct RawAnswer {
    id: u64,
    action: String,
    body: Option<Box<RawValue>>,
    code: Option<String>,
    text: Option<String>,
}

/// The answers to these questions, in their order. An answer that makes no sense is the failure of its question alone.
///
/// # Errors
/// There is not one answer to each question.
pub(super) fn read(body: &[u8], questions: &[u64]) -> Result<Vec<Result<Answer, String>>, String> {
    let Answers { mut answers } =
        serde_json::from_slice(body).map_err(|error| format!("its answer is not what is asked for: {error}"))?;
    if answers.len() != questions.len() {
        return Err(format!("it gave {} answers to {} questions", answers.len(), questions.len()));
    }
    // Ids are given in order.
    answers.sort_by_key(|answer| answer.id);
    let mut places: Vec<usize> = (0..questions.len()).collect();
    places.sort_by_key(|place| questions[*place]);
    let mut read: Vec<Option<Result<Answer, String>>> = questions.iter().map(|_| None).collect();
    for (answer, place) in answers.into_iter().zip(places) {
        if answer.id != questions[place] {
            return Err(format!("it did not answer question {} once", questions[place]));
        }
        read[place] = Some(read_one(answer));
    }
    Ok(read.into_iter().flatten().collect())
}

fn read_one(answer: RawAnswer) -> Result<Answer, String> {
    let RawAnswer { action, body, code, text, .. } = answer;
    match (action.as_str(), body) {
        ("allow", _) => Ok(Answer::Allow),
        ("replace", Some(body)) => Ok(Answer::Replace(body)),
        ("replace", None) => Err("its answer replaces a body and has none".into()),
        ("hide", _) => Ok(Answer::Hide),
        ("refuse", _) => {
            let text = text.unwrap_or_default();
            let is_code = |code: &String| {
                !code.is_empty()
                    && code.len() <= CODE_BYTES_MAX
                    && code.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.'))
            };
            if code.as_ref().is_some_and(|code| !is_code(code)) || text.len() > TEXT_BYTES_MAX {
                return Err(format!(
                    "a refusal's code has at most {CODE_BYTES_MAX} letters, digits, _, - and ., and its text at most \
                     {TEXT_BYTES_MAX} bytes"
                ));
            }
            Ok(Answer::Refuse { code, text })
        }
        _ => Err(format!("{action:?} is not an action: allow, replace, refuse or hide")),
    }
}

/// Changes a request as the hook has answered.
///
/// # Errors
/// The answer does not fit the request, which is left as it was.
pub(super) fn apply(answer: Answer, request: &mut CommitRequest) -> Result<Applied, String> {
    match answer {
        Answer::Allow => Ok(Applied::Allowed),
        Answer::Replace(body) => replace(&body, request).map(|()| Applied::Replaced),
        Answer::Hide => hide(request).map(|()| Applied::Hidden),
        Answer::Refuse { code, text } => {
            let text = if text.is_empty() { "the app server refused this".into() } else { text };
            Ok(Applied::Refused(Refusal::new(ErrorCode::RefusedByHook, text).with_reason(code)))
        }
    }
}

/// Gives a message another body. It is held to the limits of one that is sent.
fn replace(body: &RawValue, request: &mut CommitRequest) -> Result<(), String> {
    let bytes = body.get().len();
    if bytes > BODY_BYTES_MAX {
        return Err(format!("it replaced a body by one of {bytes} bytes; at most {BODY_BYTES_MAX} are allowed"));
    }
    check_depth("body", body.get()).map_err(|refusal| refusal.detail)?;
    let (Proposal::Append { entry, .. } | Proposal::OpenDirect { entry, .. } | Proposal::ChangeMessage { entry, .. }) =
        &mut request.proposal
    else {
        return Err("it replaced the body of an operation that has none".into());
    };
    if let Some(stream) = &mut request.stream {
        stream.body = GrowingBody::parse(body.get()).map_err(|refusal| refusal.detail)?;
    }
    entry.body = body.get().into();
    Ok(())
}

/// Hides a message from all but its sender. What others see of one that grows they see before it is whole.
fn hide(request: &mut CommitRequest) -> Result<(), String> {
    match &mut request.proposal {
        Proposal::Append { entry, .. } | Proposal::OpenDirect { entry, .. } if request.stream.is_none() => {
            entry.details_mut().hidden = true;
            Ok(())
        }
        _ => Err("it hid an operation that is not the sending of a whole message".into()),
    }
}
