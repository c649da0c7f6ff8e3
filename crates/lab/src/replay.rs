//! `bench replay`: a recorded chat in one room, sent by its real authors in its real order.
//!
//! Made for the #ubuntu log of the irc-disentanglement corpus (Kummerfeld et al., ACL 2019; CC BY 4.0), whose
//! names and texts hold quotes, markup, control characters and broken encodings that a server must carry unchanged.

use crate::{
    LabError, Verdict,
    args::{Rate, ReplayArgs},
    corpus,
    job::{Content, Pace, Phase},
    load::{Crowd, Load},
    process,
    report::{self, outcome_json},
    server::Target,
    setup,
};
use serde_json::json;
use tidings_protocol::{http::UserUpsert, limits::SEND_BATCH_MAX};

pub(crate) fn run(args: &ReplayArgs) -> Result<Verdict, LabError> {
    if !(1..=SEND_BATCH_MAX).contains(&args.batch) || args.online == 0 {
        return Err(LabError::Usage(format!("--batch must be 1 to {SEND_BATCH_MAX}, --online at least 1")));
    }
    let corpus = corpus::read(&args.file, args.limit)?;
    if corpus.messages.is_empty() {
        return Err(LabError::Usage(format!("{} holds no message", args.file.display())));
    }
    let target = Target::find(&args.target)?;
    let mut http = target.http();
    let users: Vec<UserUpsert> = corpus
        .speakers
        .iter()
        .map(|speaker| UserUpsert { id: speaker.id.clone(), name: Some(speaker.nick.clone()), ..UserUpsert::default() })
        .collect();
    let mut members: Vec<String> = corpus.speakers.iter().map(|speaker| speaker.id.clone()).collect();
    // Fewer authors than should be online: readers who say nothing.
    let lurkers = setup::names("lurker", args.online.saturating_sub(members.len()));
    members.extend(lurkers.iter().cloned());
    setup::users(&mut http, users)?;
    setup::named_users(&mut http, &lurkers)?;
    let conversation = setup::group(&mut http, &format!("replay-{}", process::run_tag()), &members)?;
    // Spread over all authors, not those who spoke first.
    let step = members.len() / args.online;
    let online: Vec<String> = members.iter().step_by(step.max(1)).take(args.online).cloned().collect();
    // One connection, one request at a time: the order of speaking is the order of sending.
    let crowd = Crowd { http_senders: 1, ..Crowd::of_group(conversation, &online) };
    let mut load = Load::open(&target, &args.target, crowd)?;
    let phase = Phase {
        pace: match args.speed {
            Rate::Max => Pace::All { window: args.window },
            Rate::PerSecond(speed) => Pace::Recorded { speed },
        },
        content: Content::Corpus { file: args.file.clone(), limit: args.limit },
        batch: args.batch,
        pipeline: 1,
        retry: true,
    };
    let outcome = load.run("replay", phase)?;
    drop(load);
    let check = target.finish()?;
    report::print(
        &format!("replay of {} messages by {} authors, {} online", corpus.messages.len(), members.len(), online.len()),
        &outcome,
    );
    report::print_check(&check);
    let mut verdict = Verdict::of(&outcome);
    if outcome.committed != corpus.messages.len() as u64 || check.as_ref().is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    }
    let value = json!({
        "bench": "replay", "messages": corpus.messages.len(), "authors": corpus.speakers.len(),
        "online": online.len(), "outcome": outcome_json(&outcome), "check": check,
    });
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}
