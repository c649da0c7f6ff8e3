//! The loop that only writes, as what a work's rounds are compared with: the limit of this machine.

use crate::{
    LabError,
    bare_load::BareLoad,
    options::TargetArgs,
    result::{RunResult, Summary, Table},
    worker_protocol::LoadModel,
};
use serde_json::{Value, json};

/// What is compared.
pub(super) struct Baseline {
    pub(super) receivers: usize,
    pub(super) model: LoadModel,
    pub(super) body_bytes: usize,
}

impl Baseline {
    /// Runs the same rounds on the loop, and returns both as figures. Agents load from elsewhere: a loop on this machine would say
    /// nothing about the server's.
    pub(super) fn compare(self, args: &TargetArgs, work: &Value, result: &mut RunResult) -> Result<Value, LabError> {
        let Baseline { receivers, model, body_bytes } = self;
        let bare = match args.load_agents.agents.is_empty() {
            true => Some(BareLoad::rounds(receivers, model, body_bytes).run(args)?),
            false => None,
        };
        let rounds: Vec<f64> = work["rounds"].as_array().into_iter().flatten().filter_map(Value::as_f64).collect();
        let (last, limit) = (Summary::of(&rounds), bare.as_ref().map(|bare| Summary::of(&bare.rounds)));
        let mut table = Table::of(&format!("time to the last of {receivers} receivers, ms|median|worst|best"));
        let mut row = |name: &str, summary: &Summary| {
            table.row(name, [summary.median, summary.worst, summary.best].map(|ms| format!("{ms:.1}")));
        };
        row("tidings", &last);
        limit.iter().for_each(|limit| row("bare loop", limit));
        let ratio = limit.as_ref().map(|limit| last.median / limit.median);
        ratio.iter().for_each(|ratio| table.row("ratio of medians", [format!("{ratio:.2}")]));
        result.table(table);
        let bare = bare.map(|bare| result.record_unprinted(bare.measured("a loop that only writes")));
        Ok(json!({
            "last_receiver_ms": last.json(), "bare_ms": limit.as_ref().map(Summary::json), "ratio": ratio, "bare": bare,
        }))
    }
}
