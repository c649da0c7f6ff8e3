//! The thread that stores how far users' clients have come, and tells live members of it: once in an interval, one frame for
//! each conversation.

use super::{PendingMove, PendingMoves, ReceiptMove, Receipts};
use crate::{
    Core,
    shards::{Control, Signal},
    worker_thread::WorkerThread,
};
use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use std::{collections::BTreeMap, sync::Arc, time::Duration};
use tidings_domain::{model::*, store::*};
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
/// senders are not notified, and see it when they read receipts.
const LOOKUPS_PER_ROUND: usize = 300;
/// Direct conversations of one user that are looked at; of those the latest are sent.
const DIRECT_LOOKED_AT_MAX: usize = 1_000;
const DIRECT_TOLD_MAX: usize = 50;
/// The newest entries of a direct conversation that are looked at.
const NEWEST: usize = 20;
/// Moves in one message to other nodes.
const MOVES_PER_MESSAGE: usize = 1_000;

/// Starts the thread. It confirms each order once a round is done, and does a last round when it is stopped.
pub(crate) fn start(core: Core, receipts: Arc<Receipts>) -> WorkerThread<Sender<()>> {
    let worker = Worker { core, receipts };
    WorkerThread::start("receipts", 1, move |asked| worker.run(&asked))
}

struct Worker {
    core: Core,
    receipts: Arc<Receipts>,
}

/// A move of a member whose details is known.
type ShownMove = (Arc<User>, ReceiptKind, PendingMove);

impl Worker {
    fn run(&self, asked: &Receiver<Sender<()>>) {
        let mut last = self.core.clock.now_ms();
        loop {
            let asked = asked.recv_timeout(POLL);
            let now = self.core.clock.now_ms();
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
            let epoch = self.core.store.epoch();
            let part = self.receipts.waiting_stored(USERS_PER_COMMIT, epoch);
            if part.is_empty() {
                return;
            }
            match self.core.committer.propose_blocking(Proposal::SetStored(part.clone())) {
                Ok(Outcome::Stored(moved)) => {
                    self.receipts.stored_done(&part);
                    for moved in moved.iter().take(lookups) {
                        if let Err(error) = self.note_delivered(moved) {
                            tracing::debug!(%error, "what a user has of direct conversations was not looked up");
                        }
                    }
                    lookups = lookups.saturating_sub(moved.len());
                }
                Ok(_) => self.receipts.stored_done(&part),
                Err(refusal) => {
                    tracing::debug!(%refusal, "positions of clients were not stored");
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
        let mut states = self.core.store.conversation_states(user, ConversationFilter::Direct, DIRECT_LOOKED_AT_MAX)?;
        states.retain(|state| state.head.last_position > before);
        states.sort_unstable_by_key(|state| std::cmp::Reverse(state.head.last_position));
        for ConversationState { conversation, head, .. } in states.into_iter().take(DIRECT_TOLD_MAX) {
            let newest = self.core.store.entries(conversation, 1, head.last_seq, NEWEST, End::Newest)?;
            let is_by_other = |entry: &&StoredEntry| entry.content.sender.as_ref().is_none_or(|s| s.no != user);
            let between = newest.iter().filter(|entry| entry.position > before && entry.position <= now);
            if let Some(seq) = between.clone().filter(is_by_other).map(|entry| entry.seq).max() {
                let first = between.map(|entry| entry.seq).min().unwrap_or(seq);
                let (what, before) = (ReceiptKind::Delivered, Some(first.saturating_sub(1)));
                self.receipts.note(ReceiptMove { conversation, user, what, before, seq });
            }
        }
        Ok(())
    }

    fn tell_moves(&self) {
        let mut for_peers = Vec::new();
        for (conversation, moves) in self.receipts.take_moves() {
            if let Err(error) = self.tell(conversation, &moves, &mut for_peers) {
                tracing::debug!(%error, "members were not told of receipts");
            }
        }
        for part in for_peers.chunks(MOVES_PER_MESSAGE) {
            self.core.hub.receipts(part.to_vec());
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
        let Some(details) = self.core.directory.conversation(conversation)? else { return Ok(()) };
        let mode = match details.receipts() {
            ReceiptsMode::None => return Ok(()),
            // One frame is for all members, and followers do not learn of each other.
            ReceiptsMode::Members if details.kind == ConversationKind::Official => ReceiptsMode::Counts,
            mode => mode,
        };
        let mut shown: Vec<ShownMove> = Vec::with_capacity(moves.len());
        for ((user, what), moved) in moves {
            let Some(user) = self.core.directory.user(*user)? else { continue };
            if *what == ReceiptKind::Read && user.receipts_off {
                continue;
            }
            if moved.is_local && (*what == ReceiptKind::Delivered || mode == ReceiptsMode::Counts) {
                let (user, what, PendingMove { before, seq, .. }) = (user.no, *what, *moved);
                for_peers.push(ReceiptMove { conversation, user, what, before, seq });
            }
            shown.push((user, *what, *moved));
        }
        let Some((a, b)) = details.pair else {
            if let Some(frame) = frame_of(&details.id, mode, shown.iter()) {
                for shard in 0..self.core.shards.count() {
                    self.core.shards.send_control(shard, Control::Receipts { conversation, frame: frame.clone() });
                }
            }
            return Ok(());
        };
        for (reader, other) in [(a, b), (b, a)] {
            let hides_reads = self.core.directory.user(reader)?.is_none_or(|user| user.receipts_off);
            let of_other = shown.iter().filter(|(user, what, _)| {
                reader != other && user.no == other && (*what == ReceiptKind::Delivered || !hides_reads)
            });
            if let Some(frame) = frame_of(&details.id, mode, of_other) {
                self.core.shards.signal(reader, Signal::Frame { frame });
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
    let frame = ServerFrame::Receipts { reference: None, conversation: conversation.to_owned(), marks, moved };
    // Writing to memory cannot fail.
    Some(serde_json::to_vec(&frame).unwrap_or_default().into())
}
