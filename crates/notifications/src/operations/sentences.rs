//! Why a user was, or was not, notified of a message, in one sentence for a person who knows the app and not this server.

use crate::log::ANOTHER_POLICY;
use tidings_protocol::http::{Channel, NotificationOutcome, NotificationStep, PushProvider};

/// The sentence of the step that decided; `steps` are all of them, and `sent_at` is when the message was sent.
pub(crate) fn sentence(user: &str, step: &NotificationStep, steps: &[NotificationStep], sent_at: u64) -> String {
    let channel = channel_name(step.channel);
    let device = device_of(user, step);
    let at = step.at.map(|at| format!(" at {}", time(at))).unwrap_or_default();
    let cause = step.cause.as_ref().map(|cause| format!(": {cause}")).unwrap_or_default();
    // A recorded step has no end; while its reason still holds, the step of the present state has it.
    let same = |other: &&NotificationStep| other.outcome == step.outcome;
    let until = step.until.or_else(|| steps.iter().filter(same).find_map(|other| other.until));
    let until = until.map(|until| format!(" until {}", time(until))).unwrap_or_default();
    match step.outcome {
        NotificationOutcome::Sender => format!("{user} sent the message, and is not notified of it"),
        NotificationOutcome::NotAMember => format!("{user} is not a member of the conversation"),
        NotificationOutcome::JoinedLater => format!("{user} joined the conversation after the message was sent"),
        NotificationOutcome::Read => format!("{user} had read the message, so no notification was needed"),
        NotificationOutcome::Acknowledged => {
            let soon = step.at.map(|at| format!(" {} after it was sent", duration(at.saturating_sub(sent_at))));
            let app = match active_device(steps) {
                Some(device) => format!("the app of {user}, in use on {device},"),
                None => format!("the app of {user}"),
            };
            format!("{app} confirmed that it has the message{}", soon.unwrap_or_default())
        }
        NotificationOutcome::Active => {
            let on = step.device.as_deref().or_else(|| active_device(steps));
            let on = on.map(|device| format!(" on {device}")).unwrap_or_default();
            format!("{user} was using the app{on}{at}, so no notification was sent")
        }
        NotificationOutcome::Background => format!("the app of {user} is open in the background{}", on_device(step)),
        NotificationOutcome::Unacknowledged => {
            format!("the app of {user} was open but did not confirm the message in time, so notifications were due{at}")
        }
        NotificationOutcome::NotPushed => {
            "the message was sent as silent, or with skip_push, so nobody is notified of it".into()
        }
        NotificationOutcome::Recalled => "the message was recalled, so nobody is notified of it any more".into(),
        NotificationOutcome::Muted => format!("{user} had muted the conversation{until}, so no notification was sent"),
        NotificationOutcome::DoNotDisturb => {
            format!("{user} was not to be disturbed{until}, so no notification was sent")
        }
        NotificationOutcome::Snoozed => format!("{user} had snoozed notifications{until}, so no notification was sent"),
        NotificationOutcome::Suspended => format!("{user} is suspended{until}, so no notification was sent"),
        NotificationOutcome::Blocked => format!("{user} blocks the sender, so no notification was sent"),
        NotificationOutcome::ChannelOff => format!("{user} has turned {channel} off"),
        NotificationOutcome::OnlyMentions => {
            format!("{user} wants to be notified of mentions alone, and the message does not mention {user}")
        }
        NotificationOutcome::NoDevice if has_no_device(steps) => {
            format!("{user} has no device that notifications can be sent to: none has registered a push token")
        }
        NotificationOutcome::NoDevice if step.at.is_some() => {
            format!("{user} had no device{at} that a provider of the notification policy's channel reaches")
        }
        NotificationOutcome::NoDevice => format!("{user} has no device that {channel} reaches"),
        NotificationOutcome::NotSetUp if steps.iter().all(|step| step.outcome == NotificationOutcome::NotSetUp) => {
            "this server is not set up to notify users who are away".into()
        }
        NotificationOutcome::NotSetUp => format!("{channel} is not set up"),
        // Recorded by the plan of channels: the cause is the channel, and the end is when it is due.
        NotificationOutcome::Waiting if step.at.is_some() => {
            let by = step.cause.as_ref().map(|channel| format!(" by {channel}")).unwrap_or_default();
            let due = step.until.map(|due| format!(" at {}", time(due))).unwrap_or_default();
            format!("{user} is to be notified{by}{due}, unless something else reaches {user} before")
        }
        NotificationOutcome::Deferred => {
            let by = step.cause.as_deref().and_then(|cause| cause.split(": ").next());
            let by = by.map(|channel| format!(" by {channel}")).unwrap_or_default();
            let (why, due) = match step.cause.as_deref() {
                Some(cause) if cause.ends_with("snoozed") => ("has snoozed notifications", step.until),
                _ => ("is not to be disturbed", step.until),
            };
            let due = due.map(|due| format!(" until {}", time(due))).unwrap_or_default();
            format!("{user} {why}: the notification{by} is deferred{due}")
        }
        NotificationOutcome::Removed => {
            format!(
                "{channel} was asked{at} to take the notification on {device} away, since {user} has read the message"
            )
        }
        NotificationOutcome::ConditionFalse => {
            format!(
                "a condition of the notification policy did not hold for {user}{at}, so a channel was not taken{cause}"
            )
        }
        NotificationOutcome::NoRule if step.rule.is_some() => {
            let rule = step.rule.as_deref().unwrap_or_default();
            format!("the rule {rule:?} of the notification policy notifies {user} by live sessions alone{at}")
        }
        NotificationOutcome::NoRule => format!("no rule of the notification policy applied to {user}{at}"),
        NotificationOutcome::Cancelled
            if step.cause.as_deref().is_some_and(|cause| cause.ends_with(ANOTHER_POLICY)) =>
        {
            format!(
                "another notification policy held{at}, when {user} was to be notified by a channel of the one before"
            )
        }
        NotificationOutcome::Cancelled => {
            let by = step.cause.as_ref().map(|by| format!(" ({by})")).unwrap_or_default();
            format!("{user} was not notified once more{at}, since {user} had been reached in another way{by}")
        }
        NotificationOutcome::Waiting => {
            let before = last_failure(step, steps);
            let before = before.map(|cause| format!("; the attempt before failed: {cause}")).unwrap_or_default();
            format!("{channel} is still to take the notification for {device}{before}")
        }
        NotificationOutcome::Accepted => {
            let before = last_failure(step, steps);
            let before = before.map(|cause| format!(", after an attempt that failed ({cause})")).unwrap_or_default();
            format!("{channel} took the notification for {device}{at}{before}")
        }
        NotificationOutcome::Retried => {
            format!("{channel} did not take the notification for {device}{at} and is asked again{cause}")
        }
        NotificationOutcome::Replayed => {
            format!("the notification for {device} had been given up, and somebody asked{at} to have it sent again")
        }
        NotificationOutcome::Refused => format!("{channel} refused the notification for {device} for good{at}{cause}"),
        NotificationOutcome::TokenGone => format!(
            "{channel} said{at} that the push token of {device} is not valid any more; it was removed, and the app must \
             register a new one"
        ),
        NotificationOutcome::Superseded => {
            format!("a notification of a newer message took the place of this one on {device}{at}")
        }
        NotificationOutcome::Expired => {
            let last = last_failure(step, steps).map(|cause| format!("; the last attempt failed: {cause}"));
            format!(
                "the notification for {device} was given up{at}, since {channel} did not take it in time{}",
                last.unwrap_or_default()
            )
        }
        NotificationOutcome::NotRecorded => {
            format!("nothing is recorded of {user} and this message: it is too old, or its conversation too large")
        }
    }
}

fn channel_name(channel: Option<Channel>) -> &'static str {
    match channel {
        Some(Channel::Session) => "a session",
        Some(Channel::Apns) => "Apple's push service (APNs)",
        Some(Channel::Fcm) => "Firebase (FCM)",
        Some(Channel::WebPush) => "the browser's push service",
        Some(Channel::Huawei) => "Huawei Push Kit",
        Some(Channel::Webhook) => "your webhook",
        Some(Channel::DevicePush) => "a push to a device",
        Some(Channel::Popup) => "a popup",
        None => "offline push",
    }
}

fn device_of(user: &str, step: &NotificationStep) -> String {
    step.device.as_ref().map_or_else(|| user.to_owned(), |device| format!("{user}'s device {device}"))
}

fn on_device(step: &NotificationStep) -> String {
    step.device.as_ref().map(|device| format!(" on {device}")).unwrap_or_default()
}

/// The device at which somebody looks now.
fn active_device(steps: &[NotificationStep]) -> Option<&str> {
    let active = steps.iter().filter(|step| step.outcome == NotificationOutcome::Active);
    active.filter_map(|step| step.device.as_deref()).next()
}

/// Whether no provider has a token of the user's.
fn has_no_device(steps: &[NotificationStep]) -> bool {
    let has_none =
        |step: &NotificationStep| matches!(step.outcome, NotificationOutcome::NoDevice | NotificationOutcome::NotSetUp);
    let lacks = |provider: &PushProvider| {
        let channel = Some(Channel::from(*provider));
        steps.iter().any(|step| step.channel == channel && has_none(step))
    };
    PushProvider::ALL.iter().all(lacks)
}

/// Why the last attempt on the same channel and device failed.
fn last_failure<'a>(of: &NotificationStep, steps: &'a [NotificationStep]) -> Option<&'a str> {
    let is_same = |step: &&NotificationStep| (step.channel, &step.device) == (of.channel, &of.device);
    let failures = steps.iter().filter(is_same).filter(|step| step.outcome == NotificationOutcome::Retried);
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
