//! A scenario with other values in some places: by `--set` of `bench run`, and by the options of commands that are scenarios.

use super::{library, plan::Plan};
use crate::LabError;
use std::fmt::Display;
use toml::{Table, Value};

/// A scenario as it is written, with other values in some places.
#[derive(Debug, Clone)]
pub(crate) struct OverriddenScenario {
    name: String,
    file: Table,
}

impl OverriddenScenario {
    /// One that ships with the program.
    pub(crate) fn shipped(name: &str) -> Result<Self, LabError> {
        let text = library::find(name).ok_or_else(|| LabError::Usage(format!("no scenario {name}")))?;
        OverriddenScenario::of(name, text)
    }

    pub(crate) fn of(name: &str, text: &str) -> Result<Self, LabError> {
        let file = text.parse::<Table>().map_err(|error| usage(name, error))?;
        Ok(OverriddenScenario { name: name.to_owned(), file })
    }

    /// Sets the value at a path such as `population.group.members` or `phase.0.work.0.rate`; phases and works also by their names.
    pub(crate) fn set(&mut self, path: &str, value: impl Into<Value>) -> Result<&mut Self, LabError> {
        let names: Vec<&str> = path.split('.').collect();
        set(&mut self.file, &names, value.into()).map_err(|why| usage(&format!("{}, {path}", self.name), why))?;
        Ok(self)
    }

    /// The same if there is a value.
    pub(crate) fn set_if(&mut self, path: &str, value: Option<impl Into<Value>>) -> Result<&mut Self, LabError> {
        match value {
            Some(value) => self.set(path, value),
            None => Ok(self),
        }
    }

    /// Leaves out all phases but the first ones.
    pub(crate) fn only_first_phases(&mut self, count: usize) -> &mut Self {
        if let Some(Value::Array(phases)) = self.file.get_mut("phase") {
            phases.truncate(count);
        }
        self
    }

    /// Has the last phase so many times, numbered if it is more than once.
    pub(crate) fn repeat_last_phase(&mut self, times: usize) -> &mut Self {
        if let Some(Value::Array(phases)) = self.file.get_mut("phase")
            && let Some(last) = phases.pop()
        {
            phases.extend((1..=times).map(|number| {
                let mut phase = last.clone();
                if let (Some(phase), 2..) = (phase.as_table_mut(), times) {
                    let name = phase.get("name").and_then(Value::as_str).unwrap_or_default();
                    phase.insert("name".into(), format!("{name} {number}").into());
                }
                phase
            }));
        }
        self
    }

    /// Leaves out the phases that are not named, and who then has no work.
    pub(crate) fn only_phases(&mut self, names: &[&str]) -> &mut Self {
        self.retain(|phase, _| names.contains(&phase))
    }

    /// Leaves out the populations that are not named, with their work, and phases that then have none.
    pub(crate) fn only_populations(&mut self, names: &[&str]) -> &mut Self {
        self.retain(|_, population| names.contains(&population))
    }

    /// Leaves out a population with its work, and phases in which nobody else works.
    pub(crate) fn without(&mut self, population: &str) -> &mut Self {
        self.retain(|_, other| other != population)
    }

    /// Keeps the work for which this holds, by the names of its phase and its population.
    fn retain(&mut self, keeps: impl Fn(&str, &str) -> bool) -> &mut Self {
        let name_of = |table: &Value, key: &str| table.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let mut workers = Vec::new();
        if let Some(Value::Array(phases)) = self.file.get_mut("phase") {
            phases.retain_mut(|phase| {
                let name = name_of(phase, "name");
                let Some(works) = phase.get_mut("work").and_then(Value::as_array_mut) else { return false };
                works.retain(|work| keeps(&name, &name_of(work, "population")));
                workers.extend(works.iter().map(|work| name_of(work, "population")));
                !works.is_empty()
            });
        }
        if let Some(Value::Table(populations)) = self.file.get_mut("population") {
            populations.retain(|name, _| workers.iter().any(|worker| worker == name));
        }
        self
    }

    /// A setting as it is given on the command line: `KEY=VALUE`, with a value of TOML or a text.
    pub(super) fn set_line(&mut self, line: &str) -> Result<(), LabError> {
        let Some((path, value)) = line.split_once('=') else {
            return Err(LabError::Usage(format!("--set {line}: write it as KEY=VALUE, such as phase.0.duration=5s")));
        };
        let parsed = format!("value = {value}").parse::<Table>().ok().and_then(|mut table| table.remove("value"));
        self.set(path.trim(), parsed.unwrap_or_else(|| Value::String(value.to_owned()))).map(|_| ())
    }

    /// What it does, once it goes together. `options` are added to each command of it.
    pub(crate) fn plan(&self, options: &[String]) -> Result<Plan, LabError> {
        let text = toml::to_string(&self.file).map_err(|error| usage(&self.name, error))?;
        Plan::read(&text, options)
            .map_err(|mistake| LabError::Usage(mistake.show(&format!("{}, as it is set", self.name), &text)))
    }
}

fn usage(name: &str, why: impl Display) -> LabError {
    LabError::Usage(format!("{name}: {why}"))
}

fn set(table: &mut Table, path: &[&str], value: Value) -> Result<(), String> {
    match path {
        [] | [""] => Err("names nothing".into()),
        [last] => {
            table.insert((*last).to_owned(), value);
            Ok(())
        }
        [first, rest @ ..] => {
            let inner = table.entry((*first).to_owned()).or_insert_with(|| Value::Table(Table::new()));
            match (inner, rest) {
                (Value::Table(inner), rest) => set(inner, rest, value),
                (Value::Array(all), [which, rest @ ..]) => match element(all, which) {
                    Some(inner) => set(inner, rest, value),
                    None => Err(format!("`{first}` has no `{which}`")),
                },
                _ => Err(format!("`{first}` has nothing inside")),
            }
        }
    }
}

/// An element by its number from 0, or by its name.
fn element<'a>(all: &'a mut [Value], which: &str) -> Option<&'a mut Table> {
    let by_name = all.iter().position(|one| one.get("name").and_then(Value::as_str) == Some(which));
    all.get_mut(by_name.or(which.parse().ok())?)?.as_table_mut()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::plan::phase::Load;

    #[test]
    fn values_are_set_by_their_place() {
        let mut scenario = OverriddenScenario::shipped("direct").unwrap_or_else(|error| panic!("{error}"));
        for line in [
            "population.pairs.pairs=7",
            "phase.open loop.duration=3s",
            "phase.0.work.0.window=5",
            "server.settings.TIDINGS_LOG_LEVEL=debug",
        ] {
            scenario.set_line(line).unwrap_or_else(|error| panic!("{error}"));
        }
        let plan = scenario.plan(&[]).unwrap_or_else(|error| panic!("{error}"));
        assert!(matches!(&plan.phases[0].works[0].load, Load::Max { window: 5, .. }), "{:?}", plan.phases[0]);
        assert!(matches!(&plan.phases[1].works[0].load, Load::Planned(profile) if profile.seconds() == 3.0));
        assert_eq!(plan.server.settings, [("TIDINGS_LOG_LEVEL".to_owned(), "debug".to_owned())]);
    }

    #[test]
    fn what_is_not_there_and_what_does_not_fit_is_told() {
        for (line, told) in [
            ("phase.9.duration=3s", "`phase` has no `9`"),
            ("about.x=1", "`about` has nothing inside"),
            ("nothing", "KEY=VALUE"),
        ] {
            let mut scenario = OverriddenScenario::shipped("direct").unwrap_or_else(|error| panic!("{error}"));
            assert!(scenario.set_line(line).is_err_and(|error| error.to_string().contains(told)), "{line}");
        }
        let mut scenario = OverriddenScenario::shipped("direct").unwrap_or_else(|error| panic!("{error}"));
        scenario.set_line("population.pairs.pears=7").unwrap_or_else(|error| panic!("{error}"));
        let told = scenario.plan(&[]).map(|plan| plan.name);
        assert!(told.is_err_and(|error| error.to_string().contains("has no `pears`")));
    }
}
