//! The design to compare with: an inbox per member as a sorted set in Redis, written for every message.
//!
//! For each message and member `ZADD` and, to keep only the newest entries, `ZREMRANGEBYRANK`, as Beike's report describes.
//! The writes are as fast as possible: each command is sent to the primary of its inbox, in a deep pipeline, over one
//! connection per primary, all in parallel.

use crate::{
    LabError,
    topology::{SlotRange, resp::RedisConnection},
};
use std::{
    net::SocketAddr,
    sync::Barrier,
    time::{Duration, Instant},
};

/// The entries that an inbox keeps.
const INBOX_ENTRIES: i64 = 800;
/// Commands in flight per connection.
const PIPELINE: usize = 4_000;

/// A primary's address, and the slots that it serves.
#[derive(Debug, Clone)]
pub(super) struct Primary {
    pub(super) address: SocketAddr,
    pub(super) slots: Vec<SlotRange>,
}

/// The messages that were written to every inbox, and the time that it took.
#[derive(Debug, Clone, Copy)]
pub(super) struct WriteResult {
    pub(super) messages: u64,
    pub(super) seconds: f64,
}

/// Writes messages to the inboxes of a group with `members` for about so long.
pub(super) fn write_inboxes(
    primaries: &[Primary],
    members: usize,
    duration: Duration,
) -> Result<WriteResult, LabError> {
    let mut shares: Vec<Vec<String>> = vec![Vec::new(); primaries.len()];
    let Some(first) = primaries.first() else { return Err(LabError::Environment("Redis has no primary".into())) };
    let mut asking = RedisConnection::connect(first.address)?;
    for member in 0..members {
        let inbox = format!("inbox:{members}:{member}");
        let slot = asking.execute(&format!("CLUSTER KEYSLOT {inbox}"))?.number();
        let owner =
            primaries.iter().position(|one| one.slots.iter().any(|(first, last)| (*first..=*last).contains(&slot)));
        let owner = owner.ok_or_else(|| LabError::Environment(format!("slot {slot} of Redis has no owner")))?;
        shares[owner].push(inbox);
    }
    // All connections start at once.
    let start = Barrier::new(shares.len());
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = primaries
            .iter()
            .zip(&shares)
            .map(|(primary, share)| {
                let start = &start;
                scope.spawn(move || write_inboxes_of(primary.address, share, start, duration))
            })
            .collect();
        let results =
            writers.into_iter().map(|writer| writer.join().unwrap_or(Err(LabError::Worker("panicked".into()))));
        results.collect::<Result<Vec<_>, _>>()
    })?;
    // Each connection writes as fast as its primary allows, as if members were spread so that all primaries are equally
    // busy: this favours the design.
    let entries: u64 = written.iter().zip(&shares).map(|(written, share)| written.messages * share.len() as u64).sum();
    let seconds = written.iter().map(|one| one.seconds).reduce(f64::max).unwrap_or(1.0);
    Ok(WriteResult { messages: entries / members as u64, seconds })
}

fn write_inboxes_of(
    address: SocketAddr,
    share: &[String],
    start: &Barrier,
    duration: Duration,
) -> Result<WriteResult, LabError> {
    let redis = RedisConnection::connect(address);
    start.wait();
    let mut redis = redis?;
    let started = Instant::now();
    if share.is_empty() {
        return Ok(WriteResult { messages: 0, seconds: 0.0 });
    }
    let (mut sequence, mut under_way) = (0u64, 0);
    let keep = (-INBOX_ENTRIES - 1).to_string();
    while started.elapsed() < duration {
        sequence += 1;
        let (score, pointer) = (sequence.to_string(), format!("c0ffee:{sequence}"));
        for inbox in share {
            redis.queue(&[b"ZADD", inbox.as_bytes(), score.as_bytes(), pointer.as_bytes()]);
            redis.queue(&[b"ZREMRANGEBYRANK", inbox.as_bytes(), b"0", keep.as_bytes()]);
            under_way += 2;
            if under_way >= PIPELINE {
                read_replies(&mut redis, &mut under_way)?;
            }
        }
    }
    read_replies(&mut redis, &mut under_way)?;
    Ok(WriteResult { messages: sequence, seconds: started.elapsed().as_secs_f64() })
}

fn read_replies(redis: &mut RedisConnection, under_way: &mut usize) -> Result<(), LabError> {
    redis.flush()?;
    for _ in 0..std::mem::take(under_way) {
        redis.read_reply()?;
    }
    Ok(())
}
