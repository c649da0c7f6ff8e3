//! Users with conversations on a server under test, and the load client that sends to them and receives from them: what every load
//! of messages begins with.

use crate::{
    LabError,
    corpus::{self, Author},
    load_client::LoadClient,
    mix::share::MixShare,
    offline_push::OfflinePush,
    options::{SendProtocol, TargetArgs},
    process,
    result::{Check, RunResult},
    server::Target,
    setup,
    worker_protocol::{Content, Conversation, LoadModel, Participants, Phase, Receiver},
};
use std::{path::PathBuf, time::Duration};
use tidings_client::{ClientError, http::path_segment};
use tidings_protocol::{
    entry::Entry,
    error::ErrorCode,
    http::{ConversationKind, MessageReceipts, UserUpsert},
    ids::direct_id,
};

/// One conversation with many members.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupSpec {
    pub(crate) kind: ConversationKind,
    /// Of these, so many are connected during the whole run and receive everything.
    pub(crate) members: usize,
    pub(crate) online: usize,
    pub(crate) senders: usize,
    pub(crate) via: SendProtocol,
    pub(crate) mix: MixShare,
    /// See [`Participants::receipts_interval`].
    pub(crate) receipts_interval: Option<Duration>,
    /// See [`Participants::compact`].
    pub(crate) compact: bool,
    /// See [`Participants::low_priority`].
    pub(crate) low_priority: bool,
    /// See [`Participants::server_returns`].
    pub(crate) server_returns: bool,
}

impl GroupSpec {
    /// A group of which so many members are online, and that is sent to over so many connections.
    pub(crate) fn of(members: usize, online: usize, senders: usize) -> Self {
        GroupSpec {
            kind: ConversationKind::Group,
            members,
            online,
            senders,
            via: SendProtocol::Http,
            mix: MixShare::default(),
            receipts_interval: None,
            compact: false,
            low_priority: false,
            server_returns: false,
        }
    }
}

/// Pairs of users with a direct conversation each.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PairSpec {
    pub(crate) pairs: usize,
    /// Of so many the recipient has no session, and another session of the sender receives.
    pub(crate) offline: usize,
    pub(crate) senders: usize,
    pub(crate) via: SendProtocol,
    /// The conversations are open; otherwise the first message opens each.
    pub(crate) are_open: bool,
    pub(crate) low_priority: bool,
    pub(crate) server_returns: bool,
}

impl PairSpec {
    /// Pairs with an open conversation, and all recipients online.
    pub(crate) fn of(pairs: usize, senders: usize) -> Self {
        PairSpec {
            pairs,
            offline: 0,
            senders,
            via: SendProtocol::Http,
            are_open: true,
            low_priority: false,
            server_returns: false,
        }
    }
}

/// A recorded chat: its authors, in one room.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct ChatSpec {
    pub(crate) file: PathBuf,
    /// Only the first so many messages.
    pub(crate) limit: Option<usize>,
    /// Unset: all authors. More than there are: members who only read.
    pub(crate) online: Option<usize>,
    /// In place of `online`.
    pub(crate) offline_share: Option<f64>,
    pub(crate) mix: MixShare,
}

impl ChatSpec {
    /// How many of so many authors are online.
    pub(crate) fn online_of(&self, authors: usize) -> usize {
        match self.offline_share {
            Some(share) => authors - (authors as f64 * share).round() as usize,
            None => self.online.unwrap_or(authors),
        }
    }
}

/// The conversations, with a connected load client.
pub(crate) struct MessageClients {
    pub(crate) load: LoadClient,
    /// As they were before the run.
    pub(crate) conversations: Vec<Conversation>,
    /// Of one conversation with many members: those who are connected during the whole run.
    pub(crate) online: Vec<String>,
    /// Who has no session, by conversation.
    offline: Vec<(usize, Vec<String>)>,
    senders: Vec<String>,
    /// To whom first messages are sent; empty: the conversations are open.
    recipients: Vec<String>,
    /// What is replayed, and how many messages it has.
    chat: Option<(ChatSpec, u64)>,
    says_receipts: bool,
    /// Refused and interrupted sends are sent again, also in an open loop: another node takes them, or the server comes back.
    pub(crate) outlives_faults: bool,
}

impl MessageClients {
    /// Creates the users and the conversation, and connects the load client.
    pub(crate) fn group(target: &Target, args: &TargetArgs, spec: &GroupSpec) -> Result<Self, LabError> {
        let tag = process::run_tag();
        let mut http = target.http();
        let mut members = setup::numbered_ids(&format!("{tag}-m"), spec.members.max(spec.online));
        let online = members[..spec.online].to_vec();
        let offline = members[spec.online..].to_vec();
        // Sessions that send belong to members of their own: their deliveries are not part of the counts.
        let ws_senders = match spec.via {
            SendProtocol::Ws => setup::numbered_ids(&format!("{tag}-s"), spec.senders),
            SendProtocol::Http => Vec::new(),
        };
        members.extend(ws_senders.iter().cloned());
        setup::create_users(&mut http, &members)?;
        let mut conversation = setup::create_conversation(&mut http, spec.kind, &format!("group-{tag}"), &members)?;
        let mix = setup::prepare_mix(&mut http, &mut conversation, &online, spec.mix)?;
        let senders = match spec.via {
            SendProtocol::Http => online.iter().take(spec.senders.max(1)).cloned().collect(),
            SendProtocol::Ws => ws_senders.clone(),
        };
        let participants = Participants {
            http_senders: if spec.via == SendProtocol::Http { spec.senders } else { 0 },
            ws_senders,
            mix,
            receipts_interval: spec.receipts_interval,
            compact: spec.compact,
            low_priority: spec.low_priority,
            server_returns: spec.server_returns,
            ..Participants::of_group(conversation, &online)
        };
        let clients = MessageClients::open(target, args, participants)?;
        Ok(MessageClients { online, offline: vec![(0, offline)], senders, ..clients })
    }

    /// Creates the users and, if they are to be open, their conversations, and connects the load client.
    pub(crate) fn pairs(target: &Target, args: &TargetArgs, spec: &PairSpec) -> Result<Self, LabError> {
        let tag = process::run_tag();
        let mut http = target.http();
        let senders = setup::numbered_ids(&format!("{tag}-a"), spec.pairs);
        let recipients = setup::numbered_ids(&format!("{tag}-b"), spec.pairs);
        setup::create_users(&mut http, &senders)?;
        setup::create_users(&mut http, &recipients)?;
        let (mut conversations, mut receivers, mut offline) = (Vec::new(), Vec::new(), Vec::new());
        for (number, (sender, recipient)) in senders.iter().zip(&recipients).enumerate() {
            conversations.push(if spec.are_open {
                setup::create_direct(&mut http, sender, recipient)?
            } else {
                Conversation { id: direct_id(sender, recipient), base_seq: 0 }
            });
            let is_offline = setup::is_among(number, spec.offline, spec.pairs);
            let user = if is_offline { sender } else { recipient };
            receivers.push(Receiver { user: user.clone(), conversation: number });
            if is_offline {
                offline.push((number, vec![recipient.clone()]));
            }
        }
        let participants = Participants {
            conversations,
            receivers,
            http_senders: if spec.via == SendProtocol::Http { spec.senders } else { 0 },
            ws_senders: if spec.via == SendProtocol::Ws { senders.clone() } else { Vec::new() },
            low_priority: spec.low_priority,
            server_returns: spec.server_returns,
            ..Participants::default()
        };
        let clients = MessageClients::open(target, args, participants)?;
        Ok(MessageClients {
            offline,
            senders,
            recipients: if spec.are_open { Vec::new() } else { recipients },
            ..clients
        })
    }

    /// Creates the authors of a chat, and connects the load client. It has one connection with one request at a time: messages are sent in
    /// the recorded order.
    pub(crate) fn chat(target: &Target, args: &TargetArgs, spec: &ChatSpec) -> Result<Self, LabError> {
        let corpus = corpus::read(&spec.file, spec.limit)
            .map_err(|error| LabError::Usage(format!("{}: {error}", spec.file.display())))?;
        if corpus.messages.is_empty() {
            return Err(LabError::Usage(format!("{} holds no message", spec.file.display())));
        }
        let mut http = target.http();
        let user = |author: &Author| UserUpsert {
            id: author.id.clone(),
            name: Some(author.nick.clone()),
            ..UserUpsert::default()
        };
        setup::upsert_users(&mut http, corpus.authors.iter().map(user).collect())?;
        let mut members: Vec<String> = corpus.authors.iter().map(|author| author.id.clone()).collect();
        let online = spec.online_of(members.len());
        // With fewer authors than members to be online, the rest are members who only read.
        let lurkers = setup::numbered_ids("lurker", online.saturating_sub(members.len()));
        setup::create_users(&mut http, &lurkers)?;
        members.extend(lurkers);
        let mut conversation = setup::create_group(&mut http, &format!("replay-{}", process::run_tag()), &members)?;
        // Members online are chosen over the whole list, not only among those who wrote first.
        let count = members.len();
        let (online, offline): (Vec<_>, Vec<_>) =
            members.into_iter().enumerate().partition(|(number, _)| setup::is_among(*number, online, count));
        let [online, offline] =
            [online, offline].map(|users| users.into_iter().map(|(_, user)| user).collect::<Vec<_>>());
        let mix = setup::prepare_mix(&mut http, &mut conversation, &online, spec.mix)?;
        let participants = Participants { http_senders: 1, mix, ..Participants::of_group(conversation, &online) };
        let clients = MessageClients::open(target, args, participants)?;
        Ok(MessageClients {
            online,
            offline: if spec.offline_share.is_some() { vec![(0, offline)] } else { Vec::new() },
            chat: Some((spec.clone(), corpus.messages.len() as u64)),
            outlives_faults: true,
            ..clients
        })
    }

    /// Connects the load client; nothing is known of its users but what it is told itself.
    fn open(target: &Target, args: &TargetArgs, participants: Participants) -> Result<Self, LabError> {
        Ok(MessageClients {
            conversations: participants.conversations.clone(),
            online: Vec::new(),
            offline: Vec::new(),
            senders: Vec::new(),
            recipients: Vec::new(),
            chat: None,
            says_receipts: participants.receipts_interval.is_some(),
            outlives_faults: participants.server_returns || target.addresses().len() > 1,
            load: LoadClient::open(target, args, participants)?,
        })
    }

    pub(crate) fn messages_of_chat(&self) -> Option<u64> {
        self.chat.as_ref().map(|(_, messages)| *messages)
    }

    /// Counts what those who are offline are notified of, if they are to be.
    pub(crate) fn watch(&self, target: &Target, push: Option<&OfflinePush>) -> Result<(), LabError> {
        let Some(push) = push else { return Ok(()) };
        let mut http = target.http();
        for (conversation, users) in self.offline.iter().filter(|(_, users)| !users.is_empty()) {
            push.watch(&mut http, &self.conversations[*conversation], users)?;
        }
        Ok(())
    }

    pub(crate) fn phase(&self, model: LoadModel, body_bytes: usize, batch: usize, pipeline: usize) -> Phase {
        let senders = self.senders.clone();
        let content = match &self.chat {
            Some((chat, _)) => Content::Corpus { file: chat.file.clone(), limit: chat.limit },
            None if self.recipients.is_empty() => Content::Generated { body_bytes, senders },
            None => Content::FirstMessages { body_bytes, senders, recipients: self.recipients.clone() },
        };
        // A closed loop retries refused sends; an open loop counts them as refused.
        let retry =
            self.outlives_faults || matches!(model, LoadModel::ClosedLoop { .. } | LoadModel::ClosedLoopOnce { .. });
        Phase { retry, model, content, batch, pipeline, tell_series: false }
    }

    /// The receipts of the last message must say that every member online has read it, but for its sender.
    pub(crate) fn check_receipts(&self, target: &Target, result: &mut RunResult) -> Result<(), LabError> {
        let Some(Conversation { id, .. }) = self.conversations.first().filter(|_| self.says_receipts) else {
            return Ok(());
        };
        let mut http = target.http();
        let last_seq = http.conversation(id)?.last_seq;
        let path = format!("/v1/conversations/{}/messages/{last_seq}", path_segment(id));
        let last: Entry = http.get(&path)?;
        let told: MessageReceipts = match http.get(&format!("{path}/receipts")) {
            // Larger groups show none.
            Err(ClientError::Refused { problem, .. }) if problem.code == ErrorCode::Forbidden => return Ok(()),
            told => told?,
        };
        let readers = self.online.iter().filter(|member| last.from.as_ref() != Some(member)).count() as u64;
        let value = format!("delivered {}, read {} of {readers}", told.delivered, told.read);
        result.note("receipts", format!("of the last message: {value}"));
        let agree = told.read == readers && told.delivered >= readers;
        result.check(Check::of_server("receipts", "every member online has read the last message", agree).value(value));
        Ok(())
    }
}
