//! `bench group`: one group with many members online.

use crate::{
    LabError,
    load_client::{LoadClient, Participants},
    mix::share::MixShare,
    offline_push::{self, OfflinePushArgs},
    options::{Rate, SendProtocol, TargetArgs, parse_duration},
    process,
    result::{Check, RunResult, Verdict},
    server::Target,
    setup,
    worker_protocol::{Content, Conversation, LoadModel, Outcome, Phase},
};
use clap::Args;
use serde_json::json;
use std::time::Duration;
use tidings_client::{ClientError, http::path_segment};
use tidings_protocol::{
    entry::Entry,
    error::ErrorCode,
    http::{ConversationKind, MessageReceipts},
};

#[derive(Debug, Clone, Args)]
pub struct GroupArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// Members online
    #[arg(long, default_value_t = 300)]
    pub members: usize,
    /// Members in all, the rest offline
    #[arg(long, conflicts_with = "offline_share")]
    pub group_size: Option<usize>,
    #[command(flatten)]
    pub offline: OfflinePushArgs,
    /// Messages a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "1000")]
    pub rate: Rate,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    /// HTTP connections that send, or sessions with `--via ws`
    #[arg(long, default_value_t = 32)]
    pub senders: usize,
    #[arg(long, value_enum, default_value_t = SendProtocol::Http)]
    pub via: SendProtocol,
    /// Unanswered sends per session
    #[arg(long, default_value_t = 64)]
    pub pipeline: usize,
    /// Messages in one HTTP request
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// With `--rate max`: messages between send and last receiver
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
    /// Every member online says once in this interval what it has stored and read; 1s without a value
    #[arg(long, value_name = "INTERVAL", num_args = 0..=1, default_missing_value = "1s", value_parser = parse_duration)]
    pub receipts: Option<Duration>,
    /// Find the highest rate whose 99th percentile is within `--target-ms`
    #[arg(long)]
    pub search: bool,
    #[arg(long, default_value_t = 500.0)]
    pub target_ms: f64,
}

/// A group on a server under test with a connected load client, as several benches need it.
pub(crate) struct GroupFixture {
    pub(crate) load: LoadClient,
    pub(crate) conversation: String,
    /// The conversation's last `seq` before the run.
    pub(crate) base_seq: u64,
    /// The members who are connected during the whole run and receive everything.
    pub(crate) online: Vec<String>,
    /// The members without a session.
    pub(crate) offline: Vec<String>,
    senders: Vec<String>,
    /// With several nodes, a send that one node refuses with a retryable code is sent to the next.
    has_several_nodes: bool,
}

/// The size of a group, and its senders.
#[derive(Debug, Clone)]
pub(crate) struct GroupSpec {
    pub(crate) members: usize,
    pub(crate) group_size: usize,
    pub(crate) senders: usize,
    pub(crate) via: SendProtocol,
    /// See [`Participants::low_priority`].
    pub(crate) low_priority: bool,
    pub(crate) mix: MixShare,
    /// See [`Participants::receipts_interval`].
    pub(crate) receipts_interval: Option<Duration>,
}

impl GroupFixture {
    /// Creates the users and the group, and connects the load client.
    pub(crate) fn set_up(target: &Target, args: &TargetArgs, spec: &GroupSpec) -> Result<Self, LabError> {
        GroupFixture::set_up_as(ConversationKind::Group, target, args, spec)
    }

    /// The same with a conversation of another kind, such as an official account.
    pub(crate) fn set_up_as(
        kind: ConversationKind,
        target: &Target,
        args: &TargetArgs,
        spec: &GroupSpec,
    ) -> Result<Self, LabError> {
        let tag = process::run_tag();
        let mut http = target.http();
        let mut members = setup::numbered_ids(&format!("{tag}-m"), spec.group_size.max(spec.members));
        // Sessions that send belong to members of their own: their deliveries are not part of the counts.
        let ws_senders = match spec.via {
            SendProtocol::Ws => setup::numbered_ids(&format!("{tag}-s"), spec.senders),
            SendProtocol::Http => Vec::new(),
        };
        let online = members[..spec.members].to_vec();
        members.splice(0..0, ws_senders.iter().cloned());
        members.truncate(spec.group_size.max(spec.members + ws_senders.len()));
        let offline = members.iter().filter(|member| !online.contains(member) && !ws_senders.contains(member));
        let offline = offline.cloned().collect();
        setup::create_users(&mut http, &members)?;
        let mut conversation = setup::create_conversation(&mut http, kind, &format!("group-{tag}"), &members)?;
        let http_senders = if spec.via == SendProtocol::Http { spec.senders } else { 0 };
        let senders = match spec.via {
            SendProtocol::Http => online.iter().take(spec.senders.max(1)).cloned().collect(),
            SendProtocol::Ws => ws_senders.clone(),
        };
        let mix = setup::prepare_mix(&mut http, &mut conversation, &online, spec.mix)?;
        let Conversation { id, base_seq } = conversation.clone();
        let participants = Participants {
            http_senders,
            ws_senders,
            low_priority: spec.low_priority,
            mix,
            receipts_interval: spec.receipts_interval,
            ..Participants::of_group(conversation, &online)
        };
        Ok(GroupFixture {
            load: LoadClient::open(target, args, participants)?,
            conversation: id,
            base_seq,
            online,
            offline,
            senders,
            has_several_nodes: target.addresses().len() > 1,
        })
    }

    /// The conversation as it was before the run.
    pub(crate) fn fresh_conversation(&self) -> Conversation {
        Conversation { id: self.conversation.clone(), base_seq: self.base_seq }
    }

    pub(crate) fn phase(&self, model: LoadModel, body_bytes: usize, batch: usize, pipeline: usize) -> Phase {
        Phase {
            // A closed loop retries refused sends; an open loop counts them as refused.
            retry: self.has_several_nodes
                || matches!(model, LoadModel::ClosedLoop { .. } | LoadModel::ClosedLoopOnce { .. }),
            model,
            content: Content::Generated { body_bytes, senders: self.senders.clone() },
            batch,
            pipeline,
            tell_series: false,
        }
    }
}

pub(crate) fn run(args: &GroupArgs) -> Result<RunResult, LabError> {
    if args.members == 0 || args.senders == 0 || args.batch == 0 || args.pipeline == 0 {
        return Err(LabError::Usage("--members, --senders, --batch and --pipeline must be at least 1".into()));
    }
    let offline = args.offline.offline_of(args.members)?;
    let (target, push) = args.offline.start(&args.target)?;
    let spec = GroupSpec {
        members: args.members - offline,
        group_size: args.group_size.unwrap_or(args.members),
        senders: args.senders,
        via: args.via,
        low_priority: false,
        mix: MixShare::default(),
        receipts_interval: args.receipts,
    };
    let mut fixture = GroupFixture::set_up(&target, &args.target, &spec)?;
    if let Some(push) = &push {
        push.watch(&mut target.http(), &fixture.fresh_conversation(), &fixture.offline)?;
    }
    let title = format!("group of {}, {} online, over {}", spec.group_size.max(spec.members), spec.members, args.via);
    let title = title + &args.offline.suffix();
    let mut result = RunResult::of("group");
    if args.search {
        search(args, &mut fixture, &title, &mut result)?;
    } else {
        let title = format!("{title}, {}", args.rate);
        let outcome = run_phase(args, &mut fixture, &title, args.rate, args.duration)?;
        result.measure("outcome", outcome.measured(&title));
    }
    if args.receipts.is_some() {
        check_receipts(&target, &fixture, &mut result)?;
    }
    offline_push::conclude(push.as_ref(), &target, args.target.patience, &mut result)?;
    drop(fixture);
    result.store_check(target.finish()?);
    result.set("members", spec.members);
    result.set("group_size", spec.group_size);
    Ok(result)
}

/// The receipts of the last message say that every member online has read it, but for its sender.
fn check_receipts(target: &Target, fixture: &GroupFixture, result: &mut RunResult) -> Result<(), LabError> {
    let mut http = target.http();
    let last_seq = http.conversation(&fixture.conversation)?.last_seq;
    let path = format!("/v1/conversations/{}/messages/{last_seq}", path_segment(&fixture.conversation));
    let last: Entry = http.get(&path)?;
    let told: MessageReceipts = match http.get(&format!("{path}/receipts")) {
        // Larger groups show none.
        Err(ClientError::Refused { problem, .. }) if problem.code == ErrorCode::Forbidden => return Ok(()),
        told => told?,
    };
    let readers = fixture.online.iter().filter(|member| last.from.as_ref() != Some(member)).count() as u64;
    let value = format!("delivered {}, read {} of {readers}", told.delivered, told.read);
    result.note("receipts", format!("of the last message: {value}"));
    let bound = "every member online has read the last message";
    result.check(Check::of_server("receipts", bound, told.read == readers && told.delivered >= readers).value(value));
    Ok(())
}

fn run_phase(
    args: &GroupArgs,
    fixture: &mut GroupFixture,
    title: &str,
    rate: Rate,
    duration: Duration,
) -> Result<Outcome, LabError> {
    let duration_ms = duration.as_millis() as u64;
    let model = match rate {
        Rate::Max => LoadModel::ClosedLoop { window: args.window, duration_ms },
        Rate::PerSecond(per_second) => LoadModel::OpenLoop { per_second, duration_ms },
    };
    let phase = fixture.phase(model, args.body_bytes, args.batch, args.pipeline);
    fixture.load.run(title, phase)
}

/// The longest duration of one trial of the search; the rate that it finds is then proved at full length.
const TRIAL_DURATION: Duration = Duration::from_secs(5);
/// The search ends when the lowest rate that missed the target is at most this factor above the highest that met it.
const SEARCH_PRECISION: f64 = 1.05;

/// Searches the saturation rate: doubles the rate until the latency target is missed, bisects, and proves the rate that it
/// found with a run of full length.
fn search(args: &GroupArgs, fixture: &mut GroupFixture, title: &str, result: &mut RunResult) -> Result<(), LabError> {
    let mut rate = match args.rate {
        Rate::PerSecond(rate) => rate,
        Rate::Max => 1000.0,
    };
    let mut trials = Vec::new();
    let mut met: Option<f64> = None;
    let mut missed: Option<f64> = None;
    let meets = |outcome: &Outcome| outcome.latency.p99 <= args.target_ms && outcome.refused == 0;
    loop {
        let outcome = run_phase(args, fixture, title, Rate::PerSecond(rate), args.duration.min(TRIAL_DURATION))?;
        // A trial that was cut short has not met the target.
        let ok = meets(&outcome) && !outcome.interrupted;
        println!(
            "  {:>9.0}/s  p99 {:>9.2} ms  max {:>9.2} ms  refused {}  client {:.0}%  {}",
            rate,
            outcome.latency.p99,
            outcome.latency.max,
            outcome.refused,
            100.0 * outcome.client_cpu_seconds / outcome.seconds,
            if ok { "met" } else { "missed" }
        );
        let measured = outcome.measured(title);
        // What a trial that must find the limit misses is its result. Only what must never happen fails the run.
        let figures = if outcome.balances() { measured.into_parts().0 } else { result.record(measured) };
        trials.push(json!({ "rate": rate, "met": ok, "outcome": figures }));
        if outcome.interrupted || !outcome.balances() {
            break;
        }
        if ok {
            met = Some(rate);
        } else {
            missed = Some(rate);
        }
        rate = match (met, missed) {
            (Some(met), None) => met * 2.0,
            (None, Some(missed)) if missed < 1.0 => break,
            (None, Some(missed)) => missed / 2.0,
            (Some(met), Some(missed)) if missed / met > SEARCH_PRECISION => (met * missed).sqrt(),
            _ => break,
        };
    }
    result.set("search", trials);
    result.set("target_ms", args.target_ms);
    // Long runs sustain less than short ones: lower the rate until a run of full length meets the target.
    let mut sustained = met.filter(|_| result.verdict() == Verdict::Passed);
    while let Some(rate) = sustained {
        let outcome = run_phase(args, fixture, title, Rate::PerSecond(rate), args.duration)?;
        if meets(&outcome) || !outcome.balances() || rate < 1.0 || outcome.interrupted {
            let title = format!("{title}, highest rate with p99 <= {} ms: {rate:.0}/s", args.target_ms);
            result.set("rate", rate);
            result.measure("outcome", outcome.measured(&title));
            break;
        }
        println!("  {rate:>9.0}/s  p99 {:>9.2} ms over {:.0} s  missed", outcome.latency.p99, outcome.seconds);
        sustained = Some(rate * 0.93);
    }
    Ok(())
}
