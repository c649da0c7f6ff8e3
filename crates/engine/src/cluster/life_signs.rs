//! A leader that has ended is succeeded within seconds, before its lease ends: its sign of life is gone with it. A leader that
//! lives and has only lost its sign (its connection broke) must not be succeeded, and must not answer as the leader once it is.
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
use tidings_domain::commit_log::{CommitLog, LeaderSign};

/// How often each node looks at the signs of life.
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// For so long the sign must be gone.
const SUCCEED_AFTER: Duration = Duration::from_millis(1_200);

/// What a node has seen of the leader's sign.
#[derive(Default)]
struct LossWatch {
    /// The process, and the server, on which its sign was set. A leader of an earlier version has none.
    seen: Option<(u64, u64)>,
    /// The first look that showed the sign gone, and when that look was answered.
    lost: Option<(LeaderSign, Instant)>,
}

impl LossWatch {
    /// Takes a look that was answered; answers whether the leader counts as ended.
    fn is_lost(&mut self, sign: LeaderSign, now: Instant) -> bool {
        let identity = (sign.boot_id, sign.server);
        if sign.is_set {
            (self.seen, self.lost) = (Some(identity), None);
            return false;
        }
        if self.seen != Some(identity) {
            self.lost = None;
            return false;
        }
        match self.lost {
            Some((first, since)) if first == sign => now.duration_since(since) >= SUCCEED_AFTER,
            // Gone just now, or the leader lives: it has renewed its lease meanwhile.
            _ => {
                self.lost = Some((sign, now));
                false
            }
        }
    }
}

/// Sets this node's sign and looks at the leader's until `stopped` is closed.
pub(super) fn run(nodes: &ClusterNodes, log: &dyn CommitLog, stopped: &Receiver<Infallible>) {
    let mut watch = LossWatch::default();
    let (mut own, mut leader) = (None, None);
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
                let is_lost = watch.is_lost(signs.leader, Instant::now());
                if is_lost && nodes.may_lead() && signs.leader.boot_id != nodes.me().boot_id {
                    nodes.succeed(signs.leader);
                }
                if leader.replace(signs.leader.boot_id).is_some_and(|before| before != signs.leader.boot_id) {
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
