//! A leader that has ended is succeeded within seconds, before its leases end: its sign of life is gone with it. A leader that
//! lives and has only lost its sign (its connection broke) must not be succeeded, and must not answer as the leader once it is. Its
//! functions are succeeded one by one, each by the node that has least to do.
//!
//! ```text
//! the sign ends at t    seen gone at s >= t    taken over at T >= s + SUCCEED_AFTER, unless the lease was renewed in between
//! the leader counts on evidence (a look that shows its sign, a renewal) sent at p:  until p + EVIDENCE_COUNTS
//!   a look:     the sign was set at p, so t >= p, and T >= p + SUCCEED_AFTER
//!   a renewal:  T >= p + SUCCEED_AFTER, for it would have been seen
//! ```
//! So the leader stops before another begins as long as EVIDENCE_COUNTS by its clock is less than SUCCEED_AFTER by the other's.
//! A sign that was set anew counts after the next renewal: who saw it gone may not have seen it come back.

use super::nodes::ClusterNodes;
use crossbeam_channel::{Receiver, RecvTimeoutError};
use std::{
    convert::Infallible,
    time::{Duration, Instant},
};
use tidings_domain::{
    commit_log::{CommitLog, LeaderSign},
    function::Function,
};

/// How often each node looks at the signs of life.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For so long the sign must be gone.
const SUCCEED_AFTER: Duration = Duration::from_millis(1_200);

/// A function that the node which is to take it has not taken for so long after that, any other node takes.
const YIELD_FOR: Duration = Duration::from_millis(400);

/// What a node has seen of the sign of a function's leader.
#[derive(Default)]
struct LossWatch {
    /// The process, and the server, on which its sign was set. A leader of an earlier version has none.
    seen: Option<(u64, u64)>,
    /// The first look that showed the sign gone, and when that look was answered.
    lost: Option<(LeaderSign, Instant)>,
}

impl LossWatch {
    /// Takes a look that was answered; answers for how long the sign has been gone.
    fn lost_for(&mut self, sign: LeaderSign, now: Instant) -> Duration {
        let identity = (sign.boot_id, sign.server);
        if sign.is_set {
            (self.seen, self.lost) = (Some(identity), None);
            return Duration::ZERO;
        }
        if self.seen != Some(identity) {
            self.lost = None;
            return Duration::ZERO;
        }
        match self.lost {
            Some((first, since)) if first == sign => now.duration_since(since),
            // Gone just now, or the leader lives: it has renewed its lease meanwhile.
            _ => {
                self.lost = Some((sign, now));
                Duration::ZERO
            }
        }
    }
}

/// Sets this node's sign and looks at the leaders' until `stopped` is closed.
pub(super) fn run(nodes: &ClusterNodes, log: &dyn CommitLog, stopped: &Receiver<Infallible>) {
    let mut watches: [LossWatch; Function::COUNT] = Default::default();
    let (mut own, mut leaders) = (None, Vec::new());
    loop {
        let sent = Instant::now();
        match log.life_signs(nodes.me().boot_id) {
            Ok(signs) => {
                if signs.own.is_some() && signs.own == own {
                    nodes.confirm_sign(sent);
                } else if signs.own.is_some() {
                    nodes.sign_was_set(Instant::now());
                } else {
                    nodes.renew_soon();
                }
                own = signs.own;
                for sign in &signs.leaders {
                    let lost_for = watches[sign.function as usize].lost_for(*sign, Instant::now());
                    if lost_for >= SUCCEED_AFTER && nodes.may_succeed(*sign, lost_for >= SUCCEED_AFTER + YIELD_FOR) {
                        nodes.succeed(*sign);
                    }
                }
                let mut now_lead: Vec<_> = signs.leaders.iter().map(|sign| (sign.function, sign.boot_id)).collect();
                now_lead.sort_unstable();
                let before = std::mem::replace(&mut leaders, now_lead);
                if !before.is_empty() && before != leaders {
                    // Another node leads: the next heartbeat says which.
                    nodes.wake();
                }
            }
            Err(_) => {
                own = None;
                nodes.renew_soon();
            }
        }
        match stopped.recv_timeout(LOOK_EVERY.saturating_sub(sent.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
            Ok(never) => match never {},
        }
    }
}

#[cfg(test)]
#[path = "../../tests/units/cluster_life_signs.rs"]
mod tests;
