//! A load of messages on the bare server: what is measured is the lab, and the system calls that no server can spare.

use crate::{
    LabError,
    load_client::LoadClient,
    options::TargetArgs,
    process::{self, BareLoop},
    setup,
    worker_protocol::{Content, Conversation, LoadModel, Outcome, Participants, Phase},
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
        let (receivers, sending) = (members.to_string(), senders.to_string());
        let core = args.client_core.unwrap_or_else(process::last_core).to_string();
        let options = ["--receivers", &receivers, "--senders", &sending, "--conversation", &conversation];
        let bare = BareLoop::start(&[&["bare-server", "--avoid-core", &core], &options[..]].concat())?;
        let online = setup::numbered_ids(&format!("{conversation}-m"), members);
        let participants = Participants {
            http_senders: senders,
            ..Participants::of_group(Conversation { id: conversation, base_seq: 0 }, &online)
        };
        let mut load = LoadClient::open_bare(bare.address, bare.pid(), args, participants)?;
        let users = online[..senders.min(members)].to_vec();
        let content = Content::Generated { body_bytes: self.body_bytes, senders: users };
        let model = self.model;
        load.run("bare loop", Phase { model, content, batch: 1, pipeline: 1, retry: false, tell_series: false })
    }
}
