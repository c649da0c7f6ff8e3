//! `bench direct`: durable direct messages, each to a connected recipient.

use crate::{
    LabError,
    load_client::{LoadClient, Participants},
    offline_push::{
        self, OfflinePush, OfflinePushArgs,
        hook_double::{HookDouble, HookMode},
    },
    options::{Rate, SendProtocol, TargetArgs, parse_duration},
    process,
    result::RunResult,
    server::{OwnServer, Target},
    setup,
    worker_protocol::{Content, Conversation, LoadModel, Phase, Receiver},
};
use clap::Args;
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct DirectArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, value_enum, default_value_t = SendProtocol::Http)]
    pub via: SendProtocol,
    /// Conversations, each with a sender and a connected recipient
    #[arg(long, default_value_t = 200)]
    pub pairs: usize,
    /// Of recipients. In place of one who is offline another session of the sender receives the message
    #[command(flatten)]
    pub offline: OfflinePushArgs,
    /// The server asks a hook of the lab's own
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "allows", conflicts_with_all = ["offline_share", "url"])]
    pub hook: Option<HookMode>,
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Messages a second (open loop), or `max` (closed loop)
    #[arg(long, default_value = "max")]
    pub rate: Rate,
    /// HTTP connections that send
    #[arg(long, default_value_t = 256)]
    pub connections: usize,
    /// Unanswered sends per session
    #[arg(long, default_value_t = 64)]
    pub pipeline: usize,
    #[arg(long, default_value_t = 200)]
    pub body_bytes: usize,
    #[arg(long, default_value_t = 1)]
    pub batch: usize,
    /// With `--rate max`: messages between send and recipient
    #[arg(long, default_value_t = 8000)]
    pub window: usize,
}

/// Pairs of users with a direct conversation each, on a server under test with a connected load client.
pub(crate) struct DirectFixture {
    pub(crate) load: LoadClient,
    senders: Vec<String>,
    /// The conversations whose recipients are offline, with those.
    offline: Vec<(Conversation, String)>,
}

/// How many pairs there are, and of how many the recipient is offline.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pairs {
    pub(crate) count: usize,
    pub(crate) offline: usize,
}

impl DirectFixture {
    pub(crate) fn set_up(
        target: &Target,
        args: &TargetArgs,
        pairs: Pairs,
        via: SendProtocol,
        connections: usize,
    ) -> Result<Self, LabError> {
        DirectFixture::with_participants(target, args, pairs, (via, connections), Participants::default())
    }

    /// Counts what recipients who are offline are told.
    pub(crate) fn watch(&self, target: &Target, push: &OfflinePush) -> Result<(), LabError> {
        let mut http = target.http();
        for (conversation, recipient) in &self.offline {
            push.watch(&mut http, conversation, std::slice::from_ref(recipient))?;
        }
        Ok(())
    }

    /// For a flood beside which another load client measures: one that kept to the same core would delay it.
    pub(crate) fn set_up_flood(
        target: &Target,
        args: &TargetArgs,
        pairs: Pairs,
        via: SendProtocol,
        connections: usize,
    ) -> Result<Self, LabError> {
        let participants = Participants { low_priority: true, ..Participants::default() };
        DirectFixture::with_participants(target, args, pairs, (via, connections), participants)
    }

    fn with_participants(
        target: &Target,
        args: &TargetArgs,
        Pairs { count: pairs, offline: offline_count }: Pairs,
        (via, connections): (SendProtocol, usize),
        mut participants: Participants,
    ) -> Result<Self, LabError> {
        let tag = process::run_tag();
        let mut http = target.http();
        let senders = setup::numbered_ids(&format!("{tag}-a"), pairs);
        let recipients = setup::numbered_ids(&format!("{tag}-b"), pairs);
        setup::create_users(&mut http, &senders)?;
        setup::create_users(&mut http, &recipients)?;
        let mut offline = Vec::new();
        for (number, (sender, recipient)) in senders.iter().zip(&recipients).enumerate() {
            let conversation = setup::create_direct(&mut http, sender, recipient)?;
            let is_offline = setup::is_among(number, offline_count, pairs);
            let user = if is_offline { sender } else { recipient };
            participants.receivers.push(Receiver { user: user.clone(), conversation: number });
            if is_offline {
                offline.push((conversation.clone(), recipient.clone()));
            }
            participants.conversations.push(conversation);
        }
        match via {
            SendProtocol::Http => participants.http_senders = connections,
            SendProtocol::Ws => participants.ws_senders = senders.clone(),
        }
        Ok(DirectFixture { load: LoadClient::open(target, args, participants)?, senders, offline })
    }

    pub(crate) fn phase(&self, model: LoadModel, body_bytes: usize, batch: usize, pipeline: usize) -> Phase {
        Phase {
            retry: matches!(model, LoadModel::ClosedLoop { .. }),
            model,
            content: Content::Generated { body_bytes, senders: self.senders.clone() },
            batch,
            pipeline,
            tell_series: false,
        }
    }
}

pub(crate) fn run(args: &DirectArgs) -> Result<RunResult, LabError> {
    if args.pairs == 0 || args.connections == 0 || args.pipeline == 0 || args.batch == 0 {
        return Err(LabError::Usage("--pairs, --connections, --pipeline and --batch must be at least 1".into()));
    }
    let pairs = Pairs { count: args.pairs, offline: args.offline.offline_of(args.pairs)? };
    let hook = args.hook.map(HookDouble::start).transpose()?;
    let (target, push) = match &hook {
        Some(hook) => (Target::Own(Box::new(OwnServer::start_with(hook.settings(), None)?)), None),
        None => args.offline.start(&args.target)?,
    };
    let mut direct_fixture = DirectFixture::set_up(&target, &args.target, pairs, args.via, args.connections)?;
    if let Some(push) = &push {
        direct_fixture.watch(&target, push)?;
    }
    let duration_ms = args.duration.as_millis() as u64;
    let model = match args.rate {
        Rate::Max => LoadModel::ClosedLoop { window: args.window, duration_ms },
        Rate::PerSecond(per_second) => LoadModel::OpenLoop { per_second, duration_ms },
    };
    let phase = direct_fixture.phase(model, args.body_bytes, args.batch, args.pipeline);
    let title = format!("direct messages between {} pairs over {}, {}", args.pairs, args.via, args.rate);
    let asked = match args.hook {
        None => "",
        Some(HookMode::Allows) => ", each asked of a hook",
        Some(HookMode::Hangs) => ", beside a group of which a hook is asked that hangs",
    };
    let title = title + &args.offline.suffix() + asked;
    let flood = hook.as_ref().map(|hook| hook.flood(&target)).transpose()?;
    let outcome = direct_fixture.load.run(&title, phase)?;
    drop(flood);
    let mut result = RunResult::of("direct");
    result.set("via", args.via.to_string());
    result.set("pairs", args.pairs);
    result.measure("outcome", outcome.measured(&title));
    // Sessions stay until all are told: without one a recipient is told of what came last.
    offline_push::conclude(push.as_ref(), &target, args.target.patience, &mut result)?;
    drop(direct_fixture);
    result.store_check(target.finish()?);
    Ok(result)
}
