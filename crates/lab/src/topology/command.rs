//! `tidings cluster`: a local cluster to try things with, until Ctrl-C.

use super::{Topology, TopologySpec, node_name};
use crate::{LabError, exit_code, options::parse_cluster_setting};
use clap::Args;
use std::{io::Write, path::PathBuf, process::ExitCode, time::Duration};

/// Options of `tidings cluster`.
#[derive(Debug, Clone, Args)]
pub struct ClusterArgs {
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// The folder of the cluster, empty or new; unless given, a temporary one that is removed at the end
    #[arg(long, value_name = "FOLDER")]
    dir: Option<PathBuf>,
    /// A setting of all nodes, such as TIDINGS_LOG_LEVEL=debug; may be repeated. Keys are made up unless set
    #[arg(long, value_name = "NAME=VALUE", value_parser = parse_cluster_setting)]
    set: Vec<(String, String)>,
}

impl ClusterArgs {
    /// The `--set` settings of all nodes, as environment variables.
    pub fn settings(&self) -> &[(String, String)] {
        &self.set
    }
}

/// The most nodes on one machine.
const NODES_MAX: usize = 20;
/// The interval between two checks that all processes run.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Starts a cluster, prints its addresses, and stops it when `told_to_stop` returns true.
pub fn run(args: &ClusterArgs, told_to_stop: impl Fn() -> bool) -> ExitCode {
    exit_code(keep(args, told_to_stop).map(|()| crate::Verdict::Passed))
}

fn keep(args: &ClusterArgs, told_to_stop: impl Fn() -> bool) -> Result<(), LabError> {
    if !(1..=NODES_MAX).contains(&args.nodes) {
        return Err(LabError::Usage(format!("--nodes must be 1 to {NODES_MAX}")));
    }
    if let Some(dir) = &args.dir
        && std::fs::read_dir(dir).is_ok_and(|mut entries| entries.next().is_some())
    {
        return Err(LabError::Usage(format!("--dir {}: is not empty", dir.display())));
    }
    println!("starting PostgreSQL with a standby, a Redis Cluster of six and {} nodes …", args.nodes);
    let (folder, environment) = (args.dir.clone(), args.set.clone());
    let spec = TopologySpec { nodes: args.nodes, folder, environment, ..TopologySpec::default() };
    let mut topology = Topology::start(&spec)?;
    describe(&topology);
    let mut reported = Vec::new();
    while !told_to_stop() {
        for end in topology.unexpected_ends().into_iter().take(1) {
            if !reported.contains(&end) {
                eprintln!("ended: {end}");
                reported.push(end);
            }
        }
        std::thread::sleep(CHECK_INTERVAL);
    }
    // Standard output may be closed, and the cluster must be stopped all the same.
    let _ = writeln!(std::io::stdout(), "stopping …");
    topology.stop()
}

fn describe(topology: &Topology) {
    println!();
    for (number, node) in topology.nodes.iter().enumerate() {
        let pid = node.pid().unwrap_or_default();
        println!("node {:<8} {}  miop {}  pid {pid}", node_name(number), node.url(), node.miop());
    }
    let redis: Vec<String> = topology.redis.addresses().map(|address| address.to_string()).collect();
    println!("database      {}", topology.database_url());
    println!("Redis         {}", redis.join(" "));
    println!("folder        {}", topology.folder().display());
    println!("API key       {}", topology.api_key);
    println!("token key     {}", topology.token_key);
    let urls: Vec<String> = topology.nodes.iter().map(|node| node.url()).collect();
    let (first, last) = (urls.first().map_or("", String::as_str), urls.last().map_or("", String::as_str));
    println!("\nTry, in another terminal:");
    println!("  export TIDINGS_API_KEY={} TIDINGS_TOKEN_KEY={}", topology.api_key, topology.token_key);
    println!("  tidings bench group --url {} --rate 200", urls.join(","));
    println!("  curl -H \"Authorization: Bearer $TIDINGS_API_KEY\" {first}/v1/admin/nodes");
    let last = last.trim_start_matches("http://");
    println!("  tidings listen bob --server {last}   # what is sent to bob through any node arrives here");
    println!("\nCtrl-C stops it.");
}
