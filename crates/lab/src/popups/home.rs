//! `bench popup`: what a home page asks, of a million users, beside nginx on the same core with the same client.

use super::{
    args::PopupArgs,
    balance::Balance,
    catalogue::{Catalogue, Known},
    drive::{Connections, Pace, Until},
    judge::Tally,
    mix::{Mix, MixSetting, Phase},
    nginx::Nginx,
    people::People,
    show,
    stage::{Measured, Shape, Stage, measure},
};
use crate::{
    LabError, Verdict,
    args::Rate,
    process,
    report::{self, Live},
    server::{OwnServer, Target},
};
use serde_json::json;
use std::time::Duration;

/// Of the closed loop's rate, for the open loop.
const OPEN_SHARE: f64 = 0.7;
const NGINX_DURATION: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &PopupArgs) -> Result<Verdict, LabError> {
    if args.users == 0 || args.connections == 0 || args.gap.as_secs() < 3 {
        let why = "--users and --connections must be at least 1, --gap at least 3s";
        return Err(LabError::Usage(why.into()));
    }
    let client_core = args.target.client_core.unwrap_or_else(process::last_core);
    let mut nginx = Vec::new();
    if args.nginx || args.only_nginx {
        nginx.push(beside_nginx(args, client_core)?);
        show::nginx("nginx, before", &nginx[0]);
    }
    if args.only_nginx {
        let value = json!({ "bench": "popup", "nginx": nginx });
        report::write_json(args.target.json.as_deref(), &value)?;
        return Ok(Verdict::Passed);
    }
    let target = match args.target.url {
        Some(_) => Target::find(&args.target)?,
        None => Target::Own(Box::new(OwnServer::start_on_core(args.settings.clone(), args.server_core)?)),
    };
    let gap_s = args.gap.as_secs();
    let (mut stage, catalogue, people) = Stage::set(
        target,
        &Shape {
            users: args.users,
            popups: args.popups,
            connections: args.connections,
            gap_s,
            patience: args.target.patience,
            client_core,
        },
    )?;
    let (api_key, tag) = (stage.target.keys().0.to_owned(), stage.tag.clone());
    let setting = MixSetting {
        catalogue: &catalogue,
        people: &people,
        api_key: &api_key,
        users: args.users,
        gap_s,
        connections: args.connections,
        tag: &tag,
    };
    let mut mix = Mix::new(&setting, Phase::Introduce);

    let live = Live::start("popup");
    live.say(format!("each of {} users for the first time", args.users));
    let introduced = stage.drive(&mut mix, Pace::Closed, Until::Done)?;
    mix.phase = Phase::Mix;
    live.say("warming up".into());
    // The first who were shown something are due again only then.
    let rest = Duration::from_secs(gap_s + 1).saturating_sub(Duration::from_secs_f64(introduced.stretch.seconds));
    stage.drive(&mut mix, Pace::Closed, Until::Passed(args.warm.max(rest)))?;
    let warm = mix.tally.clone();
    live.say("closed loop".into());
    let closed = stage.drive(&mut mix, Pace::Closed, Until::Passed(args.duration))?;
    let closed_tally = mix.tally.since(&warm);
    let per_second = match args.rate {
        None => Some(closed.stretch.per_second() * OPEN_SHARE),
        Some(Rate::PerSecond(rate)) => Some(rate),
        Some(Rate::Max) => None,
    };
    let before = mix.tally.clone();
    let open = match per_second {
        None => None,
        Some(rate) => {
            live.say(format!("open loop at {rate:.0}/s"));
            let pace = Pace::Open(rate);
            Some((pace, stage.drive(&mut mix, pace, Until::Passed(args.duration))?))
        }
    };
    let open_tally = mix.tally.since(&before);
    live.say("striking the balance".into());
    let balance = Balance::strike(stage.http(), &catalogue, &mix.counts, args.target.patience)?;
    live.end();
    let check = stage.finish()?;
    if args.nginx {
        nginx.push(beside_nginx(args, client_core)?);
    }

    show::introduced(args.users, &introduced);
    show::mix("closed loop", &closed, &closed_tally);
    if let Some((_, open)) = &open {
        show::mix(&format!("open loop at {:.0} requests/s", per_second.unwrap_or_default()), open, &open_tally);
    }
    show::balance(&balance, &mix.tally);
    let ratio = show::beside(&closed, &closed_tally, &nginx);
    report::print_check(&check);

    let mut verdict = verdict(&mix.tally, &balance, args.nothing_share);
    let limited = closed.lab_is_the_limit(Pace::Closed)
        || open.as_ref().is_some_and(|(pace, measured)| measured.lab_is_the_limit(*pace));
    if limited {
        verdict = verdict.and(Verdict::LabFellBehind);
    }
    if check.as_ref().is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    }
    let value = json!({
        "bench": "popup", "users": args.users, "popups": args.popups, "connections": args.connections, "gap_s": gap_s,
        "introduced": introduced, "closed": { "measured": closed, "tally": closed_tally },
        "open": open.map(|(_, measured)| json!({ "rate": per_second, "measured": measured, "tally": open_tally })),
        "whole_run": mix.tally, "balance": balance, "nginx": nginx, "ratio_to_nginx": ratio, "check": check,
    });
    report::write_json(args.target.json.as_deref(), &value)?;
    Ok(verdict)
}

/// Whether all answers were right and all counts balance.
pub(super) fn verdict(tally: &Tally, balance: &Balance, nothing_share: f64) -> Verdict {
    let nothing = tally.due_but_nothing as f64 / (tally.asked_due as f64).max(1.0);
    match tally.is_clean() && balance.wrong == 0 && nothing <= nothing_share {
        true => Verdict::Passed,
        false => Verdict::Failed,
    }
}

/// The same requests of the same client, answered by nginx on the server's core.
fn beside_nginx(args: &PopupArgs, client_core: usize) -> Result<Measured, LabError> {
    let nginx = Nginx::start(args.server_core)?;
    let people = People::new("u0000-");
    let catalogue = Catalogue { popups: vec![Known::nothing()] };
    // A key as long as one of a server of the bench's own.
    let api_key = "k".repeat(64);
    let setting = MixSetting {
        catalogue: &catalogue,
        people: &people,
        api_key: &api_key,
        users: args.users,
        gap_s: args.gap.as_secs(),
        connections: args.connections,
        tag: "0",
    };
    let mut mix = Mix::new(&setting, Phase::Blind);
    let mut connections = Connections::open(nginx.address, args.connections, args.target.patience)?;
    let mut stretch = |time| {
        let until = Until::Passed(time);
        measure(&mut connections, Some(nginx.pid()), client_core, &mut mix, Pace::Closed, until)
    };
    stretch(Duration::from_secs(1))?;
    let measured = stretch(NGINX_DURATION.min(args.duration))?;
    match mix.tally.is_clean() {
        true => Ok(measured),
        false => Err(LabError::Usage(format!("nginx did not answer as it should: {:?}", mix.tally.problems))),
    }
}
