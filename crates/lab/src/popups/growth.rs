//! `bench popup-growth`: rates and memory as the number of popups and of users grows.

use super::{
    args::PopupGrowthArgs,
    balance::Balance,
    fixture::{FixtureSpec, PopupFixture},
    load_loop::{LoadModel, StopCondition},
    mix::{HomePageMix, MixConfig, MixPhase},
    output,
};
use crate::{
    LabError,
    client_engine::http::ConnectionUse,
    process, report,
    result::{RunResult, filled},
    server::{OwnServer, Target},
};
use serde_json::{Value, json};
use std::time::Duration;

const POPUPS: usize = 500;
const PATIENCE: Duration = Duration::from_secs(15);
/// The most users who become due per second; the gap between popups follows from it, within limits.
const DUE_PER_SECOND: u64 = 30_000;
const GAP_S: (u64, u64) = (3, 30);
/// Users who are due and nevertheless shown nothing, of those asked for, at most.
const NOTHING_SHARE: f64 = 0.01;

pub(crate) fn run(args: &PopupGrowthArgs) -> Result<RunResult, LabError> {
    if args.connections == 0 || args.users == 0 || args.known.contains(&0) {
        return Err(LabError::Usage("--connections, --users and --known must be at least 1".into()));
    }
    let mut result = RunResult::of("popup-growth");
    let mut run = |popups: usize, users: u32| -> Result<Value, LabError> {
        let figures = run_case(args, popups, users, &mut result)?;
        report::print_new(&mut result);
        Ok(figures)
    };
    let by_popups =
        args.popups.iter().map(|popups| run(*popups, args.users)).collect::<Result<Vec<Value>, LabError>>()?;
    let by_users = args.known.iter().map(|users| run(POPUPS, *users)).collect::<Result<Vec<Value>, LabError>>()?;
    result.set_all(json!({ "popups": by_popups, "users": by_users }));
    Ok(result)
}

fn run_case(args: &PopupGrowthArgs, popups: usize, users: u32, result: &mut RunResult) -> Result<Value, LabError> {
    let title = format!("{popups} popups, {users} users");
    let own = OwnServer::start_on_core(args.settings.clone(), args.server_core)?;
    let gap_s = (u64::from(users) / DUE_PER_SECOND).clamp(GAP_S.0, GAP_S.1);
    let shape = FixtureSpec {
        users,
        popups,
        connections: args.connections,
        gap_s,
        patience: PATIENCE,
        client_core: args.client_core.unwrap_or_else(process::last_core),
        connection_use: ConnectionUse::Kept,
    };
    let (mut fixture, catalogue, profiles) = PopupFixture::set_up(Target::Own(Box::new(own)), &shape)?;
    let (api_key, tag) = (fixture.target.keys().0.to_owned(), fixture.tag.clone());
    let setting = MixConfig {
        catalogue: &catalogue,
        profiles: &profiles,
        api_key: &api_key,
        users,
        gap_s,
        connections: args.connections,
        tag: &tag,
        connection_use: ConnectionUse::Kept,
    };
    let rss_before = fixture.target.pid().map_or(0, process::resident_bytes);
    let mut mix = HomePageMix::new(&setting, MixPhase::FirstContact);
    let first_contact = fixture.run_load(&title, &mut mix, LoadModel::ClosedLoop, StopCondition::Exhausted)?;
    mix.phase = MixPhase::Mix;
    fixture.run_load(
        &title,
        &mut mix,
        LoadModel::ClosedLoop,
        StopCondition::Elapsed(Duration::from_secs(gap_s + 1)),
    )?;
    let warm = mix.answer_counts.clone();
    let measured = fixture.run_load(&title, &mut mix, LoadModel::ClosedLoop, StopCondition::Elapsed(args.duration))?;
    let balance = Balance::reconcile(fixture.http(), &catalogue, &mix.counts, PATIENCE)?;
    let check = fixture.finish()?;
    let counts = mix.answer_counts.since(&warm);
    let after = measured.server_rss_bytes.unwrap_or_default();
    // After the mix, when the store has freed the buffers that it used while all users were written.
    let bytes_per_user = after.saturating_sub(rss_before) as f64 / f64::from(users);
    let figures = json!({
        "popups": popups, "users": users, "gap_s": gap_s, "decisions_per_second": measured.decisions_per_second(&counts),
        "rss_before": rss_before, "bytes_per_user": bytes_per_user, "introduced": first_contact, "tally": counts, "balance": balance,
    });
    result.note("", format!("{popups} live popups, {users} known users, a gap of {gap_s} s"));
    output::tell_first_contact(result, users, &first_contact);
    let line = "{rss_before:MiB} before the first user, {bytes_per_user:0} bytes a user in the end";
    result.note("memory", filled(line, &figures));
    let of_load = measured.measured(&title, Some(&counts), LoadModel::ClosedLoop);
    let measured = result.record(of_load);
    output::tell_balance(result, &balance, &counts);
    for check in output::checks_of(&mix.answer_counts, &balance, NOTHING_SHARE) {
        result.check(check.part(&*title));
    }
    result.store_check(check);
    let mut figures = figures;
    figures["measured"] = measured;
    Ok(figures)
}
