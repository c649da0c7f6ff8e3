//! `bench popup-crash`: kill the server at random moments under decisions and events. Every event that was answered with 202
//! must be stored once; a user who was shown a popup longer than the bound before the kill must not be shown it again.
//!
//! Each popup may be shown once to a user, so that a repeated request tells whether the exposure is stored.

mod clients;
mod verifier;

use super::{
    args::PopupCrashArgs,
    catalogue::{put_popup, variant},
};
use crate::{LabError, crash::kills::Kills, result::RunResult, server::OwnServer};
use clients::{Exposure, Incarnations, decide_until_stopped, report_until_stopped};
use rand::rngs::StdRng;
use std::time::{Duration, Instant};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{PopupCaps, PopupSpec, PopupState};
use verifier::CrashVerifier;

/// The number of threads that request decisions, half of them for a strict popup, and of threads that report events.
const DECIDING: usize = 4;
const REPORTING: usize = 2;
/// How many exposures of earlier incarnations are verified again after each kill.
const REPEATED_USERS: usize = 100;

pub(super) const POPUPS: [(&str, bool); 2] = [("relaxed", false), ("strict", true)];

pub(crate) fn run(args: &PopupCrashArgs) -> Result<RunResult, LabError> {
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut server = OwnServer::start()?;
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    for (number, (id, strict)) in POPUPS.into_iter().enumerate() {
        let spec = PopupSpec {
            state: PopupState::Live,
            placements: vec![id.to_owned()],
            caps: PopupCaps { total: Some(1), ..PopupCaps::default() },
            variants: vec![variant(number as u64, "a", 1)?],
            strict,
            ..PopupSpec::default()
        };
        put_popup(&mut http, id, &spec)?;
    }
    let incarnations = Incarnations::new(&server);
    let mut verifier = CrashVerifier::new(args.bound);
    let started = Instant::now();
    let reports = std::thread::scope(|scope| {
        for number in 0..DECIDING {
            let incarnations = &incarnations;
            scope.spawn(move || decide_until_stopped(incarnations, number, POPUPS[number % 2]));
        }
        let reporting: Vec<_> = (0..REPORTING)
            .map(|number| {
                let incarnations = &incarnations;
                scope.spawn(move || report_until_stopped(incarnations, number))
            })
            .collect();
        let result = Kills::new(args.kills, seed, Duration::ZERO)
            .run(&mut server, |server, at, random| verify_after_kill(server, at, random, &incarnations, &mut verifier));
        // Threads must also end when a start failed, since no server answers them then.
        incarnations.stop();
        let reports = reporting.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>();
        result.map(|()| reports)
    })?;
    let seconds = started.elapsed().as_secs_f64();

    // Every exposure that was answered before a clean stop must be stored, however short before.
    server.stop()?;
    server.launch()?;
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    verifier.verify_exposures(&mut http, &incarnations.take_exposures(), None)?;
    verifier.verify_events(&mut http, &reports)?;
    verifier.add_unexpected_answers(incarnations.take_unexpected_answers());
    drop(http);
    server.stop()?;
    let check = server.check()?;
    let mut result = RunResult::of("popup-crash");
    result.measure_whole(verifier.measured(args.kills, seed, seconds));
    result.store_check(Some(check));
    Ok(result)
}

/// Verifies the exposures of the incarnation that was killed and of earlier ones.
fn verify_after_kill(
    server: &OwnServer,
    at: Instant,
    random: &mut StdRng,
    incarnations: &Incarnations,
    verifier: &mut CrashVerifier,
) -> Result<(), LabError> {
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    incarnations.record_kill(at);
    incarnations.pause(true);
    let exposures = incarnations.take_exposures();
    // These exposures must be stored in any case.
    let earlier: Vec<Exposure> = verifier.sample_earlier(random, REPEATED_USERS);
    incarnations.start_incarnation(server.address);
    verifier.verify_exposures(&mut http, &exposures, Some(incarnations))?;
    verifier.verify_exposures(&mut http, &earlier, None)?;
    incarnations.pause(false);
    Ok(())
}
