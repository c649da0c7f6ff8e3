//! Scenarios as files: who takes part, which work runs when and at which rates, what happens to the server meanwhile, and what
//! the figures must keep.
//!
//! In reading order: [`args`], the options; [`library`], the scenarios that ship with the program; [`mod@file`] with [`values`] and
//! [`script_file`], a scenario as it is written; [`overrides`], one with other values in some places, which commands such as `bench group`
//! are; [`plan`], what it does once all of it goes together; [`server`], the server and its faults, with [`gateways`]; [`works`], who does the work;
//! [`trouble`], what breaks at a step of a search; [`search`], which rate is tried next; [`baseline`], what rounds are compared with; [`overview`],
//! the same work in several phases;
//! [`runner`], which runs the phases.

pub mod args;
mod baseline;
mod ceiling;
mod file;
mod gateways;
mod library;
mod lua;
pub(crate) mod overrides;
pub(crate) mod overview;
mod plan;
mod runner;
mod script_file;
mod search;
mod server;
mod trouble;
mod values;
mod works;

use crate::{LabError, driver, options::TargetArgs, result::RunResult};
use args::{RunArgs, ScenarioAction, ScenarioArgs};
use overrides::OverriddenScenario;
use plan::{DriverSource, Plan};
use std::{
    io::{ErrorKind, Write},
    path::Path,
    sync::Arc,
};

/// The name that stands for every shipped scenario.
pub(crate) const ALL: &str = "all";

/// The shipped scenarios with what each is about.
pub(crate) fn shipped() -> impl Iterator<Item = (&'static str, String)> {
    with_about(library::SHIPPED)
}

fn with_about(list: &'static [(&'static str, &'static str)]) -> impl Iterator<Item = (&'static str, String)> {
    list.iter().map(|(name, text)| (*name, Plan::read(text, &[]).map_or(String::new(), |plan| plan.about)))
}

/// Runs the scenario that is named, or that is in the file.
pub(crate) fn run(args: &RunArgs) -> Result<RunResult, LabError> {
    let mut plan = read_set(args)?;
    if let Some(nodes) = args.nodes {
        let is_own = args.target.url.is_none();
        plan.run_on(nodes.into(), is_own).map_err(|why| LabError::Usage(format!("--nodes: {why}")))?;
    }
    // A file is named from where the command is typed, and in a scenario from where that is.
    let beside = Path::new(&args.scenario).parent().unwrap_or(Path::new(""));
    let driver = match (&args.described.driver, &plan.server.driver) {
        (Some(name), _) => Some(driver::read(name, Path::new(""))?),
        (None, Some(DriverSource::Named(name))) => Some(driver::read(name, beside)?),
        (None, Some(DriverSource::Written(text))) => Some(driver::read_text("driver of [server]", text)?),
        (None, None) => None,
    };
    let driver = driver.map(|driver| (Arc::new(driver), args.described.ca.as_deref()));
    println!("{}: {}", plan.name, plan.about);
    runner::run(&plan, &args.target, driver)
}

/// The settings of the scenario's own server; none if it cannot be read, which [`run`] tells.
pub(crate) fn settings(args: &RunArgs) -> Vec<(String, String)> {
    read_set(args).map(|plan| plan.server.settings).unwrap_or_default()
}

/// `bench scenario list` and `bench scenario show`.
pub(crate) fn show(args: &ScenarioArgs) -> Result<(), LabError> {
    let text = match &args.action {
        ScenarioAction::List => {
            let line = |(name, about): (&str, String)| format!("{name:<29} {about}\n");
            let small: String = shipped().map(line).collect();
            let full: String = with_about(library::FULL).map(line).collect();
            format!("{small}\nat full size, each by its name alone (`all` leaves them out):\n{full}")
        }
        ScenarioAction::Show { name } => library::find(name).ok_or_else(|| unknown(name))?.to_owned(),
    };
    match std::io::stdout().write_all(text.as_bytes()) {
        // A reader such as `head` closes the pipe when it has enough lines.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(()),
        written => Ok(written?),
    }
}

/// The scenario of `bench run` with what `--set` sets.
fn read_set(args: &RunArgs) -> Result<Plan, LabError> {
    if args.set.is_empty() {
        return read(&args.scenario, &args.options);
    }
    let (name, text) = text_of(&args.scenario)?;
    let mut scenario = OverriddenScenario::of(&name, &text)?;
    for line in &args.set {
        scenario.set_line(line)?;
    }
    scenario.plan(&args.options)
}

fn read(scenario: &str, options: &[String]) -> Result<Plan, LabError> {
    let (name, text) = text_of(scenario)?;
    Plan::read(&text, options).map_err(|mistake| LabError::Usage(mistake.show(&name, &text)))
}

/// Runs a scenario that is a command.
pub(crate) fn run_command(scenario: &OverriddenScenario, target: &TargetArgs) -> Result<RunResult, LabError> {
    runner::run(&scenario.plan(&[])?, target, None)
}

/// A scenario's name, and its text.
fn text_of(scenario: &str) -> Result<(String, String), LabError> {
    let is_file = scenario.ends_with(".toml") || scenario.contains('/') || Path::new(scenario).is_file();
    match library::find(scenario) {
        Some(text) if !is_file => Ok((scenario.to_owned(), text.to_owned())),
        None if !is_file => Err(unknown(scenario)),
        _ => {
            let text = std::fs::read_to_string(scenario);
            Ok((scenario.to_owned(), text.map_err(|error| LabError::Usage(format!("{scenario}: {error}")))?))
        }
    }
}

fn unknown(name: &str) -> LabError {
    let known: Vec<&str> = library::SHIPPED.iter().chain(library::FULL).map(|(name, _)| *name).collect();
    LabError::Usage(format!(
        "there is no scenario {name:?} in this program, and no such file; there are {}",
        known.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How the mistake in a scenario with this text is shown.
    fn mistake(text: &str) -> String {
        match Plan::read(text, &[]) {
            Ok(plan) => panic!("nothing is wrong with {}: {text}", plan.name),
            Err(mistake) => mistake.show("a.toml", text),
        }
    }

    const HEAD: &str = "name = \"a\"\nabout = \"A.\"\n";
    const GROUP: &str = "[population.g]\nkind = \"group\"\nmembers = 3\n";

    #[test]
    fn every_shipped_scenario_can_be_read_and_is_named_as_its_file() {
        for (name, text) in library::SHIPPED.iter().chain(library::FULL) {
            let plan = Plan::read(text, &[]).unwrap_or_else(|mistake| panic!("{}", mistake.show(name, text)));
            assert_eq!(plan.name, *name);
            assert!(plan.about.ends_with('.'), "{name}: {:?} is no sentence", plan.about);
        }
    }

    #[test]
    fn each_kind_of_mistake_is_shown_with_its_line() {
        let phase = |work: &str| format!("{HEAD}{GROUP}[[phase]]\nname = \"p\"\nduration = \"1s\"\n{work}");
        let work = |keys: &str| phase(&format!("[[phase.work]]\npopulation = \"g\"\n{keys}\n"));
        let cases = [
            (format!("{HEAD}rote = 5\n"), "a.toml:3:1: unknown field `rote`, expected one of `name`", "rote = 5"),
            (format!("{HEAD}[phase\n"), "a.toml:3:7: ", "[phase"),
            ("name = \"A b\"\nabout = \"A.\"\n".into(), "a.toml:1:8: a name is 1 to 60 of a to z", "name = \"A b\""),
            (HEAD.into(), "a.toml: a scenario needs at least one `[[phase]]`", ""),
            (
                format!("{HEAD}{}", GROUP.replace("group", "grop")),
                "a.toml:4:8: unknown variant `grop`, expected one of `group`",
                "kind = \"grop\"",
            ),
            (
                format!("{HEAD}{GROUP}pairs = 3\n"),
                "a.toml:6:9: a population of this kind has no `pairs`, but `members`",
                "pairs = 3",
            ),
            (format!("{HEAD}{GROUP}online = 4\n"), "a.toml:6:10: there are 3 members", "online = 4"),
            (
                format!("{HEAD}[population.g]\nkind = \"direct\"\n"),
                "a.toml:4:8: a population of this kind needs `pairs`",
                "kind = \"direct\"",
            ),
            (format!("{HEAD}{GROUP}"), "a.toml:3:", "[population.g]"),
            (work("rate = 0"), "a.toml:11:8: a rate must be above 0", "rate = 0"),
            (
                work("rate = \"fast\""),
                "a.toml:11:8: invalid value: string \"fast\", expected a number a second",
                "rate = \"fast\"",
            ),
            (
                work("rate = { rmp = 1 }"),
                "a.toml:11:10: unknown variant `rmp`, expected one of `ramp`, `steps`",
                "rate = { rmp = 1 }",
            ),
            (
                work("rate = { ramp = { from = 1, to = 2 }, steps = [1] }"),
                "a.toml:11:8: must have one of `ramp`",
                "rate = ",
            ),
            (
                work("rate = { burst = { base = 1, peak = 9, every = \"1s\", for = \"2s\" } }"),
                "a.toml:11:8: `for` must be above 0 and below `every`",
                "rate = ",
            ),
            (work("rate = { until_it_breaks = { from = 9, to = 1, each = \"1s\" } }"), "a.toml:", "until_it_breaks"),
            (work("share = 0.5"), "a.toml:11:9: the phase has no `rate` to share", "share = 0.5"),
            (
                work("rate = 5\nrounds = 2"),
                "a.toml:9:1: work has one of `rate`, `share`, `rounds` and `replay`",
                "[[phase.work]]",
            ),
            (
                work("rate = { share_of_max = { share = 0.5 } }"),
                "a.toml:7:8: `share_of_max` needs `each`",
                "name = \"p\"",
            ),
            (
                work("rate = { ramp = { from = 1, to = 2 } }\naround = \"1s\""),
                "a.toml:12:10: only work at a rate that does not change",
                "around = ",
            ),
            (
                format!("{HEAD}[population.g]\nkind = \"popup-users\"\nusers = 3\ngap = \"2s\"\n"),
                "a.toml:6:7: must be at least 3s",
                "gap = ",
            ),
            (
                work("rate = 5000").replace(GROUP, "[population.g]\nkind = \"streams\"\nstreams = 3\n"),
                "a.toml:9:1: a text would have 100000 bytes; a body has at most 65536",
                "[[phase.work]]",
            ),
            (
                format!("{HEAD}[server]\nnodes = 3\ncore = 0\n"),
                "a.toml:5:8: `core` is for one server of the lab's own",
                "core = 0",
            ),
            (
                format!("{HEAD}[server]\nbroker = \"mosquitto\"\ncore = 0\n"),
                "a.toml:5:8: `core` is for one server of the lab's own",
                "core = 0",
            ),
            (work("rate = 5\nthresholds = [\"p98<3\"]"), "a.toml:12:14: no such figure; there are p50", "p98<3"),
            (
                phase("[[phase.work]]\npopulation = \"h\"\nrate = 1\n"),
                "a.toml:10:14: there is no population `h`; there are `g`",
                "population = \"h\"",
            ),
            (
                phase("[[phase.work]]\nscript = \"s\"\n"),
                "a.toml:10:10: there is no script `s`; there is none",
                "script = \"s\"",
            ),
            (work("rate = 5").replace("\"1s\"", "\"1 hour\""), "a.toml:8:12: must be a time such as", "duration = "),
            (
                work("rate = 5").replace("duration = \"1s\"\n", ""),
                "a.toml:7:8: a phase with a rate needs `duration`",
                "name = \"p\"",
            ),
            (
                format!("{}[[fault]]\nat = \"1s\"\nkind = \"fire\"\n", work("rate = 5")),
                "a.toml:14:8: `fire` is not a kind of fault; there are `node-killed`",
                "kind = \"fire\"",
            ),
            (
                format!("{}[[fault]]\nat = \"1s\"\nkind = \"redis-emptied\"\n", work("rate = 5")),
                "a.toml:14:8: `redis-emptied` cannot happen to this server",
                "redis-emptied",
            ),
            (format!("{HEAD}[[command]]\nrun = \"grup --members 3\"\n"), "a.toml:4:7: ", "run = \"grup --members 3\""),
            (
                format!("{HEAD}[[command]]\nrun = \"run first-message\"\n"),
                "a.toml:4:7: ",
                "run = \"run first-message\"",
            ),
            (
                format!(
                    "{HEAD}[server]\nsettings = {{ TIDINGS_DATA_DIR = \"/x\" }}\n{GROUP}[[phase]]\nname = \"p\"\nduration = \"1s\"\n[[phase.work]]\npopulation = \"g\"\nrate = 1\n"
                ),
                "a.toml:4:14: TIDINGS_DATA_DIR is chosen for each server",
                "settings = ",
            ),
            (
                format!("{HEAD}[script.s]\nsessions = 1\nsteps = [\"bind\", {{ hope = 1 }}]\n"),
                "a.toml:5:20: unknown field `hope`, expected one of `wait`, `send`",
                "steps = ",
            ),
            (
                format!("{HEAD}[script.s]\nsessions = 1\nsteps = [\"acknowledge\"]\n"),
                "a.toml:5:10: step 1 (acknowledge) comes while the client is not bound",
                "steps = ",
            ),
        ];
        let wrong = cases.iter().filter_map(|(text, beginning, line)| {
            let shown = mistake(text);
            let is_right = shown.starts_with(beginning) && shown.contains(line);
            (!is_right).then(|| format!("{shown}\n--- is not {beginning}, or lacks {line}"))
        });
        let wrong: Vec<String> = wrong.collect();
        assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
    }

    #[test]
    fn a_scenario_is_run_on_as_many_nodes_as_are_asked_for_where_that_means_something() {
        let on = |name: &str, nodes, is_own| {
            let mut plan = read(name, &[]).unwrap_or_else(|error| panic!("{error}"));
            plan.run_on(nodes, is_own).map(|()| plan.server.nodes)
        };
        assert_eq!((on("group-ladder", 5, true), on("group-ladder", 1, true)), (Ok(Some(5)), Ok(None)));
        for (name, nodes, is_own, why) in [
            ("group-ladder", 3, false, "--url"),
            ("link-limit", 3, true, "commands"),
            ("faults", 3, true, "faults"),
            ("cluster-faults", 1, true, "faults"),
            ("ramp-until-it-breaks", 3, true, "descriptors"),
        ] {
            assert!(on(name, nodes, is_own).is_err_and(|answer| answer.contains(why)), "{name}");
        }
    }

    #[test]
    fn a_scenario_that_is_not_there_is_answered_with_those_that_are() {
        let answer = read("grup", &[]).map(|plan| plan.name);
        assert!(answer.is_err_and(|error| error.to_string().contains("first-message")));
    }
}
