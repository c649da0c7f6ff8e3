//! `bench crash`: kill the server at random moments under load, and prove that nothing acknowledged was lost.
//!
//! The load clients of every other load with messages send and receive meanwhile: they repeat what was not answered, and the newest of
//! what was, with the same `client_msg_id`, and hold every entry that a receiver gets, live or after a kill, to what was sent and
//! acknowledged. At the end each conversation is read back whole and compared with their counts ([`timelines`]). With `--mix` the
//! members online change messages meanwhile.

pub(crate) mod kills;
mod timelines;

use crate::{
    LabError, live,
    message_clients::{GroupSpec, MessageClients, PairSpec},
    mix::share::MixShare,
    options::{SendProtocol, TargetArgs},
    result::{Check, RunResult},
    server::{OwnServer, Target},
    timeline::read_timeline,
    worker_protocol::{LoadModel, Outcome},
};
use clap::Args;
use kills::Kills;
use serde_json::json;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;
use timelines::Timelines;

#[derive(Debug, Clone, Args)]
pub struct CrashArgs {
    #[arg(long, default_value_t = 50)]
    pub kills: usize,
    /// Conversations under load: groups and, as many, direct ones
    #[arg(long, default_value_t = 6)]
    pub conversations: usize,
    /// The members of the groups edit, recall, react and read: this share of all operations, such as 20%
    #[arg(long, default_value = "0", value_name = "PERCENT")]
    pub mix: MixShare,
    /// Repeats an earlier run's moments
    #[arg(long)]
    pub seed: Option<u64>,
}

/// Members of a group, all of them online, and the connections that send to it: commits of one conversation compete.
const MEMBERS: usize = 6;
const SENDERS: usize = 4;
/// Unanswered sends of a session, so that a kill finds several; and messages between send and last receiver.
const PIPELINE: usize = 16;
const WINDOW: usize = 64;
const BODY_BYTES: usize = 40;
/// Longer than any run: the load is stopped after the last kill.
const LOAD_DURATION: Duration = Duration::from_secs(24 * 3600);
/// Without a delivery or an answer for so long after the last kill, what is missing counts as lost.
const PATIENCE: Duration = Duration::from_secs(30);
/// By then clients have opened their connections again, after which the random part of a server's life begins.
const CLIENTS_BACK: Duration = Duration::from_millis(120);

pub(crate) fn run(args: &CrashArgs) -> Result<RunResult, LabError> {
    if args.conversations < 2 {
        return Err(LabError::Usage("--conversations must be at least 2".into()));
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut server = OwnServer::start()?;
    let mut clients = open_clients(args, &server)?;
    let started = Instant::now();
    let outcomes = load_and_kill(args, seed, &mut server, &mut clients)?;
    let seconds = started.elapsed().as_secs_f64();

    let mut http = HttpClient::new(server.address, server.api_key.clone());
    let mut timelines = Timelines::default();
    for ((_, clients), outcome) in clients.iter().zip(&outcomes) {
        let ids = clients.conversations.iter().map(|conversation| &conversation.id);
        let read = ids.map(|id| Ok((id.as_str(), read_timeline(&mut http, id)?)));
        timelines.compare(&read.collect::<Result<Vec<_>, LabError>>()?, outcome.committed);
    }
    drop((http, clients));
    server.stop()?;
    let check = server.check()?;
    let mut result = RunResult::of("crash");
    let mut parts = Vec::new();
    for outcome in &outcomes {
        let measured = outcome.measured(&outcome.title);
        let answers = Check::of_server("answers", "no send is refused for good", outcome.refused == 0);
        let measured = measured.check(answers.value(format!("refused {}", outcome.refused)));
        // That connections break is what a kill is about.
        parts.push(result.record(if outcome.balances() { measured.hide_problems() } else { measured }));
    }
    result.measure_whole(timelines.measured(&format!("{} kills in {seconds:.1} s", args.kills)));
    result.set_all(json!({
        "kills": args.kills, "seed": seed, "seconds": seconds, "mix_share": args.mix.to_string(), "outcomes": parts,
    }));
    result.store_check(Some(check));
    Ok(result)
}

/// A load client for each group, by HTTP and WebSocket in turn, and one for all direct conversations.
fn open_clients(args: &CrashArgs, server: &OwnServer) -> Result<Vec<(String, MessageClients)>, LabError> {
    // It comes back at its address.
    let target = Target::Running {
        addresses: vec![server.address],
        api_key: server.api_key.clone(),
        token_key: server.token_key.clone(),
    };
    // Nothing is measured in time.
    let load = TargetArgs { patience: PATIENCE, lag_max: Duration::MAX, ..TargetArgs::default() };
    let mut clients = Vec::new();
    for number in 0..args.conversations.div_ceil(2) {
        let via = [SendProtocol::Http, SendProtocol::Ws][number % 2];
        let spec = GroupSpec { via, mix: args.mix, server_returns: true, ..GroupSpec::of(MEMBERS, MEMBERS, SENDERS) };
        clients.push((format!("group {number} over {via}"), MessageClients::group(&target, &load, &spec)?));
    }
    let pairs = args.conversations / 2;
    let spec = PairSpec { via: SendProtocol::Ws, server_returns: true, ..PairSpec::of(pairs, pairs) };
    clients.push((format!("{pairs} direct conversations"), MessageClients::pairs(&target, &load, &spec)?));
    Ok(clients)
}

/// Has all clients send until the last kill is over, and waits for what is still due to them.
fn load_and_kill(
    args: &CrashArgs,
    seed: u64,
    server: &mut OwnServer,
    clients: &mut [(String, MessageClients)],
) -> Result<Vec<Outcome>, LabError> {
    let stop = AtomicBool::new(false);
    let model = LoadModel::ClosedLoop { window: WINDOW, duration_ms: LOAD_DURATION.as_millis() as u64 };
    std::thread::scope(|scope| {
        let mut running = Vec::new();
        for (title, clients) in clients {
            let phase = clients.phase(model.clone(), BODY_BYTES, 1, PIPELINE);
            let stop = &stop;
            running.push(scope.spawn(move || {
                clients.load.start_phase(live::shown(phase))?;
                clients.load.finish_phase_with(title, |_| stop.load(Ordering::Relaxed))
            }));
        }
        let killed = Kills::new(args.kills, seed, CLIENTS_BACK).run(server, |_, _, _| Ok(()));
        // Clients must also end when a start failed, since no server answers them then.
        stop.store(true, Ordering::Relaxed);
        let ended = running.into_iter().map(|client| {
            client.join().unwrap_or_else(|_| Err(LabError::Worker("a load client's thread has panicked".into())))
        });
        let outcomes = ended.collect::<Result<_, _>>();
        killed.and(outcomes)
    })
}
