//! `bench notifications`: whether every message reaches every member by exactly the channels that an independent model says, once.
//!
//! ```text
//! participants ──▶ stage ──▶ rounds: some move; messages; some change attention or read; the server is killed, a provider goes away
//!                       │ sessions: clients           │ webhook and providers: fakes
//!                       └────────▶ records ◀──────────┘ ──▶ audit, message by message, against the model
//! ```
//! [`participants`] draws who takes part from a seed, [`stage`] creates them, [`clients`] holds the sessions, [`senders`] sends, [`records`] is
//! all that the lab saw, which [`recorder`] takes, [`model`] says what was due, [`audit`] and [`removals`] compare, [`balances`] is the result, and
//! [`planted_fault`] shows that it finds what is wrong.

mod audit;
mod balances;
mod client_session;
mod clients;
mod model;
mod participants;
mod planted_fault;
mod recorder;
mod records;
mod removals;
mod rounds;
mod senders;
mod stage;

pub use planted_fault::PlantedKind;

use crate::{
    LabError,
    offline_push::{fake_providers::FakeProviders, fake_webhook::FakeWebhook, notice::OfflineChannel},
    options::{LAG_MAX, parse_duration},
    process,
    result::{Check, Layout, Measurement, RunResult, filled},
    sampler::Sampler,
    server::{OwnServer, Target},
};
use audit::Auditor;
use balances::ChannelBalance;
use clap::Args;
use model::ChannelTimes;
use participants::{ParticipantCounts, Participants, Whereabouts, random_of};
use planted_fault::PlantedFault;
use recorder::Recorder;
use records::Arrival;
use rounds::Run;
use serde_json::{Value, json};
use std::{sync::Arc, time::Duration};

#[derive(Debug, Clone, Args)]
pub struct NotificationArgs {
    /// Users: a third look at their sessions, a third have one in the background, a third have none
    #[arg(long, default_value_t = 10_000)]
    pub users: usize,
    #[arg(long, default_value_t = 300)]
    pub group_size: usize,
    /// Messages a second, half of them to groups, half between two users
    #[arg(long, default_value_t = 40.0)]
    pub rate: f64,
    /// Between rounds some users come, go, or look elsewhere
    #[arg(long, default_value_t = 3)]
    pub rounds: usize,
    /// For how long messages are sent in a round
    #[arg(long, default_value = "6s", value_parser = parse_duration)]
    pub round: Duration,
    /// Kill the server (kill -9) so often while messages are sent, and start it again
    #[arg(long, value_name = "EVERY", value_parser = parse_duration)]
    pub kill: Option<Duration>,
    /// In each round one provider takes nothing for so long: it refuses, or does not answer
    #[arg(long, alias = "vendor-away", value_name = "TIME", value_parser = parse_duration)]
    pub provider_away: Option<Duration>,
    /// The webhook is notified so many seconds after a message, of those alone whom no provider has reached; the server is set to it. 0: at once,
    /// of all
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    pub webhook_after: u64,
    /// How long clients have to acknowledge a message; the server is set to it
    #[arg(long, default_value = "3s", value_parser = parse_duration)]
    pub ack_timeout: Duration,
    /// Without a delivery or a notice for so long, what is missing counts as lost
    #[arg(long, default_value = "20s", value_parser = parse_duration)]
    pub patience: Duration,
    /// Repeats an earlier run's participants, messages and changes
    #[arg(long)]
    pub seed: Option<u64>,
    /// The fakes report falsely now and then: the run must fail. Shows that faults of this kind are found
    #[arg(long, value_enum)]
    pub plant: Option<PlantedKind>,
}

impl NotificationArgs {
    /// The times that the server is set to.
    fn times(&self) -> ChannelTimes {
        let webhook_after_ns = Duration::from_secs(self.webhook_after).as_nanos() as u64;
        ChannelTimes { ack_timeout_ns: self.ack_timeout.as_nanos() as u64, webhook_after_ns }
    }
}

/// A provider that keeps a request waiting is given up after this.
const PROVIDER_TIMEOUT_MS: u64 = 2_000;
/// The longest wait between two attempts at a provider that is away.
const BACKOFF_MAX_MS: u64 = 2_000;

pub(crate) fn run(args: &NotificationArgs) -> Result<RunResult, LabError> {
    if args.users < 6 || args.group_size < 2 || args.rounds == 0 || args.rate <= 0.0 {
        return Err(LabError::Usage(
            "--users must be at least 6, --group-size 2, --rounds 1, and --rate above 0".into(),
        ));
    }
    if args.webhook_after > 0 && Duration::from_secs(args.webhook_after) <= args.ack_timeout {
        return Err(LabError::Usage("--webhook-after must be longer than --ack-timeout".into()));
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut random = random_of(seed);
    let size = ParticipantCounts { users: args.users, group_size: args.group_size };
    let participants = Arc::new(Participants::draw(&process::run_tag(), size, &mut random));
    let recorder = Arc::new(Recorder::new(participants.clone(), args.plant.map(PlantedFault::new)));
    let (webhook, providers) = (FakeWebhook::start(recorder.clone())?, FakeProviders::start(recorder.clone())?);
    let mut settings = [webhook.settings(), providers.settings()].concat();
    let of_notifications = [
        ("ACK_TIMEOUT_MS", args.ack_timeout.as_millis() as u64),
        ("WEBHOOK_AFTER_S", args.webhook_after),
        ("TIMEOUT_MS", PROVIDER_TIMEOUT_MS),
        ("BACKOFF_MIN_MS", 200),
        ("BACKOFF_MAX_MS", BACKOFF_MAX_MS),
    ];
    settings.extend(of_notifications.map(|(name, value)| (format!("TIDINGS_NOTIFICATIONS_{name}"), value.to_string())));
    let mut target = Target::Own(Box::new(OwnServer::start_with(settings, None)?));
    stage::set_up(&target, &participants, &providers)?;
    print_participants(&participants);
    let sampler = Sampler::start(target.pid().into(), Some(target.address()), Vec::new());
    let mut run = Run::begin(args, &target, &recorder, &providers)?;
    for round in 0..args.rounds {
        run.round(round, &mut target, &mut random)?;
    }
    let (ack_late, lateness) = run.finish()?;
    let (samples, ..) = sampler.finish();
    let records = recorder.records();
    let audit = Auditor::new(&participants, &records, args.times()).audit();
    let (messages, kills) = (records.messages.len() as u64, records.kills.len());
    drop(records);
    let server_counts = if kills == 0 { Some(ServerCounts::read(&target)?) } else { None };
    let check = target.finish()?;

    let mut result = RunResult::of("notifications");
    result.note("messages", format!("{messages}, kills {kills}, decided within {:.0} ms", audit.decided_within_ms));
    let session = &audit.session;
    let outcome = Measurement::of("sessions", session)
        .set("latency", session.delay)
        .set("delivered", session.notified)
        .set("expected", session.must)
        .set("planned", messages)
        .set("committed", messages)
        .set("seconds", args.round.as_secs_f64() * args.rounds as f64)
        .set("lateness", lateness)
        .set("samples", samples)
        .layout(&SESSIONS)
        .balance(session.balances());
    // A server that is away delays sends; that is no fault of the lab's.
    let outcome = if kills == 0 { outcome.punctual(&lateness, LAG_MAX.as_secs_f64() * 1e3) } else { outcome };
    let late_ms = ack_late.as_secs_f64() * 1e3;
    let bound = "acknowledges within half of the time that clients have";
    let acknowledges = Check::of_lab("the lab's own lag", bound, ack_late <= args.ack_timeout / 2);
    result.measure("outcome", outcome.check(acknowledges.value(format!("{late_ms:.0} ms late"))));
    let channels: Vec<Value> =
        audit.channels.iter().map(|channel| result.record_unprinted(measured_channel(channel))).collect();
    let lines = audit.channels.iter().map(|channel| (channel.channel.to_string(), filled(CHANNEL, channel)));
    let removed = audit.removed.iter().map(|removed| (removed.channel.to_string(), filled(REMOVED, removed)));
    result.lines("channels", lines.chain(removed).collect(), &audit.problems);
    for removed in &audit.removed {
        let bound = "what was read elsewhere is removed once, and nothing else";
        let check = Check::of_server("removals", bound, removed.balances());
        result.check(check.part(removed.channel.name()).value(filled(REMOVED, removed)));
    }
    let value = audit.problems.first().map_or("", |problem| problem);
    let problems = Check::of_server("audit", "nothing is out of place", audit.problems.is_empty());
    result.check(problems.value(value));
    if let Some(counts) = server_counts.filter(|_| args.plant.is_none()) {
        counts.record(&recorder, &mut result);
    }
    result.store_check(check);
    result.set_all(json!({
        "users": args.users, "seed": seed, "kills": kills, "channels": channels, "removed": audit.removed,
        "decided_within_ms": audit.decided_within_ms, "problems": audit.problems,
    }));
    Ok(result)
}

/// A channel as a part of the report.
fn measured_channel(balance: &ChannelBalance) -> Measurement {
    Measurement::of(&format!("notified by {}", balance.channel), balance)
        .set("latency", balance.delay)
        .set("delivered", balance.notified + balance.superseded)
        .set("expected", balance.must)
        .balance(balance.balances())
}

const SESSIONS: Layout = Layout {
    lines: &[(
        "sessions",
        "notified {notified} of {must}  lost {lost}  doubled {doubled}  out of order {out_of_order}  again {again}",
    )],
    percentiles: &[("delay", "delay"), ("client late", "lateness")],
};
const CHANNEL: &str = "notified {notified} of {must}  superseded {superseded}  lost {lost}  doubled {doubled}  unentitled {unentitled}  \
     overtaken {overtaken}  too early {too_early}  held up {held_up} of {at_risk}  perhaps {notified_perhaps}  again {again}  ms p50 \
     {delay.p50:0} p99 {delay.p99:0} p100 {delay.max:0}";
const REMOVED: &str = "removed {notified} of {must}  lost {lost}  doubled {doubled}  unentitled {unentitled}  perhaps {perhaps}  \
     again {again}";

fn print_participants(participants: &Participants) {
    let groups = participants.conversations.iter().filter(|conversation| conversation.is_group).count();
    let devices: usize = participants.users.iter().map(|user| user.devices.len()).sum();
    println!(
        "participants   {} users: {} look, {} in the background, {} away; {devices} devices; {groups} groups, {} pairs",
        participants.users.len(),
        participants.count(Whereabouts::Foreground),
        participants.count(Whereabouts::Background),
        participants.count(Whereabouts::Away),
        participants.conversations.len() - groups
    );
}

/// What the server counts of providers by itself.
struct ServerCounts {
    /// By provider: notifications that it says were accepted, removals, and attempts that it is to make again.
    counts: Vec<(OfflineChannel, [u64; 3])>,
}

impl ServerCounts {
    fn read(target: &Target) -> Result<ServerCounts, LabError> {
        let answer = target.http().exchange("GET", "/metrics", b"")?;
        let text = String::from_utf8_lossy(&answer.body).into_owned();
        let count = |channel: OfflineChannel, outcome: &str| {
            let is_of = |line: &&str| {
                line.starts_with("tidings_provider_notifications_total{")
                    && line.contains(&format!("provider=\"{channel}\""))
                    && line.contains(&format!("outcome=\"{outcome}\""))
            };
            let value = |line: &str| line.rsplit_once(' ')?.1.parse::<f64>().ok();
            text.lines().filter(is_of).filter_map(value).sum::<f64>() as u64
        };
        let of_channel = |channel: OfflineChannel| {
            (channel, ["accepted", "removed", "retried"].map(|outcome| count(channel, outcome)))
        };
        Ok(ServerCounts { counts: OfflineChannel::PROVIDERS.map(of_channel).to_vec() })
    }

    /// Providers must have taken what the server says that they took.
    fn record(&self, recorder: &Recorder, result: &mut RunResult) {
        let records = recorder.records();
        let count = |all: &[Arrival], channel: OfflineChannel| {
            all.iter().filter(|arrival| arrival.channel == channel).count() as u64
        };
        for (channel, [accepted, removed, retried]) in &self.counts {
            let (came, came_removed) = (count(&records.arrivals, *channel), count(&records.removals, *channel));
            // Of an attempt that ran out of time the server cannot know that the provider took it.
            let counted = accepted + removed;
            let is_whole = came >= *accepted && came_removed >= *removed && came + came_removed <= counted + retried;
            let value = format!(
                "the server counts {accepted} accepted and {removed} removed of {channel}, which took {came} and {came_removed}"
            );
            if !is_whole {
                result.problem(&*value);
            }
            let check = Check::of_server("the server's counts", "the server counts what the provider took", is_whole);
            result.check(check.part(channel.name()).value(value));
        }
    }
}
