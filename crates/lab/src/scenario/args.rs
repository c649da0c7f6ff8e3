//! The options of `bench run` and `bench scenario`.

use crate::{driver::DriverArgs, options::TargetArgs};
use clap::{Args, Subcommand};

#[derive(Debug, Clone, Args)]
pub struct RunArgs {
    /// A scenario's file, or the name of one that ships with the program: `bench scenario list` has them. `all` runs each of those,
    /// with a page in the folder of --report that leads to every report
    pub scenario: String,
    /// --url is loaded instead of the server that the scenario wants
    #[command(flatten)]
    pub target: TargetArgs,
    #[command(flatten)]
    pub described: DriverArgs,
    /// Another value in some place of the scenario, such as `population.group.members=500` or `phase.0.duration=5s`; may be repeated.
    /// Phases and works by their number from 0, or by their name
    #[arg(long, value_name = "KEY=VALUE")]
    pub set: Vec<String>,
    /// On a cluster of so many nodes instead of the server that the scenario wants, with PostgreSQL and Redis; 1 is one server
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u8).range(1..=9))]
    pub nodes: Option<u8>,
    /// Added to each command of the scenario, such as `-- --devices 200000`
    #[arg(last = true, value_name = "OPTIONS")]
    pub options: Vec<String>,
}

#[derive(Debug, Clone, Args)]
pub struct ScenarioArgs {
    #[command(subcommand)]
    pub action: ScenarioAction,
}

#[derive(Debug, Clone, Subcommand)]
pub enum ScenarioAction {
    /// The scenarios that ship with the program, each with a sentence
    List,
    /// A shipped scenario's file, to start one's own from
    Show { name: String },
}
