//! `bench popup`: the traffic of a home page with a million users, compared with nginx on the same core with the same client. It is
//! the scenario `popup` with other values.

use crate::{
    LabError,
    client_engine::http::ConnectionUse,
    options::{Rate, TargetArgs, duration_text, parse_duration},
    popups::{measurement::PopupLoad, nginx::NginxLoad},
    process,
    result::{RunResult, filled},
    scenario::{self, overrides::OverriddenScenario},
};
use clap::Args;
use serde_json::{Value, json};
use std::time::Duration;

#[derive(Debug, Clone, Args)]
pub struct PopupArgs {
    /// --url names a server without popups; its popup settings and segments are replaced
    #[command(flatten)]
    pub target: TargetArgs,
    #[arg(long, default_value_t = 1_000_000)]
    pub users: u32,
    /// Live popups, three in ten of them for the home page
    #[arg(long, default_value_t = 500)]
    pub popups: usize,
    #[arg(long, default_value_t = 64)]
    pub connections: usize,
    /// A connection of its own for every request, as clients without keep-alive make it
    #[arg(long)]
    pub one_request_per_connection: bool,
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub duration: Duration,
    /// Before anything is measured, and once the first users are due again
    #[arg(long, default_value = "10s", value_parser = parse_duration)]
    pub warm: Duration,
    /// Between two popups of a user
    #[arg(long, default_value = "30s", value_parser = parse_duration)]
    pub gap: Duration,
    /// Requests a second of the open loop; 0.7 of the closed loop's unless given
    #[arg(long)]
    pub rate: Option<Rate>,
    /// Compare with nginx answering every request with 300 bytes, before and after
    #[arg(long)]
    pub nginx: bool,
    /// Nginx alone: the limit of this machine and this client
    #[arg(long)]
    pub only_nginx: bool,
    /// The core of the bench's own server, and of nginx
    #[arg(long, default_value_t = 0)]
    pub server_core: usize,
    /// Users who are due and nevertheless told to come back, of those asked for, at most
    #[arg(long, default_value_t = 0.01)]
    pub nothing_share: f64,
    /// A setting of the bench's own server; may be repeated
    #[arg(long = "set", value_name = "NAME=VALUE", value_parser = crate::options::parse_setting)]
    pub settings: Vec<(String, String)>,
}

const FIRST: &str = "first contact";
const CLOSED: &str = "closed loop";
const OPEN: &str = "open loop";

pub(crate) fn run(args: &PopupArgs) -> Result<RunResult, LabError> {
    let is_own = args.target.url.is_none();
    let mut scenario = OverriddenScenario::shipped("popup")?;
    // As fast as it goes is all that is measured then.
    if args.rate == Some(Rate::Max) {
        scenario.only_phases(&[FIRST, CLOSED]);
    } else {
        scenario
            .set_if(&format!("phase.{OPEN}.work.0.rate"), args.rate)?
            .set(&format!("phase.{OPEN}.duration"), duration_text(args.duration))?;
    }
    scenario
        .set_if("server.core", is_own.then_some(args.server_core as i64))?
        .set("population.users.users", i64::from(args.users))?
        .set("population.users.popups", args.popups as i64)?
        .set("population.users.connections", args.connections as i64)?
        .set("population.users.keep_alive", !args.one_request_per_connection)?
        .set("population.users.gap", duration_text(args.gap))?
        .set("population.users.nothing_share", args.nothing_share)?
        .set(&format!("phase.{CLOSED}.warm_up"), duration_text(args.warm))?
        .set(&format!("phase.{CLOSED}.duration"), duration_text(args.duration))?;
    for (name, value) in &args.settings {
        scenario.set(&format!("server.settings.{name}"), value.as_str())?;
    }
    // Mistakes are told before nginx is measured.
    scenario.plan(&[])?;
    let mut nginx = Vec::new();
    if args.nginx || args.only_nginx {
        nginx.push(nginx_load(args).measure()?);
    }
    if args.only_nginx {
        let mut result = RunResult::of("popup");
        record_nginx(&mut result, &nginx);
        return Ok(result);
    }
    let (mut result, phases) = scenario::run_command(&scenario, &args.target)?.of_command("popup");
    if args.nginx {
        nginx.push(nginx_load(args).measure()?);
    }
    record_nginx(&mut result, &nginx);
    let [first, closed, open] = [0, 1, 2].map(|number: usize| &phases[number]["works"][0]);
    let last = [open, closed, first].into_iter().find(|figures| !figures.is_null()).unwrap_or(first);
    let bytes = |figures: &Value, name: &str| figures[name].as_f64();
    // After the mix, when the store has freed the buffers that it used while all users were written.
    let grown = bytes(closed, "server_rss_bytes").zip(bytes(first, "server_rss_before"));
    let bytes_per_user = grown.map(|(after, before)| (after - before).max(0.0) / f64::from(args.users));
    if let Some(bytes_per_user) = bytes_per_user {
        let before = filled("{server_rss_before:MiB} before the first user", first);
        result.note("memory", format!("{before}, {bytes_per_user:.0} bytes a user in the end"));
    }
    let ratio = ratio_to_nginx(&mut result, closed, &nginx);
    let part = |figures: &Value| json!({ "measured": figures, "tally": figures["tally"] });
    let mut open = (!open.is_null()).then(|| part(open));
    if let (Some(open), Some(Rate::PerSecond(rate))) = (&mut open, args.rate) {
        open["rate"] = json!(rate);
    }
    result.set_all(json!({
        "users": args.users, "popups": args.popups, "connections": args.connections, "gap_s": args.gap.as_secs(),
        "one_request_per_connection": args.one_request_per_connection, "introduced": first,
        "closed": part(closed), "open": open, "whole_run": last["whole_run"], "balance": last["balance"],
        "bytes_per_user": bytes_per_user, "ratio_to_nginx": ratio,
    }));
    Ok(result)
}

fn nginx_load(args: &PopupArgs) -> NginxLoad {
    NginxLoad {
        users: args.users,
        gap_s: args.gap.as_secs(),
        connections: args.connections,
        connection_use: if args.one_request_per_connection { ConnectionUse::OneRequest } else { ConnectionUse::Kept },
        duration: args.duration,
        patience: args.target.patience,
        server_core: args.server_core,
        client_core: args.target.client_core.unwrap_or_else(process::last_core),
    }
}

/// Nginx is what is compared with: nothing is asked of it.
fn record_nginx(result: &mut RunResult, nginx: &[PopupLoad]) {
    let measured = nginx.iter().zip(["nginx, before", "nginx, after"]);
    let measured = measured.map(|(load, title)| load.measured(title, None).without_checks());
    let figures: Vec<Value> = measured.map(|measured| result.record(measured)).collect();
    result.set("nginx", figures);
}

/// The ratio to nginx, if there is one.
fn ratio_to_nginx(result: &mut RunResult, closed: &Value, nginx: &[PopupLoad]) -> Option<f64> {
    if nginx.is_empty() {
        return None;
    }
    let rates: Vec<f64> = nginx.iter().map(|load| load.stretch.per_second()).collect();
    let (decisions, p99) = (closed["per_second"].as_f64()?, closed["stretch"]["latency"]["p99"].as_f64()?);
    let ratio = decisions / (rates.iter().sum::<f64>() / rates.len() as f64).max(1.0);
    let shown: Vec<String> = rates.iter().map(|rate| format!("{rate:.0}")).collect();
    let nginx_p99 = nginx.iter().map(|load| load.stretch.times.latency.p99).fold(0.0, f64::max);
    result.note(
        "beside nginx",
        format!(
            "{decisions:.0} decisions/s to {}/s of nginx (before, after): {ratio:.2}; p99 {p99:.3} to {nginx_p99:.3} ms",
            shown.join(", "),
        ),
    );
    Some(ratio)
}
