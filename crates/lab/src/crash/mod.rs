//! `bench crash`: kill the server at random moments under load, and prove that nothing acknowledged was lost.
//!
//! Every sender keeps to one rule: a send whose answer did not come is sent again with the same
//! `client_msg_id` until it is answered. At the end each conversation is read back whole.

mod senders;
mod tally;

use crate::{LabError, Verdict, args::CrashArgs, report, server::OwnServer, setup, timeline::read_all};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use senders::{Told, Whereabouts, send_over_http, send_over_websocket};
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use tally::Tally;
use tidings_client::http::HttpClient;

/// How long a server lives once it is ready.
const LIFE_MS: std::ops::Range<u64> = 20..600;
/// How long a server lives that is killed while it opens.
const OPENING_MS: std::ops::Range<u64> = 1..60;
/// After the last kill, senders get this long to ask again for what was not answered.
const SETTLE: Duration = Duration::from_secs(1);

pub(crate) fn run(args: &CrashArgs) -> Result<Verdict, LabError> {
    if args.conversations < 2 {
        return Err(LabError::Usage("--conversations must be at least 2".into()));
    }
    let seed = args.seed.unwrap_or_else(rand::random);
    println!("seed {seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let mut server = OwnServer::start()?;
    let users = setup::names("user", args.conversations);
    let mut http = HttpClient::new(server.address, server.api_key.clone());
    setup::named_users(&mut http, &users)?;
    let mut bases = HashMap::new();
    for number in 0..args.conversations {
        let conversation = match number % 2 {
            0 => setup::group(&mut http, &format!("room-{number}"), &users)?,
            _ => {
                let peer = format!("peer-{number}");
                setup::named_users(&mut http, std::slice::from_ref(&peer))?;
                setup::direct(&mut http, &users[number], &peer)?
            }
        };
        bases.insert(number, conversation);
    }
    let whereabouts = Whereabouts::new(&server);
    let started = Instant::now();
    let told = std::thread::scope(|scope| -> Result<Vec<(usize, Told)>, LabError> {
        let mut senders = Vec::new();
        for number in 0..args.conversations {
            let (whereabouts, user) = (&whereabouts, users[number].as_str());
            let conversation = bases[&number].id.as_str();
            // Two senders per conversation, so that commits of one conversation compete.
            for lane in 0..2 {
                let over_websocket = (number + lane) % 2 == 1;
                let name = format!("{number}-{lane}");
                senders.push(scope.spawn(move || {
                    let told = match over_websocket {
                        true => send_over_websocket(whereabouts, conversation, user, &name),
                        false => send_over_http(whereabouts, conversation, user, &name),
                    };
                    (number, told)
                }));
            }
        }
        let mut killed = 0;
        let mut kill_once = || -> Result<usize, LabError> {
            let life = Duration::from_millis(random.random_range(LIFE_MS));
            std::thread::sleep(life);
            server.kill()?;
            // Some die again while they open: recovery must itself survive being cut off.
            while random.random_ratio(1, 5) && killed + 1 < args.kills {
                server.spawn()?;
                std::thread::sleep(Duration::from_millis(random.random_range(OPENING_MS)));
                server.kill()?;
                killed += 1;
            }
            server.launch()?;
            killed += 1;
            whereabouts.moved_to(server.address);
            eprintln!("{killed} of {} kills, the last server lived {} ms", args.kills, life.as_millis());
            Ok(killed)
        };
        let result = loop {
            match kill_once() {
                Ok(killed) if killed < args.kills => {}
                result => break result,
            }
        };
        // Senders must end also when a start failed: nothing answers them then.
        if result.is_ok() {
            std::thread::sleep(SETTLE);
        }
        whereabouts.stop();
        let told = senders.into_iter().filter_map(|sender| sender.join().ok()).collect();
        result.map(|_| told)
    })?;
    let seconds = started.elapsed().as_secs_f64();

    let mut http = HttpClient::new(server.address, server.api_key.clone());
    let mut tally = Tally::default();
    for number in 0..args.conversations {
        let conversation = &bases[&number];
        let entries = read_all(&mut http, &conversation.id)?;
        tally.add(&conversation.id, &entries, told.iter().filter(|(n, _)| *n == number).map(|(_, told)| told));
    }
    drop(http);
    server.stop()?;
    let check = server.check()?;
    tally.print(args.kills, seconds);
    report::print_check(&Some(check.clone()));
    report::write_json(args.json.as_deref(), &tally.json(args.kills, seed, seconds, &check))?;
    Ok(if tally.is_clean() && check.passed { Verdict::Passed } else { Verdict::Failed })
}
