//! The design that is measured beside: an inbox per member as a sorted set, written for every message.
//!
//! For each message and member `ZADD` and, so that only the newest stay, `ZREMRANGEBYRANK`: what Beike's report describes,
//! done as well as it can be: each member's commands go straight to the primary of its inbox, pipelined
//! deep, on one connection per primary, all at once.

use crate::{
    LabError,
    topology::{SlotRange, resp::Redis},
};
use std::{
    net::SocketAddr,
    sync::Barrier,
    time::{Duration, Instant},
};

/// What an inbox keeps.
const INBOX_ENTRIES: i64 = 800;
/// Commands that a connection has under way.
const PIPELINE: usize = 4_000;

/// Where a primary is, and the slots that it serves.
#[derive(Debug, Clone)]
pub(super) struct Primary {
    pub(super) address: SocketAddr,
    pub(super) slots: Vec<SlotRange>,
}

/// Messages written to everybody's inbox, and the time that took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Written {
    pub(super) messages: u64,
    pub(super) seconds: f64,
}

/// Writes messages to the inboxes of a group of `members` for about so long.
pub(super) fn write(primaries: &[Primary], members: usize, duration: Duration) -> Result<Written, LabError> {
    let mut shares: Vec<Vec<String>> = vec![Vec::new(); primaries.len()];
    let Some(first) = primaries.first() else { return Err(LabError::Part("Redis has no primary".into())) };
    let mut asking = Redis::connect(first.address)?;
    for member in 0..members {
        let inbox = format!("inbox:{members}:{member}");
        let slot = asking.ask(&format!("CLUSTER KEYSLOT {inbox}"))?.number();
        let owner =
            primaries.iter().position(|one| one.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot)));
        let owner = owner.ok_or_else(|| LabError::Part(format!("slot {slot} of Redis is nobody's")))?;
        shares[owner].push(inbox);
    }
    // All begin at once.
    let start = Barrier::new(shares.len());
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = primaries
            .iter()
            .zip(&shares)
            .map(|(primary, share)| {
                let start = &start;
                scope.spawn(move || write_share(primary.address, share, start, duration))
            })
            .collect();
        let results =
            writers.into_iter().map(|writer| writer.join().unwrap_or(Err(LabError::Worker("panicked".into()))));
        results.collect::<Result<Vec<_>, _>>()
    })?;
    // Shares go on as fast as each can: as if members were spread so that all primaries are equally busy, to the credit
    // of this design.
    let entries: u64 = written.iter().zip(&shares).map(|(written, share)| written.messages * share.len() as u64).sum();
    let seconds = written.iter().map(|one| one.seconds).reduce(f64::max).unwrap_or(1.0);
    Ok(Written { messages: entries / members as u64, seconds })
}

fn write_share(
    address: SocketAddr,
    share: &[String],
    start: &Barrier,
    duration: Duration,
) -> Result<Written, LabError> {
    let redis = Redis::connect(address);
    start.wait();
    let mut redis = redis?;
    let started = Instant::now();
    if share.is_empty() {
        return Ok(Written { messages: 0, seconds: 0.0 });
    }
    let (mut sequence, mut under_way) = (0u64, 0);
    let keep = (-INBOX_ENTRIES - 1).to_string();
    while started.elapsed() < duration {
        sequence += 1;
        let (score, pointer) = (sequence.to_string(), format!("c0ffee:{sequence}"));
        for inbox in share {
            redis.put(&[b"ZADD", inbox.as_bytes(), score.as_bytes(), pointer.as_bytes()]);
            redis.put(&[b"ZREMRANGEBYRANK", inbox.as_bytes(), b"0", keep.as_bytes()]);
            under_way += 2;
            if under_way >= PIPELINE {
                settle(&mut redis, &mut under_way)?;
            }
        }
    }
    settle(&mut redis, &mut under_way)?;
    Ok(Written { messages: sequence, seconds: started.elapsed().as_secs_f64() })
}

fn settle(redis: &mut Redis, under_way: &mut usize) -> Result<(), LabError> {
    redis.flush()?;
    for _ in 0..std::mem::take(under_way) {
        redis.reply()?;
    }
    Ok(())
}
