//! The commands of `tidings bench`. A command's own options are in its file; shared options are in [`options`](crate::options).

pub use crate::{
    agent::AgentArgs,
    bare_server::BareServerArgs,
    broadcast::BroadcastArgs,
    brokers::{BrokersArgs, ComparedServer},
    chaos::args::ChaosArgs,
    cluster_scale::ClusterScaleArgs,
    compare::CompareArgs,
    crash::CrashArgs,
    device_commands::{ConnectArgs, DeviceArgs, DevicePushArgs, ExceptionsArgs, FailoverArgs, StormArgs},
    devices::bare_accept::BareAcceptArgs,
    direct::DirectArgs,
    driver::DriverArgs,
    events::EventsArgs,
    group::GroupArgs,
    isolation::{Flood, IsolationArgs},
    leader::LeaderArgs,
    notifications::{NotificationArgs, PlantedKind},
    popup::PopupArgs,
    popups::args::{PopupCapsArgs, PopupCrashArgs},
    replay::ReplayArgs,
    report::OutputArgs,
    scenario::args::{RunArgs, ScenarioArgs},
    streams::StreamsArgs,
    ws_interop::WsProbeArgs,
};
use crate::{options::TargetArgs, scenario};
use clap::{Args, Subcommand};
use std::borrow::Cow;

/// Load a server the way its users will, and prove with counts that nothing was lost.
#[derive(Debug, Clone, Args)]
pub struct BenchArgs {
    #[command(flatten)]
    pub output: OutputArgs,
    #[command(subcommand)]
    pub bench: Bench,
}

#[derive(Debug, Clone, Subcommand)]
pub enum Bench {
    /// A scenario: populations, phases, rates, faults and thresholds from a file, or one that ships with the program
    Run(RunArgs),
    /// The scenarios that ship with the program
    Scenario(ScenarioArgs),
    /// A group with many members online: HTTP send to every member's WebSocket
    Group(GroupArgs),
    /// One message to a big group: time to the last receiver, compared with a loop that only writes
    Broadcast(BroadcastArgs),
    /// A recorded chat: its authors as users, one room, everyone a member
    Replay(ReplayArgs),
    /// Messages that grow, many at once, read while they are written, beside plain messages
    Streams(StreamsArgs),
    /// Direct messages, each to a connected recipient
    Direct(DirectArgs),
    /// Whether every message reaches every member by the channels that are due, once: sessions, webhook, providers
    #[command(alias = "reach")]
    Notifications(NotificationArgs),
    /// Direct messages beside floods: a group, an official account, one user, queues that are full
    Isolation(IsolationArgs),
    /// The feed of events by a webhook that fails for some conversations, beside a busy group
    Events(EventsArgs),
    /// Kill the server at random moments under load, and prove that nothing acknowledged was lost
    Crash(CrashArgs),
    /// Kill, restart, freeze, stop and cut off parts of a cluster under load, and prove that no member of a group missed anything
    Chaos(ChaosArgs),
    /// The leader of a cluster is killed again and again, or nodes are frozen: how long others wait
    Leader(LeaderArgs),
    /// What one operation costs each process of a cluster, in clusters of several sizes
    ClusterScale(ClusterScaleArgs),
    /// Devices bind, stay with heartbeats, and what that costs
    Connect(ConnectArgs),
    /// All devices disconnect at once and reconnect at once, compared with a loop that only accepts
    Storm(StormArgs),
    /// A gateway is killed with its devices on it while pushes go on
    Failover(FailoverArgs),
    /// Protocol violations and faults of devices, and whether the server answers each as documented
    Exceptions(ExceptionsArgs),
    /// A push to every device: time to the last of them and to the last acknowledgement
    Push(DevicePushArgs),
    /// Reports of several versions or steps beside each other, with what the rounds allow to say
    Compare(CompareArgs),
    /// The traffic of a home page: decisions and events of a million users, compared with nginx
    Popup(PopupArgs),
    /// All devices of a user request popups at once, for every kind of cap, also after a restart
    PopupCaps(PopupCapsArgs),
    /// Kill the server at random moments under decisions and events, and prove that it kept what it acknowledged
    PopupCrash(PopupCrashArgs),
    /// The same load on servers that others wrote: nats-server, mosquitto, and a loop that only writes
    Brokers(BrokersArgs),
    /// Lend this machine to a bench that runs elsewhere with `--agents`
    Agent(AgentArgs),
    #[command(hide = true)]
    Worker,
    #[command(hide = true)]
    DeviceWorker,
    #[command(hide = true)]
    BareAccept(BareAcceptArgs),
    #[command(hide = true)]
    BareServer(BareServerArgs),
    #[command(hide = true)]
    WsEcho,
    #[command(hide = true)]
    WsProbe(WsProbeArgs),
}

/// What a command is, beside its own options.
#[derive(Clone, Copy, Default)]
pub(crate) struct CommandTraits<'a> {
    /// The options of the server under test, of benches that have them.
    pub(crate) target: Option<&'a TargetArgs>,
    /// The `--set` settings of the bench's own servers.
    settings: &'a [(String, String)],
    /// Whether it is a scenario, and so has parts that are named and counted alike.
    pub(crate) is_scenario: bool,
    /// Whether a scenario may name it as one of its commands: all that load a server, and are not given as a scenario.
    pub(crate) is_part: bool,
    /// Whether Ctrl-C lets it end early with a report: those whose load comes in phases that can be cut short. The others prove
    /// something about a whole sequence of faults, of which a part says nothing.
    pub(crate) ends_early: bool,
    /// Whether all of its load comes from load clients that agents can start.
    pub(crate) takes_agents: bool,
}

impl Bench {
    pub(crate) fn traits<'a>(&'a self) -> CommandTraits<'a> {
        let own = CommandTraits { is_part: true, ..CommandTraits::default() };
        let on = |target| CommandTraits { target: Some(target), ..own };
        let scenario = |target| CommandTraits { is_scenario: true, ..on(target) };
        let messages = |target| CommandTraits { ends_early: true, takes_agents: true, ..scenario(target) };
        let faults =
            |devices: &'a DeviceArgs| CommandTraits { settings: &devices.settings, ..scenario(&devices.target) };
        let devices = |devices| CommandTraits { takes_agents: true, ..faults(devices) };
        match self {
            Bench::Run(args) => CommandTraits { is_part: false, ..messages(&args.target) },
            Bench::Group(args) => messages(&args.target),
            Bench::Broadcast(args) => messages(&args.target),
            Bench::Replay(args) => messages(&args.target),
            Bench::Direct(args) => messages(&args.target),
            Bench::Isolation(args) => messages(&args.target),
            Bench::Streams(args) => scenario(&args.target),
            Bench::Events(args) => scenario(&args.target),
            Bench::Popup(args) => {
                CommandTraits { settings: &args.settings, ends_early: true, ..scenario(&args.target) }
            }
            Bench::Connect(args) => devices(&args.devices),
            Bench::Storm(args) => devices(&args.devices),
            Bench::Push(args) => devices(&args.devices),
            Bench::Failover(args) => faults(&args.devices),
            Bench::Exceptions(args) => faults(&args.devices),
            Bench::Brokers(args) => on(&args.target),
            Bench::PopupCaps(args) => on(&args.target),
            Bench::Notifications(_)
            | Bench::Crash(_)
            | Bench::Chaos(_)
            | Bench::Leader(_)
            | Bench::ClusterScale(_)
            | Bench::PopupCrash(_) => own,
            Bench::Scenario(_)
            | Bench::Compare(_)
            | Bench::Agent(_)
            | Bench::Worker
            | Bench::DeviceWorker
            | Bench::BareAccept(_)
            | Bench::BareServer(_)
            | Bench::WsEcho
            | Bench::WsProbe(_) => CommandTraits::default(),
        }
    }
}

impl BenchArgs {
    /// The `--set` settings for the bench's own servers, and those of a scenario, as environment variables.
    pub fn settings(&self) -> Cow<'_, [(String, String)]> {
        match &self.bench {
            Bench::Run(args) => Cow::Owned(scenario::settings(args)),
            bench => Cow::Borrowed(bench.traits().settings),
        }
    }
}
