//! What a scenario does, once everything in its file is known to go together.
//!
//! [`population`] has who takes part, by its [`keys`], [`script`] what scripted clients do, [`phase`] which work runs when, [`load`] how much of it is due, [`fault`] what
//! happens to the server.

pub(crate) mod fault;
mod goal;
mod keys;
mod load;
pub(crate) mod phase;
pub(crate) mod population;
pub(crate) mod script;

use super::file::{CommandFile, ScenarioFile, ServerFile};
use crate::{
    ParsedCommand,
    message_clients::PairSpec,
    offline_push::{OfflineVia, fake_hook::HookMode},
    options,
    result::Threshold,
    toml_file::{Mistake, value},
    topology::broker::BrokerKind,
};
use fault::{Fault, Happening};
use phase::{Load, Phase, Work, Worker};
use population::{Members, Population};
use script::Script;
use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};
use toml::Spanned;

/// A scenario that can be run.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) server: Server,
    pub(crate) populations: BTreeMap<String, Population>,
    pub(crate) scripts: BTreeMap<String, Script>,
    pub(crate) phases: Vec<Phase>,
    pub(crate) faults: Vec<Fault>,
    pub(crate) commands: Vec<Command>,
    /// Of everything that is measured.
    pub(crate) thresholds: Vec<Threshold>,
}

/// The server that a scenario wants.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Server {
    pub(crate) url: Option<String>,
    /// How it is spoken to; unset: it is Tidings.
    pub(crate) driver: Option<DriverSource>,
    /// One that others wrote, which the lab starts.
    pub(crate) broker: Option<BrokerKind>,
    /// The nodes of a cluster; unset: one server.
    pub(crate) nodes: Option<usize>,
    /// What a message costs the parts of the cluster is told of each phase.
    pub(crate) measures_cost: bool,
    /// Who tells members who are offline: fakes of the lab's own, which count. Unset: nobody.
    pub(crate) offline_via: Option<OfflineVia>,
    /// A hook of the lab's own, which the server asks. Unset: it asks none.
    pub(crate) hook: Option<HookMode>,
    /// A consumer of the lab's own follows its feed by a webhook that fails for this share of the direct conversations.
    pub(crate) events_fail: Option<f64>,
    /// Files that the server may open.
    pub(crate) descriptors: Option<u64>,
    /// The only core that one server runs on; unset: any.
    pub(crate) core: Option<usize>,
    /// Processes that hold the devices' connections; 0: the server does itself.
    pub(crate) gateways: usize,
    /// Devices connect by TLS.
    pub(crate) tls: bool,
    /// Of a server that runs already: where devices connect, and the certificate that they accept.
    pub(crate) listeners: Vec<SocketAddr>,
    pub(crate) certificate: Option<PathBuf>,
    /// As environment variables.
    pub(crate) settings: Vec<(String, String)>,
}

/// Where a driver is.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum DriverSource {
    /// One that ships with the program, or a file.
    Named(String),
    /// In the scenario itself.
    Written(String),
}

impl DriverSource {
    fn of(written: &Spanned<toml::Value>) -> Result<Self, Mistake> {
        match written.get_ref() {
            toml::Value::String(name) => Ok(DriverSource::Named(name.clone())),
            toml::Value::Table(driver) => {
                let text = toml::to_string(driver).map_err(|error| Mistake::at(written.span(), error.to_string()))?;
                Ok(DriverSource::Written(text))
            }
            _ => Err(Mistake::at(written.span(), "a driver is a name, a file, or a table with all that it says")),
        }
    }
}

/// Another bench, with its options.
#[derive(Debug)]
pub(crate) struct Command {
    pub(crate) name: String,
    pub(crate) line: String,
    pub(crate) parsed: ParsedCommand,
}

/// The longest name: it becomes the name of a folder.
const NAME_CHARS_MAX: usize = 60;

impl Plan {
    /// Reads a scenario. `options` are added to each command of it.
    pub(crate) fn read(text: &str, options: &[String]) -> Result<Self, Mistake> {
        Plan::of(&toml::from_str(text)?, options)
    }

    fn of(file: &ScenarioFile, options: &[String]) -> Result<Self, Mistake> {
        let name = file.name.get_ref();
        let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        if name.is_empty() || name.len() > NAME_CHARS_MAX || !name.chars().all(is_name) {
            let what = format!("a name is 1 to {NAME_CHARS_MAX} of a to z, 0 to 9 and `-`");
            return Err(Mistake::at(file.name.span(), what));
        }
        let mut server = file.server.as_ref().map(server_of).transpose()?.unwrap_or_default();
        set_offline_push(file, &mut server)?;
        let populations: BTreeMap<String, Population> = (file.population.iter())
            .map(|(name, written)| Ok((name.clone(), Population::of(written)?)))
            .collect::<Result<_, Mistake>>()?;
        server.tls = populations.values().any(Population::needs_tls);
        let scripts: BTreeMap<String, Script> = (file.script.iter())
            .map(|(name, written)| Ok((name.clone(), Script::of(written)?)))
            .collect::<Result<_, Mistake>>()?;
        let script_names: Vec<&String> = scripts.keys().collect();
        let mut phases: Vec<Phase> = Vec::new();
        for written in &file.phase {
            let phase = Phase::of(written, &populations, &script_names)?;
            if let Some(work) = phase.works.iter().find(|work| work.load.is_share_of_earlier())
                && !phases.iter().any(|earlier| earlier.finds_the_most_of(&work.worker))
            {
                let what = format!(
                    "`share_of_max` needs `each`: in no earlier phase `{}` works at \"max\"",
                    work.worker.name()
                );
                return Err(Mistake::at(written.get_ref().name.span(), what));
            }
            if phases.iter().any(|other| other.name == phase.name) {
                return Err(Mistake::at(written.get_ref().name.span(), "another phase has this name"));
            }
            phases.push(phase);
        }
        let used: Vec<&Worker> = phases.iter().flat_map(|phase| &phase.works).map(|work| &work.worker).collect();
        for (name, written) in &file.population {
            check_use(name, &populations[name], &used).map_err(|what| Mistake::at(written.span(), what))?;
            if server.driver.is_some() && !populations[name].can_be_driven() {
                let what =
                    "by a `driver`, groups, official accounts and direct conversations are loaded, and no other kind";
                return Err(Mistake::at(written.span(), what));
            }
        }
        for (name, written) in &file.script {
            if !used.contains(&&Worker::Script(name.clone())) {
                return Err(Mistake::at(written.span(), format!("no phase has work for the script `{name}`")));
            }
        }
        if phases.is_empty() && file.command.is_empty() {
            return Err(Mistake::nowhere("a scenario needs at least one `[[phase]]` or `[[command]]`"));
        }
        let names: Vec<String> = phases.iter().map(|phase| phase.name.clone()).collect();
        let faults = faults_of(file, &names, (&phases, &populations), &server)?;
        let commands = file.command.iter().map(|written| Command::of(written.get_ref(), options));
        Ok(Plan {
            name: name.clone(),
            about: file.about.clone(),
            server,
            populations,
            scripts,
            phases,
            faults,
            commands: commands.collect::<Result<_, _>>()?,
            thresholds: file.thresholds.iter().map(|bound| bound.0.clone()).collect(),
        })
    }

    /// Has it run on so many nodes instead of on the server that its file wants.
    pub(crate) fn run_on(&mut self, nodes: usize, is_own: bool) -> Result<(), String> {
        if !is_own {
            return Err("the server at --url has as many as it has".into());
        }
        if !self.commands.is_empty() {
            return Err("the commands of this scenario start servers of their own".into());
        }
        if self.has_faults() {
            return Err("the faults of this scenario happen to the server that its file wants".into());
        }
        if self.server.measures_cost && nodes == 1 {
            return Err("the file sets `measures_cost` of a cluster".into());
        }
        if self.server.descriptors.is_some() {
            return Err("the file sets `descriptors` of one server".into());
        }
        self.server.nodes = (nodes > 1).then_some(nodes);
        self.server.core = self.server.core.filter(|_| nodes == 1);
        Ok(())
    }

    /// What a server that others wrote cannot be asked for, if there is something.
    pub(crate) fn beyond_drivers(&self) -> Option<String> {
        let other = self.populations.iter().find(|(_, population)| !population.can_be_driven());
        let has_batches = self.phases.iter().flat_map(|phase| &phase.works).any(|work| work.batch > 1);
        match (other, self.scripts.keys().next()) {
            (Some((name, _)), _) | (None, Some(name)) => {
                Some(format!("`{name}` is neither a group nor an official account nor direct conversations"))
            }
            _ if self.has_faults() => Some("the faults of this scenario happen to a server of its own".into()),
            _ if !self.commands.is_empty() => Some("the commands of this scenario load Tidings".into()),
            _ if has_batches => Some("`batch`: a driver publishes one message at a time".into()),
            _ => None,
        }
    }

    /// Whether the server ends, or stops, and comes back while load runs.
    pub(crate) fn has_faults(&self) -> bool {
        !self.faults.is_empty()
    }
}

fn check_use(name: &str, population: &Population, used: &[&Worker]) -> Result<(), String> {
    let uses = used.iter().filter(|worker| **worker == &Worker::Population(name.to_owned())).count();
    match (uses, &population.members) {
        (0, _) => Err(format!("no phase has work for the population `{name}`")),
        (2.., Members::Pairs(PairSpec { are_open: false, .. }, _) | Members::Chat(_) | Members::Streams(_)) => {
            Err("these users do their work once: each task needs a population of its own".into())
        }
        _ => Ok(()),
    }
}

fn server_of(written: &Spanned<ServerFile>) -> Result<Server, Mistake> {
    let file = written.get_ref();
    let (url, nodes, descriptors) = (value(&file.url), value(&file.nodes), value(&file.descriptors));
    if let Some(nodes) = file.nodes.as_ref().filter(|nodes| !(2..=9).contains(nodes.get_ref())) {
        return Err(Mistake::at(nodes.span(), "a cluster has 2 to 9 nodes; without `nodes` there is one server"));
    }
    let is_of_own = nodes.is_some() || descriptors.is_some() || !file.settings.is_empty();
    if url.is_some() && is_of_own {
        return Err(Mistake::at(written.span(), "a server with `url` runs already: nothing else can be said about it"));
    }
    if let Some(driver) = file.driver.as_ref().filter(|_| is_of_own) {
        return Err(Mistake::at(driver.span(), "the lab starts no server that others wrote: `driver` goes with `url`"));
    }
    if let (Some(gateways), true) = (&file.gateways, url.is_some()) {
        return Err(Mistake::at(gateways.span(), "`gateways` are of a server or a cluster of the lab's own"));
    }
    if let (Some(cost), None) = (&file.measures_cost, nodes) {
        return Err(Mistake::at(cost.span(), "`measures_cost` is for a cluster: it needs `nodes`"));
    }
    if let (Some(descriptors), Some(_)) = (&file.descriptors, nodes) {
        return Err(Mistake::at(descriptors.span(), "`descriptors` is for one server, not for a cluster"));
    }
    if let (Some(core), true) =
        (&file.core, nodes.is_some() || url.is_some() || file.driver.is_some() || file.broker.is_some())
    {
        return Err(Mistake::at(core.span(), "`core` is for one server of the lab's own"));
    }
    let parse = if nodes.is_some() { options::parse_cluster_setting } else { options::parse_setting };
    let mut settings = Vec::new();
    for (name, value) in &file.settings {
        let text = match value.get_ref() {
            toml::Value::String(text) => text.clone(),
            value @ (toml::Value::Integer(_) | toml::Value::Boolean(_) | toml::Value::Float(_)) => value.to_string(),
            _ => return Err(Mistake::at(value.span(), "a setting is a text, a number or true or false")),
        };
        let setting = parse(&format!("{}={text}", name.get_ref())).map_err(|why| Mistake::at(name.span(), why))?;
        settings.push(setting);
    }
    if let Some(broker) = file.broker.as_ref().filter(|_| url.is_some() || is_of_own) {
        let what = "a `broker` is started as it comes: nothing but its `driver` can be said";
        return Err(Mistake::at(broker.span(), what));
    }
    let broker = value(&file.broker);
    let usual = broker.map(|broker| DriverSource::Named(broker.driver().to_owned()));
    let driver = file.driver.as_ref().map(DriverSource::of).transpose()?.or(usual);
    let called = file.hook.as_ref().map(Spanned::span).or(file.events_fail.as_ref().map(Spanned::span));
    if let (Some(span), true) = (called, url.is_some() || driver.is_some() || nodes.is_some()) {
        return Err(Mistake::at(span, "the lab's hook and webhook are called by one server of the lab's own"));
    }
    Ok(Server {
        url,
        driver,
        broker,
        nodes,
        measures_cost: value(&file.measures_cost).unwrap_or(false),
        offline_via: value(&file.offline_via),
        hook: value(&file.hook),
        events_fail: value(&file.events_fail),
        descriptors,
        core: value(&file.core),
        gateways: value(&file.gateways).unwrap_or(0),
        // By the populations.
        tls: false,
        listeners: file.listeners.clone(),
        certificate: file.certificate.clone(),
        settings,
    })
}

/// Has the server tell the fakes if a population has members who are to be told.
fn set_offline_push(file: &ScenarioFile, server: &mut Server) -> Result<(), Mistake> {
    let mut keys = file.population.values().flat_map(|written| written.get_ref());
    let Some((share, _)) = keys.find(|(key, _)| key.get_ref() == "offline_share") else {
        let via = file.server.as_ref().and_then(|server| server.get_ref().offline_via.as_ref());
        return match via {
            Some(via) => Err(Mistake::at(via.span(), "no population has an `offline_share`")),
            None => Ok(()),
        };
    };
    if server.url.is_some() || server.driver.is_some() {
        return Err(Mistake::at(share.span(), "a server with `url` runs already: it does not tell the lab's fakes"));
    }
    if let Some(fault) = file.fault.first() {
        let what = "a fault may repeat what members who are offline are told: `tidings bench notifications --kill` allows for it";
        return Err(Mistake::at(fault.span(), what));
    }
    server.offline_via = Some(server.offline_via.unwrap_or_default());
    Ok(())
}

fn faults_of(
    file: &ScenarioFile,
    names: &[String],
    (phases, populations): (&[Phase], &BTreeMap<String, Population>),
    server: &Server,
) -> Result<Vec<Fault>, Mistake> {
    let mut faults: Vec<Fault> = Vec::new();
    for written in &file.fault {
        let refuse = |what: &str| Err(Mistake::at(written.span(), what));
        if server.url.is_some() {
            return refuse("a server with `url` is not the lab's to break");
        }
        let fault = Fault::of(written, names, server)?;
        let phase = &phases[fault.phase];
        if phase.search.is_some() {
            return refuse("a phase that runs until it breaks has no faults");
        }
        // Only the load client for messages tries its connections again until the server is back; the devices that outlive a
        // gateway have no other fault.
        let outlives = |work: &Work| match (&work.worker, &work.load) {
            (_, Load::Outlive { .. }) => fault.kind == Happening::GatewayKilled,
            (Worker::Population(name), _) => populations[name].sends_messages(),
            (Worker::Script(_), _) => false,
        };
        if !phase.works.iter().all(outlives) {
            return refuse("faults happen to phases in which messages are sent, and nothing else");
        }
        if faults
            .iter()
            .any(|other| other.phase == fault.phase && other.at < fault.ends_at() && fault.at < other.ends_at())
        {
            return refuse("a fault begins when the one before is over");
        }
        faults.push(fault);
    }
    faults.sort_by_key(|fault| (fault.phase, fault.at));
    Ok(faults)
}

impl Command {
    fn of(file: &CommandFile, options: &[String]) -> Result<Self, Mistake> {
        let line = [file.run.get_ref().as_str()].into_iter().chain(options.iter().map(String::as_str));
        let line = line.collect::<Vec<_>>().join(" ");
        let parsed = ParsedCommand::parse(&line).map_err(|why| Mistake::at(file.run.span(), why))?;
        Ok(Command { name: file.name.clone().unwrap_or_else(|| line.clone()), line, parsed })
    }
}
