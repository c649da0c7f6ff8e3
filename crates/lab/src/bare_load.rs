//! A load of messages on the bare server: what is measured is the lab, and the system calls that no server can spare.

use crate::{
    LabError,
    load_client::{LoadClient, Participants},
    options::TargetArgs,
    process, setup,
    worker_protocol::{Content, Conversation, LoadModel, Outcome, Phase},
};
use std::{
    io::{BufRead, BufReader},
    process::{Command, Stdio},
};

pub(crate) struct BareLoad {
    pub(crate) members: usize,
    /// Connections that send.
    pub(crate) senders: usize,
    pub(crate) model: LoadModel,
    pub(crate) body_bytes: usize,
}

impl BareLoad {
    /// One message at a time.
    pub(crate) fn rounds(members: usize, model: LoadModel, body_bytes: usize) -> Self {
        BareLoad { members, senders: 1, model, body_bytes }
    }

    pub(crate) fn run(self, args: &TargetArgs) -> Result<Outcome, LabError> {
        let BareLoad { members, senders, .. } = self;
        let conversation = format!("group-{}", process::run_tag());
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "bare-server", "--receivers", &members.to_string(), "--senders", &senders.to_string()])
            .args(["--conversation", &conversation])
            .args(["--avoid-core", &args.client_core.unwrap_or_else(process::last_core).to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        if let Some(stdout) = child.stdout.take() {
            BufReader::new(stdout).read_line(&mut line)?;
        }
        let result = match line.trim().parse() {
            Err(_) => Err(LabError::Server("bare loop did not say where it listens".into())),
            Ok(address) => {
                let online = setup::numbered_ids(&format!("{conversation}-m"), members);
                let participants = Participants {
                    http_senders: senders,
                    ..Participants::of_group(Conversation { id: conversation, base_seq: 0 }, &online)
                };
                LoadClient::open_bare(address, child.id(), args, participants).and_then(|mut load| {
                    let users = online[..senders.min(members)].to_vec();
                    let content = Content::Generated { body_bytes: self.body_bytes, senders: users };
                    let model = self.model;
                    load.run(
                        "bare loop",
                        Phase { model, content, batch: 1, pipeline: 1, retry: false, tell_series: false },
                    )
                })
            }
        };
        // The bare server ends when its senders have closed; after a failed run it may still wait for receivers.
        let _ = child.kill();
        child.wait()?;
        result
    }
}
