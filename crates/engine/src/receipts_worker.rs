//! The thread that stores how far users' clients have come, and tells live members of it: once in an interval, one frame for
//! each conversation.

use crate::{
    commit::Committer,
    directory::Directory,
    hub::Hub,
    receipts::{PendingMove, PendingMoves, ReceiptMove, Receipts},
    shards::{Control, Shards, Signal},
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use parking_lot::Mutex;
use std::{collections::BTreeMap, sync::Arc, thread::JoinHandle, time::Duration};
use tidings_domain::{clock::Clock, model::*, store::*};
use tidings_protocol::frames::{MovedMarks, ReceiptKind, ReceiptMark, ServerFrame};

/// The time between two rounds, by the clock.
const INTERVAL_MS: u64 = 1_000;
/// How often the clock is looked at.
const POLL: Duration = Duration::from_millis(100);
/// Users in one commit: commits of messages must come in between.
const USERS_PER_COMMIT: usize = 1_000;
/// Commits in one round. What is left waits for the next one.
const COMMITS_PER_ROUND: usize = 20;
/// Users in one round whose direct conversations are looked through for messages that they have now. Above: these messages'
/// senders are not told, and see it when they read receipts.
const LOOKUPS_PER_ROUND: usize = 300;
/// Direct conversations of one user that are looked at; of those the latest are told.
const DIRECT_LOOKED_AT_MAX: usize = 1_000;
const DIRECT_TOLD_MAX: usize = 50;
/// The newest entries of a direct conversation that are looked at.
const NEWEST: usize = 20;
/// Moves in one message to other nodes.
const MOVES_PER_MESSAGE: usize = 1_000;

/// What [`ReceiptsWorker::start`] needs.
pub(crate) struct ReceiptsWorkerParts {
    pub receipts: Arc<Receipts>,
    pub store: Arc<dyn Store>,
    pub directory: Arc<Directory>,
    pub committer: Arc<Committer>,
    pub hub: Arc<dyn Hub>,
    pub shards: Arc<Shards>,
    pub clock: Arc<dyn Clock>,
}

/// The engine's handle of the thread.
pub(crate) struct ReceiptsWorker {
    rounds: Mutex<Option<Sender<Sender<()>>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl ReceiptsWorker {
    pub(crate) fn start(parts: ReceiptsWorkerParts) -> ReceiptsWorker {
        let (rounds, asked) = bounded(1);
        let worker = Worker(parts);
        let thread = std::thread::Builder::new().name("receipts".into()).spawn(move || worker.run(&asked));
        let thread = thread.inspect_err(|error| tracing::error!(%error, "no thread for receipts")).ok();
        ReceiptsWorker { rounds: Mutex::new(Some(rounds)), thread: Mutex::new(thread) }
    }

    /// Does a round now, and waits until it is done.
    pub(crate) fn settle(&self) {
        let rounds = self.rounds.lock().clone();
        let (done, is_done) = bounded(1);
        if rounds.is_some_and(|rounds| rounds.send(done).is_ok()) {
            let _ = is_done.recv();
        }
    }

    /// Does a last round, and ends the thread.
    pub(crate) fn stop(&self) {
        self.rounds.lock().take();
        if let Some(thread) = self.thread.lock().take() {
            let _ = thread.join();
        }
    }
}

struct Worker(ReceiptsWorkerParts);

/// A move of a member whose card is known.
type ShownMove = (Arc<User>, ReceiptKind, PendingMove);

impl Worker {
    fn run(&self, asked: &Receiver<Sender<()>>) {
        let mut last = self.0.clock.now_ms();
        loop {
            let asked = asked.recv_timeout(POLL);
            let now = self.0.clock.now_ms();
            // A clock that was set back does not hold up the next round.
            if !matches!(asked, Err(RecvTimeoutError::Timeout)) || now.abs_diff(last) >= INTERVAL_MS {
                last = now;
                self.store_positions();
                self.tell_moves();
            }
            match asked {
                Ok(done) => drop(done.send(())),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    /// Stores the positions that wait; those that cannot be stored now are tried again in the next round.
    fn store_positions(&self) {
        let mut lookups = LOOKUPS_PER_ROUND;
        for _ in 0..COMMITS_PER_ROUND {
            let epoch = self.0.store.epoch();
            let part = self.0.receipts.take_stored(USERS_PER_COMMIT, epoch);
            if part.is_empty() {
                return;
            }
            match self.0.committer.propose_blocking(Proposal::SetStored(part.clone())) {
                Ok(Outcome::Stored(moved)) => {
                    for moved in moved.iter().take(lookups) {
                        if let Err(error) = self.note_delivered(moved) {
                            tracing::debug!(%error, "what a user has of direct conversations was not looked up");
                        }
                    }
                    lookups = lookups.saturating_sub(moved.len());
                }
                Ok(_) => {}
                Err(refusal) => {
                    tracing::debug!(%refusal, "positions of clients were not stored");
                    for (user, positions) in part {
                        self.0.receipts.note_stored(user, &Cursor { epoch, positions });
                    }
                    return;
                }
            }
        }
    }

    /// Takes note of the direct conversations with others' messages between the user's positions before and now.
    fn note_delivered(&self, moved: &StoredMove) -> StoreResult<()> {
        let lane = Lane::Direct as usize;
        let (user, before, now) = (moved.user, moved.before[lane], moved.now[lane]);
        if now <= before {
            return Ok(());
        }
        let mut states = self.0.store.conversation_states(user, ConversationFilter::Direct, DIRECT_LOOKED_AT_MAX)?;
        states.retain(|state| state.head.last_position > before);
        states.sort_unstable_by_key(|state| std::cmp::Reverse(state.head.last_position));
        for ConversationState { conversation, head, .. } in states.into_iter().take(DIRECT_TOLD_MAX) {
            let newest = self.0.store.entries(conversation, 1, head.last_seq, NEWEST, End::Newest)?;
            let is_by_other = |entry: &&StoredEntry| entry.content.sender.as_ref().is_none_or(|s| s.no != user);
            let between = newest.iter().filter(|entry| entry.position > before && entry.position <= now);
            if let Some(seq) = between.clone().filter(is_by_other).map(|entry| entry.seq).max() {
                let first = between.map(|entry| entry.seq).min().unwrap_or(seq);
                let (what, before) = (ReceiptKind::Delivered, Some(first.saturating_sub(1)));
                self.0.receipts.note(ReceiptMove { conversation, user, what, before, seq });
            }
        }
        Ok(())
    }

    fn tell_moves(&self) {
        let mut for_peers = Vec::new();
        for (conversation, moves) in self.0.receipts.take_moves() {
            if let Err(error) = self.tell(conversation, &moves, &mut for_peers) {
                tracing::debug!(%error, "members were not told of receipts");
            }
        }
        for part in for_peers.chunks(MOVES_PER_MESSAGE) {
            self.0.hub.receipts(part.to_vec());
        }
    }

    /// Tells the live members of a conversation on this node. Other nodes learn of read marks from the commit log, but for
    /// the entry before them, which counts need.
    fn tell(
        &self,
        conversation: ConversationNo,
        moves: &PendingMoves,
        for_peers: &mut Vec<ReceiptMove>,
    ) -> StoreResult<()> {
        let Some(card) = self.0.directory.conversation(conversation)? else { return Ok(()) };
        let mode = card.receipts();
        if mode == ReceiptsMode::None {
            return Ok(());
        }
        let mut shown: Vec<ShownMove> = Vec::with_capacity(moves.len());
        for ((user, what), moved) in moves {
            let Some(user) = self.0.directory.user(*user)? else { continue };
            if *what == ReceiptKind::Read && user.receipts_off {
                continue;
            }
            if moved.is_local && (*what == ReceiptKind::Delivered || mode == ReceiptsMode::Counts) {
                let (user, what, PendingMove { before, seq, .. }) = (user.no, *what, *moved);
                for_peers.push(ReceiptMove { conversation, user, what, before, seq });
            }
            shown.push((user, *what, *moved));
        }
        let Some((a, b)) = card.pair else {
            if let Some(frame) = frame_of(&card.id, mode, shown.iter()) {
                for shard in 0..self.0.shards.count() {
                    self.0.shards.send_control(shard, Control::Receipts { conversation, frame: frame.clone() });
                }
            }
            return Ok(());
        };
        for (reader, other) in [(a, b), (b, a)] {
            let hides_reads = self.0.directory.user(reader)?.is_none_or(|user| user.receipts_off);
            let of_other = shown.iter().filter(|(user, what, _)| {
                reader != other && user.no == other && (*what == ReceiptKind::Delivered || !hides_reads)
            });
            if let Some(frame) = frame_of(&card.id, mode, of_other) {
                self.0.shards.signal(reader, Signal::Frame { frame });
            }
        }
        Ok(())
    }
}

/// A `receipts` frame's JSON; `None`: there is nothing to tell.
fn frame_of<'a>(
    conversation: &str,
    mode: ReceiptsMode,
    moves: impl Iterator<Item = &'a ShownMove>,
) -> Option<Arc<[u8]>> {
    let mut marks: BTreeMap<&str, ReceiptMark> = BTreeMap::new();
    let mut moved: BTreeMap<(ReceiptKind, u64, u64), u64> = BTreeMap::new();
    for (user, what, PendingMove { before, seq, .. }) in moves {
        if mode == ReceiptsMode::Members {
            let mark = marks.entry(&user.id).or_insert_with(|| ReceiptMark {
                user: user.id.clone(),
                read_seq: None,
                delivered_seq: None,
            });
            match what {
                ReceiptKind::Read => mark.read_seq = Some(*seq),
                ReceiptKind::Delivered => mark.delivered_seq = Some(*seq),
            }
        } else if let Some(before) = before.filter(|before| before < seq) {
            *moved.entry((*what, before + 1, *seq)).or_default() += 1;
        }
    }
    let marks: Vec<ReceiptMark> = marks.into_values().collect();
    let moved = moved.into_iter().map(|((what, from_seq, to_seq), count)| MovedMarks { what, from_seq, to_seq, count });
    let moved: Vec<MovedMarks> = moved.collect();
    if marks.is_empty() && moved.is_empty() {
        return None;
    }
    let frame = ServerFrame::Receipts { conversation: conversation.to_owned(), marks, moved };
    // Writing to memory cannot fail.
    Some(serde_json::to_vec(&frame).unwrap_or_default().into())
}
