//! `bench popup-growth`: rates and memory as the number of popups and of users grows.

use super::{
    answer_verifier::AnswerCounts,
    args::PopupGrowthArgs,
    balance::Balance,
    fixture::{FixtureSpec, Measurement, PopupFixture},
    home_page::verdict,
    load_loop::{LoadModel, StopCondition},
    mix::{HomePageMix, MixConfig, MixPhase},
    output,
};
use crate::{
    Finished, LabError, Verdict,
    client_engine::http::ConnectionUse,
    process,
    server::{OwnServer, Target},
};
use serde_json::{Value, json};
use std::time::Duration;

const POPUPS: usize = 500;
const PATIENCE: Duration = Duration::from_secs(15);
/// The most users who become due per second; the gap between popups follows from it, within limits.
const DUE_PER_SECOND: u64 = 30_000;
const GAP_S: (u64, u64) = (3, 30);

pub(crate) fn run(args: &PopupGrowthArgs) -> Result<Finished, LabError> {
    if args.connections == 0 || args.users == 0 || args.known.contains(&0) {
        return Err(LabError::Usage("--connections, --users and --known must be at least 1".into()));
    }
    let mut verdict = Verdict::Passed;
    let mut run = |popups: usize, users: u32| -> Result<Value, LabError> {
        let case = run_case(args, popups, users)?;
        verdict = verdict.and(case.verdict);
        case.print();
        Ok(case.json())
    };
    let by_popups =
        args.popups.iter().map(|popups| run(*popups, args.users)).collect::<Result<Vec<Value>, LabError>>()?;
    let by_users = args.known.iter().map(|users| run(POPUPS, *users)).collect::<Result<Vec<Value>, LabError>>()?;
    let value = json!({ "bench": "popup-growth", "popups": by_popups, "users": by_users });
    Ok(Finished { verdict, figures: value })
}

struct GrowthCase {
    popups: usize,
    users: u32,
    gap_s: u64,
    rss_before: u64,
    first_contact: Measurement,
    measured: Measurement,
    answer_counts: AnswerCounts,
    balance: Balance,
    verdict: Verdict,
}

fn run_case(args: &PopupGrowthArgs, popups: usize, users: u32) -> Result<GrowthCase, LabError> {
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
    let mut verdict = verdict(&mix.answer_counts, &balance, 0.01);
    if check.is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    } else if measured.lab_is_the_limit(LoadModel::ClosedLoop) {
        verdict = verdict.and(Verdict::LabFellBehind);
    }
    let answer_counts = mix.answer_counts.since(&warm);
    Ok(GrowthCase { popups, users, gap_s, rss_before, first_contact, measured, answer_counts, balance, verdict })
}

impl GrowthCase {
    fn bytes_per_user(&self) -> f64 {
        // After the mix, when the store has freed the buffers that it used while all users were written.
        let after = self.measured.server_rss_bytes.unwrap_or_default();
        after.saturating_sub(self.rss_before) as f64 / f64::from(self.users)
    }

    fn print(&self) {
        println!("{} live popups, {} known users, a gap of {} s", self.popups, self.users, self.gap_s);
        output::print_first_contact(self.users, &self.first_contact);
        println!(
            "  memory       {:.0} MiB before the first user, {} in the end: {:.0} bytes a user",
            self.rss_before as f64 / 1048576.0,
            output::format_memory(&self.measured),
            self.bytes_per_user()
        );
        output::print_mix("as fast as it goes", &self.measured, &self.answer_counts);
        output::print_balance(&self.balance, &self.answer_counts);
    }

    fn json(&self) -> Value {
        json!({
            "popups": self.popups, "users": self.users, "gap_s": self.gap_s,
            "decisions_per_second": output::decisions_per_second(&self.measured, &self.answer_counts),
            "rss_before": self.rss_before, "bytes_per_user": self.bytes_per_user(), "introduced": self.first_contact,
            "measured": self.measured, "tally": self.answer_counts, "balance": self.balance,
        })
    }
}
