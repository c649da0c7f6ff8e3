//! `bench replay`: a recorded chat in one room, sent by its real authors in its real order.
//!
//! Made for the #ubuntu log of the irc-disentanglement corpus (Kummerfeld et al., ACL 2019; CC BY 4.0), whose
//! names and texts hold quotes, markup, control characters and broken encodings that a server must deliver unchanged.

use crate::{
    LabError, corpus,
    load_client::{LoadClient, Participants},
    mix::share::MixShare,
    offline_push::{self, OfflinePushArgs},
    options::{Rate, TargetArgs},
    process,
    result::{Check, RunResult},
    setup,
    worker_protocol::{Content, LoadModel, Phase},
};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use tidings_protocol::{http::UserUpsert, limits::SEND_BATCH_MAX};

#[derive(Debug, Clone, Args)]
pub struct ReplayArgs {
    #[command(flatten)]
    pub target: TargetArgs,
    /// JSON lines with `at`, `user` and `text`, possibly gzipped
    pub file: PathBuf,
    /// Members online; the other authors are offline members, and nobody is told of their messages
    #[arg(long, default_value_t = 300, conflicts_with = "offline_share")]
    pub online: usize,
    /// Of the authors, in place of --online
    #[command(flatten)]
    pub offline: OfflinePushArgs,
    /// So many times real time, or `max`
    #[arg(long, default_value = "max")]
    pub speed: Rate,
    /// Only the first so many messages
    #[arg(long)]
    pub limit: Option<usize>,
    /// Messages in one request
    #[arg(long, default_value_t = 200)]
    pub batch: usize,
    /// Messages between send and last receiver, at most
    #[arg(long, default_value_t = 1000)]
    pub window: usize,
    /// This share of all operations are edits, recalls, reactions and receipts of the members online, such as 5%
    #[arg(long, default_value = "0", value_name = "PERCENT")]
    pub mix: MixShare,
}

pub(crate) fn run(args: &ReplayArgs) -> Result<RunResult, LabError> {
    if !(1..=SEND_BATCH_MAX).contains(&args.batch) || args.online == 0 {
        return Err(LabError::Usage(format!("--batch must be 1 to {SEND_BATCH_MAX}, --online at least 1")));
    }
    let corpus = corpus::read(&args.file, args.limit)?;
    if corpus.messages.is_empty() {
        return Err(LabError::Usage(format!("{} holds no message", args.file.display())));
    }
    let wanted_online = match args.offline.offline_of(corpus.authors.len())? {
        0 => args.online,
        offline => corpus.authors.len() - offline,
    };
    let (target, push) = args.offline.start(&args.target)?;
    let mut http = target.http();
    let users: Vec<UserUpsert> = corpus
        .authors
        .iter()
        .map(|author| UserUpsert { id: author.id.clone(), name: Some(author.nick.clone()), ..UserUpsert::default() })
        .collect();
    let mut members: Vec<String> = corpus.authors.iter().map(|author| author.id.clone()).collect();
    // With fewer authors than members to be online, the rest are members who only read.
    let lurkers = setup::numbered_ids("lurker", wanted_online.saturating_sub(members.len()));
    members.extend(lurkers.iter().cloned());
    setup::upsert_users(&mut http, users)?;
    setup::create_users(&mut http, &lurkers)?;
    let mut conversation = setup::create_group(&mut http, &format!("replay-{}", process::run_tag()), &members)?;
    // Members online are chosen over the whole list, not only among those who wrote first.
    let is_online = |number: &usize| setup::is_among(*number, wanted_online, members.len());
    let (online, offline): (Vec<usize>, Vec<usize>) = (0..members.len()).partition(is_online);
    let [online, offline] =
        [online, offline].map(|numbers| numbers.iter().map(|n| members[*n].clone()).collect::<Vec<_>>());
    if let Some(push) = &push {
        push.watch(&mut http, &conversation, &offline)?;
    }
    let mix = setup::prepare_mix(&mut http, &mut conversation, &online, args.mix)?;
    // One connection with one request at a time: messages are sent in the recorded order.
    let participants = Participants { http_senders: 1, mix, ..Participants::of_group(conversation, &online) };
    let mut load = LoadClient::open(&target, &args.target, participants)?;
    let phase = Phase {
        model: match args.speed {
            Rate::Max => LoadModel::ClosedLoopOnce { window: args.window },
            Rate::PerSecond(speed) => LoadModel::Recorded { speed },
        },
        content: Content::Corpus { file: args.file.clone(), limit: args.limit },
        batch: args.batch,
        pipeline: 1,
        retry: true,
        tell_series: false,
    };
    let outcome = load.run("replay", phase)?;
    let mut result = RunResult::of("replay");
    let title = format!(
        "replay of {} messages by {} authors, {} online{}{}",
        corpus.messages.len(),
        members.len(),
        online.len(),
        args.offline.suffix(),
        args.mix.suffix()
    );
    let (committed, all) = (outcome.committed, corpus.messages.len() as u64);
    let whole = Check::of_server("answers", "every message of the chat is committed", committed == all);
    result.measure("outcome", outcome.measured(&title).check(whole.value(format!("{committed} of {all}"))));
    offline_push::conclude(push.as_ref(), &target, args.target.patience, &mut result)?;
    drop(load);
    result.store_check(target.finish()?);
    result.set_all(json!({
        "messages": corpus.messages.len(), "authors": corpus.authors.len(), "online": online.len(),
        "mix_share": args.mix.to_string(),
    }));
    Ok(result)
}
