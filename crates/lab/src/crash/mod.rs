//! `bench crash`: kill the server at random moments under load, and prove that nothing acknowledged was lost.
//!
//! Every sender repeats an unanswered send with the same `client_msg_id` until it is answered. At the end each
//! conversation is read back whole and compared with the answers. With `--mix` a member of each conversation changes messages
//! meanwhile ([`mixer`]), whose view and history are compared with what was acknowledged ([`mix_history`]).

pub(crate) mod kills;
mod mix_history;
mod mixer;
mod senders;
mod verifier;

use crate::{
    LabError,
    latency::{Percentiles, new_histogram},
    mix::{counts::MixCounts, share::MixShare},
    result::RunResult,
    server::OwnServer,
    setup,
    timeline::read_timeline,
    worker_protocol::Conversation,
};
use clap::Args;
use kills::Kills;
use mixer::{Mixer, MixerConfig};
use senders::{SenderLog, ServerLocation, send_over_http, send_over_websocket};
use std::{collections::HashMap, time::Instant};
use tidings_client::http::HttpClient;
use verifier::CrashVerifier;

#[derive(Debug, Clone, Args)]
pub struct CrashArgs {
    #[arg(long, default_value_t = 50)]
    pub kills: usize,
    /// Conversations under load
    #[arg(long, default_value_t = 6)]
    pub conversations: usize,
    /// A member of each conversation edits, recalls, reacts and reads: this share of all operations, such as 20%
    #[arg(long, default_value = "0", value_name = "PERCENT")]
    pub mix: MixShare,
    /// Repeats an earlier run's moments
    #[arg(long)]
    pub seed: Option<u64>,
}

pub(crate) fn run(args: &CrashArgs) -> Result<RunResult, LabError> {
    if args.conversations < 2 {
        return Err(LabError::Usage("--conversations must be at least 2".into()));
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut server = OwnServer::start()?;
    let users = setup::numbered_ids("user", args.conversations);
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    setup::create_users(&mut http, &users)?;
    let mut bases = HashMap::new();
    for number in 0..args.conversations {
        let conversation = match number % 2 {
            0 => setup::create_group(&mut http, &format!("room-{number}"), &users)?,
            _ => {
                let peer = format!("peer-{number}");
                setup::create_users(&mut http, std::slice::from_ref(&peer))?;
                setup::create_direct(&mut http, &users[number], &peer)?
            }
        };
        bases.insert(number, conversation);
    }
    let location = ServerLocation::new(&server);
    let started = Instant::now();
    let (logs, mixers) = std::thread::scope(|scope| -> Result<Histories, LabError> {
        let mut senders = Vec::new();
        let mixers: Vec<_> = mixers(args, seed, &users, &bases)
            .into_iter()
            .map(|mixer| {
                let location = &location;
                scope.spawn(move || mixer.run(location))
            })
            .collect();
        for number in 0..args.conversations {
            let (location, user) = (&location, users[number].as_str());
            let conversation = bases[&number].id.as_str();
            // Two senders per conversation, so that commits of one conversation compete.
            for sender in 0..2 {
                let over_websocket = (number + sender) % 2 == 1;
                let name = format!("{number}-{sender}");
                senders.push(scope.spawn(move || {
                    let log = if over_websocket {
                        send_over_websocket(location, conversation, user, &name)
                    } else {
                        send_over_http(location, conversation, user, &name)
                    };
                    (number, log)
                }));
            }
        }
        let result = Kills::new(args.kills, seed).run(&mut server, |server, _, _| {
            location.set_address(server.address);
            Ok(())
        });
        // Senders must also end when a start failed, since no server answers them then.
        location.stop();
        let logs = senders.into_iter().filter_map(|sender| sender.join().ok()).collect();
        let mixers = mixers.into_iter().filter_map(|mixer| mixer.join().ok()).collect();
        result.map(|()| (logs, mixers))
    })?;
    let seconds = started.elapsed().as_secs_f64();

    let mut http = HttpClient::new(server.address, server.api_key.clone());
    let mut verifier = CrashVerifier::default();
    for number in 0..args.conversations {
        let conversation = &bases[&number];
        let entries = read_timeline(&mut http, &conversation.id)?;
        verifier.verify_conversation(
            &conversation.id,
            &entries,
            logs.iter().filter(|(n, _)| *n == number).map(|(_, log)| log),
        );
    }
    let mix = compare_mix(mixers, &mut http)?;
    drop(http);
    server.stop()?;
    let check = server.check()?;
    let mut result = RunResult::of("crash");
    result.measure_whole(verifier.measured(args.kills, seed, seconds));
    result.set("mix_share", args.mix.to_string());
    if let Some(mix) = &mix {
        result.record(mix.measured());
    }
    result.set("mix", mix);
    result.store_check(Some(check));
    Ok(result)
}

/// What each conversation's sender and each mixer did.
type Histories = (Vec<(usize, SenderLog)>, Vec<Mixer>);

/// A mixer for each conversation, as the user whose messages are sent there.
fn mixers(args: &CrashArgs, seed: u64, users: &[String], bases: &HashMap<usize, Conversation>) -> Vec<Mixer> {
    let config = |number: usize| MixerConfig {
        conversation: bases[&number].id.clone(),
        user: users[number].clone(),
        name: format!("mixer-{number}"),
        share: args.mix,
        seed: seed.wrapping_add(number as u64),
    };
    let count = if args.mix.is_on() { args.conversations } else { 0 };
    (0..count).map(|number| Mixer::new(config(number))).collect()
}

/// Compares what the server tells in the end with each mixer's operations, and adds up all counts.
fn compare_mix(mixers: Vec<Mixer>, http: &mut HttpClient) -> Result<Option<MixCounts>, LabError> {
    let (mut sum, mut latency) = (None, new_histogram());
    for mut mixer in mixers {
        let entries = read_timeline(http, &mixer.config.conversation)?;
        mixer.compare_history(&entries);
        mixer.compare_read_mark(http)?;
        // Both have the same bounds, so that they add up.
        let _ = latency.add(&mixer.acknowledged);
        sum.get_or_insert_with(MixCounts::default).add(&mixer.counts);
    }
    Ok(sum.map(|sum| MixCounts { acknowledged: Percentiles::of(&latency), ..sum }))
}
