//! `bench popup-crash`: kill the server at random moments under decisions and events. Events that got their 202 must all
//! be there once; whoever was shown a popup longer than the bound before the kill must not be shown it again.
//!
//! Each popup may be shown once to a user, so that asking again tells whether the showing is remembered.

mod load;
mod tally;

use super::{
    args::PopupCrashArgs,
    catalogue::{put_popup, variant},
};
use crate::{LabError, Verdict, report, server::OwnServer};
use load::{Lives, Shown, decide_on, report_on};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::time::{Duration, Instant};
use tally::Tally;
use tidings_client::http::HttpClient;
use tidings_protocol::http::{PopupCaps, PopupSpec, PopupState};

/// How long a server lives once it is ready.
const LIFE_MS: std::ops::Range<u64> = 20..600;
/// How long a server lives that is killed while it opens.
const OPENING_MS: std::ops::Range<u64> = 1..60;
/// Threads that ask for decisions, half of them of a strict popup, and that report events.
const DECIDING: usize = 4;
const REPORTING: usize = 2;
/// Users of earlier lives who are asked for again after each kill.
const ASKED_AGAIN: usize = 100;
/// After the last kill, what was not answered is reported again within this.
const SETTLE: Duration = Duration::from_secs(1);

pub(super) const POPUPS: [(&str, bool); 2] = [("relaxed", false), ("strict", true)];

pub(crate) fn run(args: &PopupCrashArgs) -> Result<Verdict, LabError> {
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
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
    let lives = Lives::new(&server);
    let mut tally = Tally::new(args.bound);
    let started = Instant::now();
    let reports = std::thread::scope(|scope| {
        for number in 0..DECIDING {
            let lives = &lives;
            scope.spawn(move || decide_on(lives, number, POPUPS[number % 2]));
        }
        let reporting: Vec<_> = (0..REPORTING)
            .map(|number| {
                let lives = &lives;
                scope.spawn(move || report_on(lives, number))
            })
            .collect();
        let mut killed = 0;
        let mut result = Ok(());
        while killed < args.kills && result.is_ok() {
            result = kill_once(args, &mut random, &mut server, &lives, &mut tally, &mut killed);
        }
        // Threads must end also when a start failed: nothing answers them then.
        if result.is_ok() {
            std::thread::sleep(SETTLE);
        }
        lives.stop();
        let reports = reporting.into_iter().filter_map(|thread| thread.join().ok()).collect::<Vec<_>>();
        result.map(|()| reports)
    })?;
    let seconds = started.elapsed().as_secs_f64();

    // Whatever was answered before a clean stop is remembered, however late it came.
    server.stop()?;
    server.launch()?;
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    tally.remembered(&mut http, &lives.take_shown(), None)?;
    tally.hold_events(&mut http, &reports)?;
    tally.hold_against(lives.take_odd());
    drop(http);
    server.stop()?;
    let check = server.check()?;
    tally.print(args.kills, seconds);
    report::print_check(&Some(check.clone()));
    report::write_json(args.json.as_deref(), &tally.json(args.kills, seed, seconds, &check))?;
    Ok(if tally.is_clean() && check.passed { Verdict::Passed } else { Verdict::Failed })
}

/// A life, its end, the next one's begin; and whether those who were shown something are remembered.
fn kill_once(
    args: &PopupCrashArgs,
    random: &mut StdRng,
    server: &mut OwnServer,
    lives: &Lives,
    tally: &mut Tally,
    killed: &mut usize,
) -> Result<(), LabError> {
    let life = Duration::from_millis(random.random_range(LIFE_MS));
    std::thread::sleep(life);
    // Before the signal: what the server still does until it comes is to its favour.
    let at = Instant::now();
    server.kill()?;
    while random.random_ratio(1, 5) && *killed + 1 < args.kills {
        server.spawn()?;
        std::thread::sleep(Duration::from_millis(random.random_range(OPENING_MS)));
        server.kill()?;
        *killed += 1;
    }
    server.launch()?;
    *killed += 1;
    eprintln!("{killed} of {} kills, the last server lived {} ms", args.kills, life.as_millis());
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    lives.ended_at(at);
    lives.pause(true);
    let shown = lives.take_shown();
    // Their showings are due to be stored in every case.
    let earlier: Vec<Shown> = tally.some_earlier(random, ASKED_AGAIN);
    lives.begin_at(server.address);
    tally.remembered(&mut http, &shown, Some(lives))?;
    tally.remembered(&mut http, &earlier, None)?;
    lives.pause(false);
    Ok(())
}
