//! `bench replay`: a recorded chat in one room, sent by its real authors in its real order.
//!
//! Made for the #ubuntu log of the irc-disentanglement corpus (Kummerfeld et al., ACL 2019; CC BY 4.0), whose
//! names and texts hold quotes, markup, control characters and broken encodings that a server must deliver unchanged.

use crate::{
    LabError, corpus,
    mix::share::MixShare,
    offline_push::OfflinePushArgs,
    options::{Rate, TargetArgs, value_name},
    result::RunResult,
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::json;
use std::path::PathBuf;
use tidings_protocol::limits::SEND_BATCH_MAX;

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

/// What it is, before the options.
const SCENARIO: &str = r#"
name = "replay"
about = "A recorded chat, sent by its authors in its order."

[population.chat]
kind = "chat"
file = ""

[[phase]]
name = "replay"
[[phase.work]]
name = ""
population = "chat"
replay = "max"
"#;

pub(crate) fn run(args: &ReplayArgs) -> Result<RunResult, LabError> {
    if !(1..=SEND_BATCH_MAX).contains(&args.batch) || args.online == 0 {
        return Err(LabError::Usage(format!("--batch must be 1 to {SEND_BATCH_MAX}, --online at least 1")));
    }
    let corpus = corpus::read(&args.file, args.limit)?;
    let (messages, authors) = (corpus.messages.len(), corpus.authors.len());
    let online = match args.offline.offline_of(authors)? {
        0 => args.online,
        offline => authors - offline,
    };
    let title = format!(
        "replay of {messages} messages by {} authors, {online} online{}{}",
        authors.max(online),
        args.offline.suffix(),
        args.mix.suffix()
    );
    let (share, via) = (args.offline.offline_share, args.offline.offline_via);
    let mut scenario = OverriddenScenario::of("replay", SCENARIO)?;
    scenario
        .set("population.chat.file", args.file.display().to_string())?
        .set_if("population.chat.limit", args.limit.map(|limit| limit as i64))?
        .set_if("population.chat.online", share.is_none().then_some(online as i64))?
        .set_if("population.chat.offline_share", share)?
        .set("population.chat.mix", args.mix.to_string())?
        .set_if("server.offline_via", share.map(|_| value_name(&via)))?
        .set("phase.0.work.0.replay", args.speed)?
        .set("phase.0.work.0.window", args.window as i64)?
        .set("phase.0.work.0.batch", args.batch as i64)?
        .set("phase.0.name", title)?;
    let (mut result, phases) = scenario::run_command(&scenario, &args.target)?.of_command("replay");
    result.set_all(json!({
        "messages": messages, "authors": authors, "online": online, "mix_share": args.mix.to_string(),
        "outcome": phases[0]["works"][0],
    }));
    Ok(result)
}
