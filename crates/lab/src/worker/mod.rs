//! The load client: one process on one core that sends, receives and verifies. It takes commands as JSON lines on its
//! standard input.
//!
//! In reading order: `mod.rs` takes commands; [`phase`] decides which messages are due and when a phase of load is over;
//! [`connection_pool`] drives the sockets; [`connection`] reads their frames and responses; [`shared_state`] is what
//! connections share; [`sent_messages`] has every message that was sent, [`verifier`] the entries that each receiver got.
//! With `--mix`: [`mixed_traffic`] has the operations beside messages, [`traffic`] joins both for the verifier,
//! [`mix_history`] compares the model with what the server tells in the end. [`receipt_teller`] has the receipts of `--receipts`.
//! With `--agents`: [`part_run`] has a part's beginning and end, [`shared_phase`] the messages of other load clients, [`ledger`]
//! what is handed over.

mod connection;
mod connection_pool;
mod delivery_gaps;
mod ledger;
mod mix_history;
mod mixed_traffic;
mod part_run;
mod phase;
mod receipt_teller;
mod receivers;
mod sent_messages;
mod shared_phase;
mod shared_state;
mod traffic;
mod verifier;

use crate::{
    LabError,
    client_engine::{
        bench_link::{commands, report},
        reactor::Reactor,
    },
    process,
    worker_protocol::{WorkerCommand, WorkerConfig, WorkerReport},
};
use connection_pool::ConnectionPool;
use mixed_traffic::MixedTraffic;
use receipt_teller::ReceiptTeller;
use sent_messages::SentMessages;
use shared_state::SharedState;
use std::{
    collections::HashSet,
    io,
    process::ExitCode,
    sync::mpsc,
    time::{Duration, Instant},
};

/// All connections must be open within this.
const OPEN_TIMEOUT: Duration = Duration::from_secs(120);

/// The hidden `bench worker` command.
pub(crate) fn main() -> ExitCode {
    match run_commands() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let why = match error {
                LabError::Worker(why) => why,
                other => other.to_string(),
            };
            report(&WorkerReport::Failed { why });
            ExitCode::FAILURE
        }
    }
}

fn run_commands() -> Result<(), LabError> {
    let mut reactor = Reactor::new()?;
    reactor.wait_precisely()?;
    let inbox = commands(&reactor)?;
    let Ok(WorkerCommand::Open(config)) = inbox.recv() else { return Ok(()) };
    let participants = &config.participants;
    if let Some(core) = config.core {
        process::pin_to_core(core)?;
    }
    if participants.low_priority {
        process::lower_priority()?;
    }
    let is_shared = config.run_tag.is_some();
    let tag = config.run_tag.clone().unwrap_or_else(process::run_tag);
    let users = participants.receivers.iter().map(|receiver| receiver.user.clone()).collect();
    let conversation = participants.conversations.first().map_or("", |conversation| &conversation.id);
    let mix = MixedTraffic::new(participants.mix.clone(), &tag, conversation, users);
    let sent_messages = SentMessages::new(tag, &participants.conversations);
    let conversations = participants.conversations.iter().map(|conversation| conversation.id.clone()).collect();
    let conversation_of: Vec<usize> = participants.receivers.iter().map(|receiver| receiver.conversation).collect();
    let receipts = ReceiptTeller::new(participants.receipts_interval, conversations, &conversation_of);
    let mut shared = SharedState::new(config.token_key.clone(), sent_messages, mix, receipts);
    shared.compact = participants.compact;
    shared.has_other_servers = config.addresses.len() > 1 || participants.server_returns;
    if is_shared {
        // The agent may be killed while this process opens connections and reads no commands.
        rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))
            .map_err(io::Error::from)?;
        shared.verifier.keep_digests();
    }
    let started = Instant::now();
    let mut pool = open_all(&config, reactor, &mut shared)?;
    report(&WorkerReport::Opened { seconds: started.elapsed().as_secs_f64() });
    // Of several load clients each has receivers of some conversations only.
    let conversations: HashSet<usize> = participants.receivers.iter().map(|receiver| receiver.conversation).collect();
    let conversations = if is_shared { conversations.len() } else { participants.conversations.len() };
    let receivers = (participants.receivers.len() / conversations.max(1)) as u64;
    loop {
        match inbox.try_recv() {
            Ok(WorkerCommand::Run(phase)) => {
                let patience_ms = config.patience_ms;
                let mut outcome = phase::run(&phase, receivers, patience_ms, None, &inbox, &mut pool, &mut shared)?;
                mix_history::compare(&config, &mut pool, &mut shared)?;
                outcome.mix = shared.mix.take_counts();
                report(&WorkerReport::Done(Box::new(outcome)));
            }
            Ok(WorkerCommand::Prepare(phase, part)) => {
                let outcome = phase::run(&phase, receivers, 0, Some(part), &inbox, &mut pool, &mut shared)?;
                ledger::hand_over(outcome, &shared.sent_messages, &shared.verifier);
            }
            Ok(WorkerCommand::Open(_)) | Err(mpsc::TryRecvError::Disconnected) => return Ok(()),
            Ok(WorkerCommand::Rebalance) => {
                let started = Instant::now();
                pool.rebalance(&mut shared);
                wait_until_open(&mut pool, &mut shared)?;
                report(&WorkerReport::Opened { seconds: started.elapsed().as_secs_f64() });
            }
            // The command came when the phase had already ended.
            Ok(
                WorkerCommand::StopPlanning
                | WorkerCommand::Begin { .. }
                | WorkerCommand::EndRound
                | WorkerCommand::Finish,
            ) => {}
            Err(mpsc::TryRecvError::Empty) => pool.poll_once(Duration::from_millis(100), &mut shared)?,
        }
    }
}

fn open_all(config: &WorkerConfig, reactor: Reactor, shared: &mut SharedState) -> Result<ConnectionPool, LabError> {
    let mut pool = ConnectionPool::new(config, reactor, shared)?;
    wait_until_open(&mut pool, shared)?;
    Ok(pool)
}

fn wait_until_open(pool: &mut ConnectionPool, shared: &mut SharedState) -> Result<(), LabError> {
    let deadline = Instant::now() + OPEN_TIMEOUT;
    while !pool.is_open() {
        if Instant::now() > deadline {
            let why = shared.verifier.findings.problems.join("; ");
            return Err(LabError::Worker(format!("not all connections opened: {why}")));
        }
        pool.poll_once(Duration::from_millis(50), shared)?;
    }
    Ok(())
}
