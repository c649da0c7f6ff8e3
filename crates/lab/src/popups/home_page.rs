//! `bench popup`: the traffic of a home page with a million users, compared with nginx on the same core with the same client.

use super::{
    args::PopupArgs,
    balance::Balance,
    catalogue::{Catalogue, ConfiguredPopup},
    fixture::{FixtureSpec, Measurement, PopupFixture, measure},
    load_loop::{Connections, LoadModel, StopCondition},
    mix::{HomePageMix, MixConfig, MixPhase},
    nginx::Nginx,
    output,
    user_profiles::UserProfiles,
};
use crate::{
    LabError,
    options::Rate,
    process,
    result::RunResult,
    server::{OwnServer, Target},
};
use serde_json::{Value, json};
use std::time::Duration;

/// The rate of the open loop, as a share of the rate that the closed loop reached.
const OPEN_LOOP_SHARE: f64 = 0.7;
const NGINX_DURATION: Duration = Duration::from_secs(10);

pub(crate) fn run(args: &PopupArgs) -> Result<RunResult, LabError> {
    if args.users == 0 || args.connections == 0 || args.gap.as_secs() < 3 {
        let why = "--users and --connections must be at least 1, --gap at least 3s";
        return Err(LabError::Usage(why.into()));
    }
    let client_core = args.target.client_core.unwrap_or_else(process::last_core);
    let mut nginx = Vec::new();
    if args.nginx || args.only_nginx {
        nginx.push(measure_nginx(args, client_core)?);
    }
    let mut result = RunResult::of("popup");
    if args.only_nginx {
        let measured = nginx.iter().map(|measured| record_nginx(&mut result, measured, "nginx")).collect::<Vec<_>>();
        result.set("nginx", measured);
        return Ok(result);
    }
    let target = match args.target.url {
        Some(_) => Target::resolve(&args.target)?,
        None => Target::Own(Box::new(OwnServer::start_on_core(args.settings.clone(), args.server_core)?)),
    };
    let gap_s = args.gap.as_secs();
    let (mut fixture, catalogue, profiles) = PopupFixture::set_up(
        target,
        &FixtureSpec {
            users: args.users,
            popups: args.popups,
            connections: args.connections,
            gap_s,
            patience: args.target.patience,
            client_core,
            connection_use: args.connection_use(),
        },
    )?;
    let (api_key, tag) = (fixture.target.keys().0.to_owned(), fixture.tag.clone());
    let setting = MixConfig {
        catalogue: &catalogue,
        profiles: &profiles,
        api_key: &api_key,
        users: args.users,
        gap_s,
        connections: args.connections,
        tag: &tag,
        connection_use: args.connection_use(),
    };
    let mut mix = HomePageMix::new(&setting, MixPhase::FirstContact);

    let title = format!("popup: each of {} users for the first time", args.users);
    let first_contact = fixture.run_load(&title, &mut mix, LoadModel::ClosedLoop, StopCondition::Exhausted)?;
    mix.phase = MixPhase::Mix;
    // Until the users who were shown a popup first are due again.
    let rest = Duration::from_secs(gap_s + 1).saturating_sub(Duration::from_secs_f64(first_contact.stretch.seconds));
    fixture.run_load(
        "popup: warming up",
        &mut mix,
        LoadModel::ClosedLoop,
        StopCondition::Elapsed(args.warm.max(rest)),
    )?;
    let warm = mix.answer_counts.clone();
    let closed = fixture.run_load(
        "popup: closed loop",
        &mut mix,
        LoadModel::ClosedLoop,
        StopCondition::Elapsed(args.duration),
    )?;
    let closed_counts = mix.answer_counts.since(&warm);
    let per_second = match args.rate {
        None => Some(closed.stretch.per_second() * OPEN_LOOP_SHARE),
        Some(Rate::PerSecond(rate)) => Some(rate),
        Some(Rate::Max) => None,
    };
    let before = mix.answer_counts.clone();
    let open = match per_second {
        None => None,
        Some(rate) => {
            let title = format!("popup: open loop at {rate:.0}/s");
            let model = LoadModel::OpenLoop(rate);
            Some((model, fixture.run_load(&title, &mut mix, model, StopCondition::Elapsed(args.duration))?))
        }
    };
    let open_counts = mix.answer_counts.since(&before);
    let balance = Balance::reconcile(fixture.http(), &catalogue, &mix.counts, args.target.patience)?;
    let check = fixture.finish()?;
    if args.nginx {
        nginx.push(measure_nginx(args, client_core)?);
    }

    for (measured, title) in nginx.iter().zip(["nginx, before", "nginx, after"]) {
        record_nginx(&mut result, measured, title);
    }
    output::tell_first_contact(&mut result, args.users, &first_contact);
    let measured = closed.measured("closed loop", Some(&closed_counts), LoadModel::ClosedLoop);
    let closed_figures = result.record(measured);
    let open = open.map(|(model, open)| {
        let title = format!("open loop at {:.0} requests/s", per_second.unwrap_or_default());
        let figures = result.record(open.measured(&title, Some(&open_counts), model));
        json!({ "rate": per_second, "measured": figures, "tally": open_counts })
    });
    output::tell_balance(&mut result, &balance, &mix.answer_counts);
    let ratio = output::tell_ratio_to_nginx(&mut result, &closed, &closed_counts, &nginx);
    for check in output::checks_of(&mix.answer_counts, &balance, args.nothing_share) {
        result.check(check);
    }
    result.store_check(check);
    result.set_all(json!({
        "users": args.users, "popups": args.popups, "connections": args.connections, "gap_s": gap_s,
        "one_request_per_connection": args.one_request_per_connection, "introduced": first_contact,
        "closed": { "measured": closed_figures, "tally": closed_counts }, "open": open,
        "whole_run": mix.answer_counts, "balance": balance, "nginx": nginx, "ratio_to_nginx": ratio,
    }));
    Ok(result)
}

/// Nginx is what is compared with: nothing is asked of it.
fn record_nginx(result: &mut RunResult, measured: &Measurement, title: &str) -> Value {
    result.record(measured.measured(title, None, LoadModel::ClosedLoop).without_checks())
}

/// Measures nginx on the server's core with the same requests and the same client.
fn measure_nginx(args: &PopupArgs, client_core: usize) -> Result<Measurement, LabError> {
    let nginx = Nginx::start(args.server_core)?;
    let profiles = UserProfiles::new("u0000-");
    let catalogue = Catalogue { popups: vec![ConfiguredPopup::placeholder()] };
    // As long as the key of a server that the bench starts.
    let api_key = "k".repeat(64);
    let setting = MixConfig {
        catalogue: &catalogue,
        profiles: &profiles,
        api_key: &api_key,
        users: args.users,
        gap_s: args.gap.as_secs(),
        connections: args.connections,
        tag: "0",
        connection_use: args.connection_use(),
    };
    let mut mix = HomePageMix::new(&setting, MixPhase::StatusOnly);
    let mut connections =
        Connections::open(nginx.address, args.connections, args.target.patience, args.connection_use())?;
    let mut run = |time| {
        let until = StopCondition::Elapsed(time);
        measure("nginx", &mut connections, Some(nginx.pid()), client_core, &mut mix, LoadModel::ClosedLoop, until)
    };
    run(Duration::from_secs(1))?;
    let measured = run(NGINX_DURATION.min(args.duration))?;
    if mix.answer_counts.is_clean() {
        Ok(measured)
    } else {
        Err(LabError::Usage(format!("nginx did not answer as it should: {:?}", mix.answer_counts.problems)))
    }
}
