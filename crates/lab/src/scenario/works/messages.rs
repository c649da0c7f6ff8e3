//! Messages to a group, an official account or direct conversations, by a load client of their own.

use super::{Job, Surroundings, WorkResult};
use crate::{
    LabError,
    load_client::{LoadClient, Participants},
    offline_push::OfflinePush,
    options::SendProtocol,
    process,
    scenario::{
        plan::{
            phase::Load,
            population::{Members, Population, Texts},
        },
        trouble::Trouble,
    },
    server::Target,
    setup,
    worker_protocol::{Content, Conversation, LoadModel, Outcome, Phase, Receiver},
};
use std::time::Duration;
use tidings_protocol::{http::ConversationKind, ids::direct_id};

/// A population's conversations, with the load client that sends to them and receives from them.
pub(crate) struct MessageWorker {
    load: LoadClient,
    texts: Texts,
    senders: Vec<String>,
    /// To whom first messages are sent; empty: the conversations are open.
    recipients: Vec<String>,
    /// Refused and interrupted sends are sent again: the server goes away and comes back.
    outlives_faults: bool,
}

impl MessageWorker {
    pub(crate) fn open(around: &Surroundings<'_>, population: &Population) -> Result<Self, LabError> {
        let Surroundings { target, args, has_faults: outlives_faults, offline_push: push, .. } = *around;
        let (participants, texts, senders, recipients) = match &population.members {
            Members::Conversation { official, members, online, senders, via, texts } => {
                let kind = if *official { ConversationKind::Official } else { ConversationKind::Group };
                let (participants, senders) = group(target, kind, (*members, *online), (*senders, *via), push)?;
                (participants, *texts, senders, Vec::new())
            }
            Members::Direct { pairs, offline, senders, via, texts } => {
                let (participants, from, _) = pairs_of(target, (*pairs, *offline), (*senders, *via), true, push)?;
                (participants, *texts, from, Vec::new())
            }
            Members::NewConversations { pairs, senders, texts } => {
                let (participants, from, to) =
                    pairs_of(target, (*pairs, 0), (*senders, SendProtocol::Http), false, None)?;
                (participants, *texts, from, to)
            }
            _ => return Err(LabError::Usage("this population sends no messages".into())),
        };
        let participants =
            Participants { low_priority: population.background, server_returns: outlives_faults, ..participants };
        let load = LoadClient::open(target, args, participants)?;
        let outlives_faults = outlives_faults || target.addresses().len() > 1;
        Ok(MessageWorker { load, texts, senders, recipients, outlives_faults })
    }

    pub(crate) fn run(&mut self, job: &Job<'_>) -> Result<WorkResult, LabError> {
        self.load.follow_server(job.server.clone());
        let phase = self.phase(job);
        let mut outcome = self.load.run(&job.title, phase)?;
        if job.server_is_replaced {
            // The process whose time was measured is gone.
            (outcome.server_cpu_seconds, outcome.server_rss_bytes) = (None, None);
        }
        Ok(WorkResult { trouble: trouble_of(&outcome, self.outlives_faults), measured: outcome.measured(&job.title) })
    }

    fn phase(&self, job: &Job<'_>) -> Phase {
        let model = model_of(job.load);
        let (body_bytes, senders) = (self.texts.body_bytes, self.senders.clone());
        let content = if self.recipients.is_empty() {
            Content::Generated { body_bytes, senders }
        } else {
            Content::FirstMessages { body_bytes, senders, recipients: self.recipients.clone() }
        };
        let retry = self.outlives_faults || matches!(job.load, Load::Max { .. });
        Phase { retry, model, content, batch: job.batch, pipeline: self.texts.pipeline, tell_series: false }
    }
}

/// A group or an official account with its load client's participants, and who sends.
fn group(
    target: &Target,
    kind: ConversationKind,
    (members, online): (usize, usize),
    (senders, via): (usize, SendProtocol),
    push: Option<&OfflinePush>,
) -> Result<(Participants, Vec<String>), LabError> {
    let tag = process::run_tag();
    let mut http = target.http();
    let mut ids = setup::numbered_ids(&format!("{tag}-m"), members);
    let receivers = ids[..online].to_vec();
    // Sessions that send belong to members of their own: their deliveries are not part of the counts.
    let sessions = if via == SendProtocol::Ws { setup::numbered_ids(&format!("{tag}-s"), senders) } else { Vec::new() };
    ids.extend(sessions.iter().cloned());
    setup::create_users(&mut http, &ids)?;
    let conversation = setup::create_conversation(&mut http, kind, &format!("group-{tag}"), &ids)?;
    if let Some(push) = push {
        push.watch(&mut http, &conversation, &ids[online..members])?;
    }
    let from = match via {
        SendProtocol::Http => receivers.iter().take(senders).cloned().collect(),
        SendProtocol::Ws => sessions.clone(),
    };
    let participants = Participants {
        http_senders: if via == SendProtocol::Http { senders } else { 0 },
        ws_senders: sessions,
        ..Participants::of_group(conversation, &receivers)
    };
    Ok((participants, from))
}

/// Pairs of users with a conversation each, open or yet to be opened; also who sends, and to whom.
fn pairs_of(
    target: &Target,
    (pairs, offline): (usize, usize),
    (connections, via): (usize, SendProtocol),
    opened: bool,
    push: Option<&OfflinePush>,
) -> Result<(Participants, Vec<String>, Vec<String>), LabError> {
    let tag = process::run_tag();
    let mut http = target.http();
    let senders = setup::numbered_ids(&format!("{tag}-a"), pairs);
    let recipients = setup::numbered_ids(&format!("{tag}-b"), pairs);
    setup::create_users(&mut http, &senders)?;
    setup::create_users(&mut http, &recipients)?;
    let mut participants = Participants::default();
    for (number, (sender, recipient)) in senders.iter().zip(&recipients).enumerate() {
        let conversation = if opened {
            setup::create_direct(&mut http, sender, recipient)?
        } else {
            Conversation { id: direct_id(sender, recipient), base_seq: 0 }
        };
        let is_offline = setup::is_among(number, offline, pairs);
        if let Some(push) = push.filter(|_| is_offline) {
            push.watch(&mut http, &conversation, std::slice::from_ref(recipient))?;
        }
        participants.conversations.push(conversation);
        let user = if is_offline { sender } else { recipient };
        participants.receivers.push(Receiver { user: user.clone(), conversation: number });
    }
    match via {
        SendProtocol::Http => participants.http_senders = connections,
        SendProtocol::Ws => participants.ws_senders = senders.clone(),
    }
    Ok((participants, senders, recipients))
}

/// When the messages of a load are due.
pub(super) fn model_of(load: &Load) -> LoadModel {
    let milliseconds = |time: Duration| time.as_millis() as u64;
    match load {
        Load::Planned(profile) => LoadModel::Varying { profile: profile.clone() },
        Load::Max { window, lasts } => LoadModel::ClosedLoop { window: *window, duration_ms: milliseconds(*lasts) },
        Load::Rounds { rounds, pause } => LoadModel::Rounds { rounds: *rounds, pause_ms: milliseconds(*pause) },
        // A plan has these for other workers, and for searches whose steps are planned.
        Load::Searched { .. } | Load::Script => LoadModel::Rounds { rounds: 1, pause_ms: 0 },
    }
}

/// What a search takes for the end.
pub(super) fn trouble_of(outcome: &Outcome, outlives_faults: bool) -> Option<Trouble> {
    if !outcome.balances() {
        return Some(Trouble::Balance(outcome.problems.first().cloned().unwrap_or_default()));
    }
    if outcome.reconnects > 0 && !outlives_faults {
        return Some(Trouble::LostConnections(outcome.reconnects));
    }
    if outcome.refused > 0 {
        let codes = outcome.refused_by_code.iter().map(|(code, count)| format!("{code} {count}"));
        return Some(Trouble::Refusals(codes.collect::<Vec<_>>().join(", ")));
    }
    outcome
        .lab_lagged()
        .then(|| Trouble::Lab(format!("sent {:.0} ms late at the 99th percentile", outcome.lateness.p99)))
}
