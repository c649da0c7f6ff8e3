//! Runs a scenario: its phases one after another, in each phase all its work at once, then its commands.

use super::{
    baseline::Baseline,
    overview,
    plan::{
        Plan,
        fault::{Fault, Happening},
        phase::{Goal, Load, Phase, Search, Work, Worker},
        population::{Members, Population},
    },
    search::{HighestRate, Next},
    server::ScenarioServer,
    trouble::Trouble,
    works::{Job, Surroundings, WorkResult, WorkerClient, model_of},
};
use crate::{
    LabError,
    driver::Driver,
    interrupt, offline_push,
    options::TargetArgs,
    rate_profile::RateProfile,
    report,
    result::{Check, RunResult, Verdict, filled},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// Changes of a rate that are marked on a plot, at most.
const RATE_MARKS_MAX: usize = 12;

/// `driver`: how a server that others wrote is spoken to, and the file of the certificates that its own must be signed by.
pub(crate) fn run(
    plan: &Plan,
    args: &TargetArgs,
    driver: Option<(Arc<Driver>, Option<&Path>)>,
) -> Result<RunResult, LabError> {
    check_options(plan, args, driver.is_some())?;
    let mut result = RunResult::of("run");
    result.set_all(json!({ "scenario": plan.name, "about": plan.about }));
    if !plan.phases.is_empty() {
        let server = match driver {
            None => ScenarioServer::start(&plan.server, args)?,
            Some((driver, ca)) => {
                result.set("driver", json!({ "name": driver.name, "about": driver.about }));
                println!("driver         {}", driver.about);
                ScenarioServer::of_others(&plan.server, args, driver, ca)?
            }
        };
        let (open, reached) = (BTreeMap::new(), BTreeMap::new());
        let mut stage = Stage { plan, args, server, open, reached, result: &mut result };
        let mut phases = Vec::new();
        for number in 0..plan.phases.len() {
            if interrupt::requested() {
                break;
            }
            phases.push(stage.run_phase(number)?);
            report::print_new(stage.result);
        }
        stage.end()?;
        overview::tables(plan, &phases).into_iter().for_each(|table| result.table(table));
        for (phase, figures) in plan.phases.iter().zip(&mut phases) {
            for (number, work) in phase.works.iter().enumerate().filter(|(_, work)| work.beside_bare_loop) {
                let figures = &mut figures["works"][number];
                figures["beside_bare_loop"] = baseline_of(plan, work).compare(args, figures, &mut result)?;
            }
        }
        result.set("phases", phases);
    }
    let mut commands = Vec::new();
    for command in &plan.commands {
        if interrupt::requested() {
            break;
        }
        println!("\n{}: bench {}", command.name, command.line);
        let part = command.parsed.run()?;
        // Parts of several commands stand beside each other: each says which command it is of.
        let rename = |title: &str| match (plan.commands.len(), title) {
            (1, title) if !title.is_empty() => title.to_owned(),
            (_, "") => command.name.clone(),
            (_, title) => format!("{}: {title}", command.name),
        };
        let figures = result.take_over(part, rename, plan.thresholds.iter().chain(command.parsed.thresholds()));
        report::print_new(&mut result);
        commands.push(json!({ "name": command.name, "command": command.line, "figures": figures }));
    }
    if !commands.is_empty() {
        result.set("commands", commands);
    }
    Ok(result)
}

/// A work that has no name is all that its phase does.
fn title_of(phase: &Phase, work: &Work) -> String {
    if work.name.is_empty() { phase.name.clone() } else { format!("{}: {}", phase.name, work.name) }
}

fn baseline_of<'a>(plan: &'a Plan, work: &Work) -> Baseline<'a> {
    let members = plan.populations.get(work.worker.name()).map(|population| &population.members);
    let model = model_of(&work.load);
    match members {
        Some(Members::Devices(devices)) => {
            Baseline::Storm { devices, listeners: plan.server.gateways.max(plan.server.listeners.len()).max(1) }
        }
        Some(Members::Conversation { online, texts, .. }) => {
            Baseline::Rounds { receivers: *online, model, body_bytes: texts.body_bytes }
        }
        // The plan refuses others.
        _ => Baseline::Rounds { receivers: 1, model, body_bytes: 1 },
    }
}

/// Refuses options that a part of the scenario would ignore.
fn check_options(plan: &Plan, args: &TargetArgs, has_driver: bool) -> Result<(), LabError> {
    let has_agents = !args.load_agents.agents.is_empty();
    if has_driver {
        if let Some(what) = plan.beyond_drivers() {
            return Err(LabError::Usage(format!("--driver: {what}")));
        }
        if has_agents {
            return Err(LabError::Usage("--agents: a driver loads from this machine alone".into()));
        }
    }
    if !plan.commands.is_empty() && (args.url.is_some() || has_agents) {
        let why = "a scenario with commands takes options for those after `--`, such as `-- --url http://…`";
        return Err(LabError::Usage(why.into()));
    }
    if plan.has_faults() && args.url.is_some() {
        return Err(LabError::Usage("--url: the faults of this scenario happen to a server of its own".into()));
    }
    let own_threads = plan.populations.iter().find(|(_, population)| !population.takes_agents());
    let name = own_threads.map(|(name, _)| name).or_else(|| plan.scripts.keys().next());
    match name.filter(|_| has_agents) {
        Some(name) => Err(LabError::Usage(format!("--agents: `{name}` loads from this machine alone"))),
        None => Ok(()),
    }
}

/// The server, and the clients that are open.
struct Stage<'a> {
    plan: &'a Plan,
    args: &'a TargetArgs,
    server: ScenarioServer,
    open: BTreeMap<Worker, WorkerClient>,
    /// The rate of each as fast as it went last.
    reached: BTreeMap<Worker, f64>,
    result: &'a mut RunResult,
}

impl Stage<'_> {
    fn run_phase(&mut self, number: usize) -> Result<Value, LabError> {
        let phase = &self.plan.phases[number];
        if self.plan.phases.len() > 1 {
            println!("\nphase {}", phase.name);
        }
        self.open_clients(number)?;
        if !phase.warm_up.is_zero() {
            self.warm_up(phase)?;
        }
        match &phase.search {
            Some(search) => match &search.goal {
                Goal::Break(rates) => self.search_break(phase, search, rates),
                Goal::Highest { from, proof } => self.search_highest(phase, search, *from, *proof),
            },
            None => {
                let faults: Vec<&Fault> = self.plan.faults.iter().filter(|fault| fault.phase == number).collect();
                self.run_works(phase, &faults)
            }
        }
    }

    /// Waits for what is still due, closes the clients, and stops and checks the server.
    fn end(self) -> Result<(), LabError> {
        let Stage { args, server, mut open, result, .. } = self;
        for client in open.values_mut() {
            client.conclude(&server.target, &server.processes(), result)?;
        }
        if let Some(consumer) = &server.consumer {
            consumer.conclude(&server.target, args.patience, result)?;
        }
        // Sessions stay until all are told: without one a recipient is told of what came last.
        offline_push::conclude(server.offline_push.as_ref(), &server.target, args.patience, result)?;
        drop(open);
        result.store_check(server.finish()?);
        Ok(())
    }

    /// Opens the clients of this phase, and closes those that this phase and later ones do not need.
    fn open_clients(&mut self, number: usize) -> Result<(), LabError> {
        let later: Vec<&Worker> =
            self.plan.phases[number..].iter().flat_map(|phase| &phase.works).map(|work| &work.worker).collect();
        // Whoever goes while others are still to be told is told, too.
        let all_stay = self.server.offline_push.is_some();
        let is_over = |worker: &Worker| !all_stay && !later.contains(&worker);
        let over: Vec<Worker> = self.open.keys().filter(|worker| is_over(worker)).cloned().collect();
        for client in over.into_iter().filter_map(|worker| self.open.remove(&worker)) {
            client.close()?;
        }
        for work in &self.plan.phases[number].works {
            if !self.open.contains_key(&work.worker) {
                let client = match &work.worker {
                    Worker::Population(name) => self.open_population(&self.plan.populations[name], &work.load)?,
                    Worker::Script(name) => {
                        WorkerClient::open_script(&self.surroundings(), name, &self.plan.scripts[name])?
                    }
                };
                self.open.insert(work.worker.clone(), client);
            }
        }
        Ok(())
    }

    fn surroundings(&self) -> Surroundings<'_> {
        Surroundings {
            target: &self.server.target,
            device_addresses: [false, true].map(|by_tls| self.server.device_addresses(by_tls)),
            certificate: self.server.certificate.clone(),
            settings: &self.plan.server.settings,
            killed_gateway: self.server.killed_gateway.clone(),
            args: self.args,
            has_faults: self.plan.has_faults(),
            driven: self.server.driven.as_ref(),
            offline_push: self.server.offline_push.as_ref(),
        }
    }

    fn open_population(&mut self, population: &Population, first: &Load) -> Result<WorkerClient, LabError> {
        let client = WorkerClient::open(&self.surroundings(), population, first)?;
        match client {
            WorkerClient::Devices(devices) if population.is_known() => {
                let known = devices.make_known()?;
                self.server.restart()?;
                Ok(WorkerClient::Devices(Box::new(known.reopen(&self.surroundings())?)))
            }
            client => Ok(client),
        }
    }

    /// Runs what can be repeated at the rate with which it begins. Nothing is measured; the counts must balance all the same.
    fn warm_up(&mut self, phase: &Phase) -> Result<(), LabError> {
        let seconds = phase.warm_up.as_secs_f64();
        let mut works = Vec::new();
        for work in &phase.works {
            let load = match &work.load {
                _ if !self.can_warm_up(&work.worker) => continue,
                Load::Planned(profile) => Load::Planned(RateProfile::constant(profile.first(), seconds)),
                Load::Max { window, .. } => Load::Max { window: *window, lasts: phase.warm_up },
                Load::Searched { share } => {
                    let first = phase.search.as_ref().map(Search::first_rate);
                    Load::Planned(RateProfile::constant(first.unwrap_or_default() * share, seconds))
                }
                _ => continue,
            };
            let has_load = !matches!(&load, Load::Planned(profile) if profile.messages() == 0);
            if has_load {
                works.push((work, load, format!("{}: {}, warming up", phase.name, work.name)));
            }
        }
        let (results, _) = self.run_at_once(&works, &[])?;
        // A lab that lags while it warms up has not measured anything yet.
        for WorkResult { measured, .. } in results {
            if measured.verdict() == Verdict::Failed {
                self.result.record(measured);
            }
        }
        Ok(())
    }

    fn can_warm_up(&self, worker: &Worker) -> bool {
        let Worker::Population(name) = worker else { return false };
        matches!(
            self.plan.populations[name].members,
            Members::Conversation { .. }
                | Members::Direct { .. }
                | Members::Connections { .. }
                | Members::PopupUsers(_)
        )
    }

    fn run_works(&mut self, phase: &Phase, faults: &[&Fault]) -> Result<Value, LabError> {
        let mut works: Vec<(&Work, Load, String)> = Vec::new();
        for work in &phase.works {
            works.push((work, self.known_load(phase, work)?, title_of(phase, work)));
        }
        if let Some(consumer) = &self.server.consumer {
            consumer.begin_phase(&self.server.target, self.args.patience)?;
        }
        // Users who send to a group of which the hook does not answer.
        let _flood = match &self.server.hook {
            Some(hook) => hook.flood(&self.server.target)?,
            None => None,
        };
        let (results, marks) = self.run_at_once(&works, faults)?;
        let mut values = Vec::new();
        for (WorkResult { measured, .. }, (work, load, _)) in results.into_iter().zip(&works) {
            if let Load::Max { .. } = load {
                self.reached.insert(work.worker.clone(), measured.part().rate().unwrap_or_default());
            }
            let marks: Vec<Value> = marks.iter().cloned().chain(rate_marks(load)).collect();
            let measured = measured.set("marks", marks).thresholds(self.plan.thresholds.iter().chain(&work.thresholds));
            values.push(self.result.record(measured));
        }
        for mark in &marks {
            let opened =
                mark["opened_seconds"].as_f64().map_or(String::new(), |time| format!(", opened in {time:.2} s"));
            self.result.note("fault", filled("{at:1} s  {name}", mark) + &opened);
        }
        Ok(json!({ "name": phase.name, "works": values }))
    }

    /// The load of a work, after it has run alone if its rate is a share of what it then reaches.
    fn known_load(&mut self, phase: &Phase, work: &Work) -> Result<Load, LabError> {
        let Load::ShareOfMax { share, window, alone, lasts } = work.load else { return Ok(work.load.clone()) };
        if let Some(alone) = alone {
            let title = format!("{}: {}, alone", phase.name, work.name);
            let (results, _) = self.run_at_once(&[(work, Load::Max { window, lasts: alone }, title)], &[])?;
            for WorkResult { measured, .. } in results {
                self.reached.insert(work.worker.clone(), measured.part().rate().unwrap_or_default());
                if measured.verdict() == Verdict::Failed {
                    self.result.record(measured);
                }
            }
        }
        let reached = self.reached.get(&work.worker).copied().unwrap_or_default();
        let planned = RateProfile::constant(share * reached, lasts.as_secs_f64());
        if planned.messages() == 0 {
            // What is measured beside nothing is not what was asked for.
            let check = Check::of_lab("what it reaches alone", "its share is a message at least", false);
            self.result.check(check.part(title_of(phase, work)).value(format!("{reached:.1} a second")));
        }
        Ok(Load::Planned(planned))
    }

    /// Raises the rate step by step until something breaks, and says what, and which step was the last good one.
    fn search_break(&mut self, phase: &Phase, search: &Search, rates: &[f64]) -> Result<Value, LabError> {
        let (mut steps, mut good, mut broke) = (Vec::new(), None, None);
        for (number, rate) in rates.iter().enumerate() {
            let works: Vec<(&Work, Load, String)> = (phase.works.iter())
                .map(|work| {
                    let title = format!("{}, step {} at {rate:.0}/s: {}", phase.name, number + 1, work.name);
                    (work, work.load.at_step(*rate, search.each), title)
                })
                .collect();
            let (results, _) = self.run_at_once(&works, &[])?;
            let mut values = Vec::new();
            for (WorkResult { measured, trouble }, (work, ..)) in results.into_iter().zip(&works) {
                let told = trouble.clone().or_else(|| Trouble::of_thresholds(&search.thresholds, &measured));
                if let (Some(told), None) = (told, &broke) {
                    broke = Some(json!({ "step": number + 1, "rate": rate, "work": work.name, "by": told,
                        "sentence": told.to_string() }));
                }
                // What ends a search is its result. Only what must never happen fails the run.
                let ends_search = matches!(&trouble, Some(trouble) if !matches!(trouble, Trouble::Balance(_)));
                values.push(self.result.record(if ends_search { measured.without_failures() } else { measured }));
            }
            steps.push(json!({ "rate": rate, "works": values }));
            if broke.is_some() || interrupt::requested() {
                break;
            }
            good = Some(json!({ "step": number + 1, "rate": rate }));
        }
        let sentence = match (&good, &broke) {
            (Some(good), Some(broke)) => {
                format!("last good step {} at {}/s; broke by {}", good["step"], good["rate"], broke["sentence"])
            }
            (None, Some(broke)) => format!("no step was good; broke by {}", broke["sentence"]),
            (_, None) => "nothing broke".to_owned(),
        };
        self.result.note("the search", sentence);
        Ok(json!({ "name": phase.name, "steps": steps, "last_good": good, "broke": broke }))
    }

    /// Searches the highest rate that keeps the bounds, and proves it at full length.
    fn search_highest(
        &mut self,
        phase: &Phase,
        search: &Search,
        from: f64,
        proof: Duration,
    ) -> Result<Value, LabError> {
        let (mut state, mut next) = (HighestRate::default(), Next::Trial(from));
        let mut trials = Vec::new();
        let mut found = json!({ "name": phase.name });
        loop {
            let (rate, lasts, is_proof) = match next {
                Next::Trial(rate) => (rate, search.each, false),
                Next::Proof(rate) => (rate, proof, true),
                Next::Over => break,
            };
            let works: Vec<(&Work, Load, String)> = (phase.works.iter())
                .map(|work| (work, work.load.at_step(rate, lasts), title_of(phase, work)))
                .collect();
            let (results, _) = self.run_at_once(&works, &[])?;
            let keeps = |WorkResult { measured, trouble }: &WorkResult| {
                !matches!(trouble, Some(Trouble::Refusals(_) | Trouble::Balance(_)))
                    && Trouble::of_thresholds(&search.thresholds, measured).is_none()
            };
            let is_broken = results.iter().any(|result| matches!(result.trouble, Some(Trouble::Balance(_))));
            // A trial that was cut short has not met anything.
            let met = results.iter().all(keeps) && !interrupt::requested();
            next = match is_proof {
                false => state.after_trial(rate, met),
                true => HighestRate::after_proof(rate, met),
            };
            if is_broken || interrupt::requested() {
                next = Next::Over;
            }
            let is_last = is_proof && next == Next::Over;
            let mut figures = Vec::new();
            for WorkResult { measured, .. } in results {
                let line = "{latency.p99:2} ms  max {latency.max:2} ms  refused {refused}";
                let (length, met) = (lasts.as_secs_f64(), if met { "met" } else { "missed" });
                println!("  {rate:>9.0}/s  {length:.0} s  p99 {}  {met}", measured.filled(line));
                // What a trial misses is what it is for. Only what must never happen fails the run.
                figures.push(match (is_last, is_broken) {
                    (true, _) => {
                        let title = format!("{}, highest rate that keeps the bounds: {rate:.0}/s", measured.title());
                        self.result.record(measured.titled(&title))
                    }
                    (false, true) => self.result.record(measured),
                    (false, false) => measured.into_parts().0,
                });
            }
            if is_last {
                (found["rate"], found["works"]) = (json!(rate), json!(figures));
            } else if !is_proof {
                trials.push(json!({ "rate": rate, "met": met, "works": figures }));
            }
        }
        found["trials"] = json!(trials);
        Ok(found)
    }

    /// Runs all works at once, each with its client, and injects faults meanwhile. Returns the results in the works' order,
    /// and the faults as marks.
    fn run_at_once(
        &mut self,
        works: &[(&Work, Load, String)],
        faults: &[&Fault],
    ) -> Result<(Vec<WorkResult>, Vec<Value>), LabError> {
        let mut clients = Vec::new();
        for (work, ..) in works {
            if let Some(client) = self.open.remove(&work.worker) {
                clients.push(client);
            }
        }
        let server_processes = self.server.processes();
        let server_is_replaced = faults.iter().any(|fault| fault.ends_a_process());
        let lead = works.iter().map(|(work, ..)| work.around).max().unwrap_or_default();
        let lead = if works.len() > 1 { lead } else { Duration::ZERO };
        let server = &mut self.server;
        let (results, marks) = std::thread::scope(|scope| {
            let began = Instant::now();
            let running: Vec<_> = (clients.iter_mut().zip(works))
                .map(|(client, (work, load, title))| {
                    let server = server_processes.clone();
                    let Work { batch, may_be_refused, .. } = **work;
                    let job = Job { title: title.clone(), load, batch, may_be_refused, server, server_is_replaced };
                    let wait = lead.saturating_sub(work.around);
                    scope.spawn(move || {
                        std::thread::sleep(wait);
                        client.run(&job)
                    })
                })
                .collect();
            let marks = inject(server, faults, began);
            let results: Vec<Result<WorkResult, LabError>> = (running.into_iter())
                .map(|thread| thread.join().unwrap_or_else(|_| Err(LabError::Worker("panicked".into()))))
                .collect();
            (results, marks)
        });
        for (client, (work, ..)) in clients.into_iter().zip(works) {
            self.open.insert(work.worker.clone(), client);
        }
        Ok((results.into_iter().collect::<Result<_, _>>()?, marks?))
    }
}

/// Injects each fault at its time; returns marks for the plots.
fn inject(server: &mut ScenarioServer, faults: &[&Fault], began: Instant) -> Result<Vec<Value>, LabError> {
    let mut marks = Vec::new();
    for fault in faults {
        while began.elapsed() < fault.at && !interrupt::requested() {
            std::thread::sleep((fault.at.saturating_sub(began.elapsed())).min(Duration::from_millis(50)));
        }
        if interrupt::requested() {
            break;
        }
        marks.push(json!({ "at": began.elapsed().as_secs_f64(), "name": fault.kind.name() }));
        let opened_seconds = server.suffer(fault)?.map(|time| time.as_secs_f64());
        if fault.kind != Happening::GatewayKilled {
            let at = began.elapsed().as_secs_f64();
            marks.push(json!({ "at": at, "name": "reverted", "opened_seconds": opened_seconds }));
        }
    }
    Ok(marks)
}

/// The moments at which a rate jumps, as marks.
fn rate_marks(load: &Load) -> Vec<Value> {
    let Load::Planned(profile) = load else { return Vec::new() };
    let jumps = profile.jumps();
    if jumps.len() > RATE_MARKS_MAX {
        return Vec::new();
    }
    jumps.into_iter().map(|(at, rate)| json!({ "at": at, "name": format!("{rate:.0}/s") })).collect()
}
