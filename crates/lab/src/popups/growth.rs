//! `bench popup-growth`: what more popups cost, and what more users do.

use super::{
    args::PopupGrowthArgs,
    balance::Balance,
    drive::{Pace, Until},
    home::verdict,
    judge::Tally,
    mix::{Mix, MixSetting, Phase},
    show,
    stage::{Measured, Shape, Stage},
};
use crate::{
    LabError, Verdict, process,
    report::{self, Live},
    server::{OwnServer, Target},
};
use serde_json::{Value, json};
use std::time::Duration;

const POPUPS: usize = 500;
const PATIENCE: Duration = Duration::from_secs(15);
/// As many users a second as are due at most: with it follows how long the gap must be, within limits.
const DUE_PER_SECOND: u64 = 30_000;
const GAP_S: (u64, u64) = (3, 30);

pub(crate) fn run(args: &PopupGrowthArgs) -> Result<Verdict, LabError> {
    if args.connections == 0 || args.users == 0 || args.known.contains(&0) {
        return Err(LabError::Usage("--connections, --users and --known must be at least 1".into()));
    }
    let mut verdict = Verdict::Passed;
    let mut run = |popups: usize, users: u32| -> Result<Value, LabError> {
        let case = case(args, popups, users)?;
        verdict = verdict.and(case.verdict);
        case.print();
        Ok(case.json())
    };
    let by_popups =
        args.popups.iter().map(|popups| run(*popups, args.users)).collect::<Result<Vec<Value>, LabError>>()?;
    let by_users = args.known.iter().map(|users| run(POPUPS, *users)).collect::<Result<Vec<Value>, LabError>>()?;
    let value = json!({ "bench": "popup-growth", "popups": by_popups, "users": by_users });
    report::write_json(args.json.as_deref(), &value)?;
    Ok(verdict)
}

struct Case {
    popups: usize,
    users: u32,
    gap_s: u64,
    rss_before: u64,
    introduced: Measured,
    measured: Measured,
    tally: Tally,
    balance: Balance,
    verdict: Verdict,
}

fn case(args: &PopupGrowthArgs, popups: usize, users: u32) -> Result<Case, LabError> {
    let live = Live::start("popup-growth");
    live.say(format!("{popups} popups, {users} users"));
    let own = OwnServer::start_on_core(args.settings.clone(), args.server_core)?;
    let gap_s = (u64::from(users) / DUE_PER_SECOND).clamp(GAP_S.0, GAP_S.1);
    let shape = Shape {
        users,
        popups,
        connections: args.connections,
        gap_s,
        patience: PATIENCE,
        client_core: args.client_core.unwrap_or_else(process::last_core),
    };
    let (mut stage, catalogue, people) = Stage::set(Target::Own(Box::new(own)), &shape)?;
    let (api_key, tag) = (stage.target.keys().0.to_owned(), stage.tag.clone());
    let setting = MixSetting {
        catalogue: &catalogue,
        people: &people,
        api_key: &api_key,
        users,
        gap_s,
        connections: args.connections,
        tag: &tag,
    };
    let rss_before = stage.target.pid().map_or(0, process::resident_bytes);
    let mut mix = Mix::new(&setting, Phase::Introduce);
    let introduced = stage.drive(&mut mix, Pace::Closed, Until::Done)?;
    mix.phase = Phase::Mix;
    stage.drive(&mut mix, Pace::Closed, Until::Passed(Duration::from_secs(gap_s + 1)))?;
    let warm = mix.tally.clone();
    let measured = stage.drive(&mut mix, Pace::Closed, Until::Passed(args.duration))?;
    let balance = Balance::strike(stage.http(), &catalogue, &mix.counts, PATIENCE)?;
    live.end();
    let check = stage.finish()?;
    let mut verdict = verdict(&mix.tally, &balance, 0.01);
    if check.is_some_and(|check| !check.passed) {
        verdict = Verdict::Failed;
    } else if measured.lab_is_the_limit(Pace::Closed) {
        verdict = verdict.and(Verdict::LabFellBehind);
    }
    let tally = mix.tally.since(&warm);
    Ok(Case { popups, users, gap_s, rss_before, introduced, measured, tally, balance, verdict })
}

impl Case {
    fn bytes_per_user(&self) -> f64 {
        // After the mix: what the store held of its own while all were written is gone by then.
        let after = self.measured.server_rss_bytes.unwrap_or_default();
        after.saturating_sub(self.rss_before) as f64 / f64::from(self.users)
    }

    fn print(&self) {
        println!("{} live popups, {} known users, a gap of {} s", self.popups, self.users, self.gap_s);
        show::introduced(self.users, &self.introduced);
        println!(
            "  memory       {:.0} MiB before the first user, {} in the end: {:.0} bytes a user",
            self.rss_before as f64 / 1048576.0,
            show::memory(&self.measured),
            self.bytes_per_user()
        );
        show::mix("as fast as it goes", &self.measured, &self.tally);
        show::balance(&self.balance, &self.tally);
    }

    fn json(&self) -> Value {
        json!({
            "popups": self.popups, "users": self.users, "gap_s": self.gap_s,
            "decisions_per_second": show::decisions_per_second(&self.measured, &self.tally),
            "rss_before": self.rss_before, "bytes_per_user": self.bytes_per_user(), "introduced": self.introduced,
            "measured": self.measured, "tally": self.tally, "balance": self.balance,
        })
    }
}
