//! Why a user was, or was not, told of a message, in one sentence for a person who knows the app and not this server.

use crate::reach_trace::ANOTHER_POLICY;
use tidings_protocol::http::{ReachOutcome, ReachRoad, ReachStep};

/// The sentence of the step that decided; `steps` are all of them, and `sent_at` is when the message was sent.
pub(super) fn sentence(user: &str, step: &ReachStep, steps: &[ReachStep], sent_at: u64) -> String {
    let road = road_name(step.road);
    let device = device_of(user, step);
    let at = step.at.map(|at| format!(" at {}", time(at))).unwrap_or_default();
    let cause = step.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
    // Of what was recorded the end is not, but as long as it holds the present state has it.
    let same = |other: &&ReachStep| other.outcome == step.outcome;
    let until = step.until.or_else(|| steps.iter().filter(same).find_map(|other| other.until));
    let until = until.map(|until| format!(" until {}", time(until))).unwrap_or_default();
    match step.outcome {
        ReachOutcome::Sender => format!("{user} sent the message, and is not notified of it"),
        ReachOutcome::NotAMember => format!("{user} is not a member of the conversation"),
        ReachOutcome::JoinedLater => format!("{user} joined the conversation after the message was sent"),
        ReachOutcome::Read => format!("{user} had read the message, so no notification was needed"),
        ReachOutcome::Acknowledged => {
            let soon = step.at.map(|at| format!(" {} after it was sent", duration(at.saturating_sub(sent_at))));
            let app = match active_device(steps) {
                Some(device) => format!("the app of {user}, in use on {device},"),
                None => format!("the app of {user}"),
            };
            format!("{app} confirmed that it has the message{}", soon.unwrap_or_default())
        }
        ReachOutcome::Active => {
            let on = step.device.as_deref().or_else(|| active_device(steps));
            let on = on.map(|device| format!(" on {device}")).unwrap_or_default();
            format!("{user} was using the app{on}{at}, so no notification was sent")
        }
        ReachOutcome::Background => format!("the app of {user} is open in the background{}", on_device(step)),
        ReachOutcome::Unacknowledged => {
            format!("the app of {user} was open but did not confirm the message in time, so notifications were due{at}")
        }
        ReachOutcome::NotPushed => {
            "the message was sent as silent, or with skip_push, so nobody is notified of it".into()
        }
        ReachOutcome::Recalled => "the message was recalled, so nobody is notified of it any more".into(),
        ReachOutcome::Muted => format!("{user} had muted the conversation{until}, so no notification was sent"),
        ReachOutcome::DoNotDisturb => format!("{user} was not to be disturbed{until}, so no notification was sent"),
        ReachOutcome::Snoozed => format!("{user} had snoozed notifications{until}, so no notification was sent"),
        ReachOutcome::RoadOff => format!("{user} has turned {road} off"),
        ReachOutcome::OnlyMentions => {
            format!("{user} wants to be told of mentions alone, and the message does not mention {user}")
        }
        ReachOutcome::NoDevice if has_no_device(steps) => {
            format!("{user} has no device that notifications can be sent to: none has registered a push token")
        }
        ReachOutcome::NoDevice => format!("{user} has no device that {road} reaches"),
        ReachOutcome::NotSetUp if steps.iter().all(|step| step.outcome == ReachOutcome::NotSetUp) => {
            "this server is not set up to notify users who are away".into()
        }
        ReachOutcome::NotSetUp => format!("{road} is not set up"),
        // Recorded by the plan of roads: the cause is the road, and the end is when it is due.
        ReachOutcome::Waiting if step.at.is_some() => {
            let by = step.cause.as_ref().map(|road| format!(" by {road}")).unwrap_or_default();
            let due = step.until.map(|due| format!(" at {}", time(due))).unwrap_or_default();
            format!("{user} is to be told{by}{due}, unless something else reaches {user} before")
        }
        ReachOutcome::Withdrawn => {
            format!("{road} was asked{at} to take the notification on {device} away, since {user} has read the message")
        }
        ReachOutcome::ConditionFalse => {
            format!("a condition of the reach policy did not hold for {user}{at}, so a road was not taken{cause}")
        }
        ReachOutcome::NoRule => format!("no rule of the reach policy applied to {user}{at}"),
        ReachOutcome::Cancelled if step.cause.as_deref().is_some_and(|cause| cause.ends_with(ANOTHER_POLICY)) => {
            format!("another reach policy held{at}, when {user} was to be told by a road of the one before")
        }
        ReachOutcome::Cancelled => {
            let by = step.cause.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
            format!("{user} was not told once more{at}, since {user} had been reached in another way{by}")
        }
        ReachOutcome::Waiting => {
            let before = last_failure(step, steps);
            let before = before.map(|cause| format!("; the attempt before failed: {cause}")).unwrap_or_default();
            format!("{road} is still to take the notification for {device}{before}")
        }
        ReachOutcome::Accepted => {
            let before = last_failure(step, steps);
            let before = before.map(|cause| format!(", after an attempt that failed ({cause})")).unwrap_or_default();
            format!("{road} took the notification for {device}{at}{before}")
        }
        ReachOutcome::Retried => {
            format!("{road} did not take the notification for {device}{at} and is asked again{cause}")
        }
        ReachOutcome::Replayed => {
            format!("the notification for {device} had been given up, and somebody asked{at} to have it sent again")
        }
        ReachOutcome::Refused => format!("{road} refused the notification for {device} for good{at}{cause}"),
        ReachOutcome::TokenGone => format!(
            "{road} said{at} that the push token of {device} is not valid any more; it was removed, and the app must \
             register a new one"
        ),
        ReachOutcome::Superseded => {
            format!("a notification of a newer message took the place of this one on {device}{at}")
        }
        ReachOutcome::Expired => {
            let last = last_failure(step, steps).map(|cause| format!("; the last attempt failed: {cause}"));
            format!(
                "the notification for {device} was given up{at}, since {road} did not take it in time{}",
                last.unwrap_or_default()
            )
        }
        ReachOutcome::NotRecorded => {
            format!("nothing is recorded of {user} and this message: it is too old, or its conversation too large")
        }
    }
}

fn road_name(road: Option<ReachRoad>) -> &'static str {
    match road {
        Some(ReachRoad::Session) => "a session",
        Some(ReachRoad::Apns) => "Apple's push service (APNs)",
        Some(ReachRoad::Fcm) => "Firebase (FCM)",
        Some(ReachRoad::WebPush) => "the browser's push service",
        Some(ReachRoad::Huawei) => "Huawei Push Kit",
        Some(ReachRoad::Webhook) => "your webhook",
        Some(ReachRoad::DevicePush) => "a push to a device",
        Some(ReachRoad::Popup) => "a popup",
        None => "offline push",
    }
}

fn device_of(user: &str, step: &ReachStep) -> String {
    step.device.as_ref().map_or_else(|| user.to_owned(), |device| format!("{user}'s device {device}"))
}

fn on_device(step: &ReachStep) -> String {
    step.device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default()
}

/// The device at which somebody looks now.
fn active_device(steps: &[ReachStep]) -> Option<&str> {
    let active = steps.iter().filter(|step| step.outcome == ReachOutcome::Active);
    active.filter_map(|step| step.device.as_deref()).next()
}

fn has_no_device(steps: &[ReachStep]) -> bool {
    let is_vendor = |step: &&ReachStep| {
        use ReachRoad::*;
        matches!(step.road, Some(Apns | Fcm | WebPush | Huawei))
    };
    let has_none = |step: &ReachStep| matches!(step.outcome, ReachOutcome::NoDevice | ReachOutcome::NotSetUp);
    steps.iter().filter(is_vendor).all(has_none)
}

/// Why the last attempt on the same road and device failed.
fn last_failure<'a>(of: &ReachStep, steps: &'a [ReachStep]) -> Option<&'a str> {
    let is_same = |step: &&ReachStep| (step.road, &step.device) == (of.road, &of.device);
    let failures = steps.iter().filter(is_same).filter(|step| step.outcome == ReachOutcome::Retried);
    failures.max_by_key(|step| step.at)?.cause.as_deref()
}

fn duration(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{ms} ms"),
        10_000..600_000 => format!("{} s", ms / 1_000),
        _ => format!("{} min", ms / 60_000),
    }
}

/// To the second, since people read it.
fn time(at: u64) -> String {
    let shown = jiff::Timestamp::from_millisecond(at as i64).map(|at| at.strftime("%Y-%m-%d %H:%M:%S UTC").to_string());
    shown.unwrap_or_else(|_| at.to_string())
}
