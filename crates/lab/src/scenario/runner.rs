//! Runs a scenario: its phases one after another, in each phase all its work at once, then its commands.

mod marks;
mod searches;

use super::{
    baseline::Baseline,
    overview,
    plan::{
        Plan,
        fault::Fault,
        phase::{Goal, Load, Phase, Search, Work, Worker},
        population::{Members, Population},
    },
    server::ScenarioServer,
    works::{Job, Surroundings, WorkResult, WorkerClient},
};
use crate::{
    LabError,
    driver::Driver,
    interrupt,
    message_clients::PairSpec,
    offline_push,
    options::TargetArgs,
    otlp,
    rate_profile::RateProfile,
    report,
    result::{Check, RunResult, Verdict, filled},
};
use marks::{inject, rate_marks};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

/// What is printed of a message's cost, and how many of the most frequent statements.
const COST: [(&str, &str); 2] = [
    ("a message", "{redis_commands:2} Redis commands, {transactions:2} transactions, {statements:2} statements"),
    ("CPU ms", "Redis {redis_cpu_ms:3}  nodes {nodes_cpu_ms:3}  database {database_cpu_ms:3}"),
];
const STATEMENTS_SHOWN: usize = 6;

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
        otlp::begin_scenario(&plan.name, plan.scripts.values().find_map(|script| script.seed));
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
            for (number, work) in phase.works.iter().enumerate() {
                let name = match work.lab_sustains {
                    Some(_) => "ceiling",
                    None if work.beside_bare_loop => "beside_bare_loop",
                    None => continue,
                };
                let figures = &mut figures["works"][number];
                figures[name] = Baseline::of(plan, work).compare(args, figures, &mut result)?;
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
                works.push((work, load, format!("{}, warming up", title_of(phase, work))));
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
            Members::Conversation(..)
                | Members::Pairs(PairSpec { are_open: true, .. }, _)
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
        let measures_cost = self.plan.server.measures_cost;
        let counted = if measures_cost { self.server.counters()? } else { None };
        let (results, marks) = self.run_at_once(&works, faults)?;
        let committed = results.iter().filter_map(|result| result.measured.part().number(&["committed"])).sum::<f64>();
        let cost = match (&counted, if measures_cost { self.server.counters()? } else { None }) {
            (Some(before), Some(now)) => Some(now.cost_since(before, committed as u64)),
            _ => None,
        };
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
        let mut figures = json!({ "name": phase.name, "works": values });
        if let Some(cost) = cost {
            let lines = COST.iter().map(|(about, line)| ((*about).to_owned(), filled(line, &cost)));
            let statements = cost.by_statement.iter().take(STATEMENTS_SHOWN);
            let statements =
                statements.map(|(statement, calls)| ("statement".to_owned(), format!("{calls:.3} × {statement}")));
            self.result.lines("the cost of a message", lines.chain(statements).collect(), &[]);
            figures["cost"] = json!(cost);
        }
        Ok(figures)
    }

    /// The load of a work, after it has run alone if its rate is a share of what it then reaches.
    fn known_load(&mut self, phase: &Phase, work: &Work) -> Result<Load, LabError> {
        let Load::ShareOfMax { share, window, alone, lasts } = work.load else { return Ok(work.load.clone()) };
        if let Some(alone) = alone {
            let title = format!("{}, alone", title_of(phase, work));
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
            works.iter().for_each(|(.., title)| otlp::begin_part(title));
            let running: Vec<_> = (clients.iter_mut().zip(works))
                .map(|(client, (work, load, title))| {
                    let server = server_processes.clone();
                    let Work { batch, may_be_refused, .. } = **work;
                    let job = Job { title: title.clone(), load, batch, may_be_refused, server, server_is_replaced };
                    let wait = lead.saturating_sub(work.around);
                    scope.spawn(move || {
                        std::thread::sleep(wait);
                        let result = client.run(&job)?;
                        otlp::end_part(&job.title, &result.measured);
                        Ok(result)
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
