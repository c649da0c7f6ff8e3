//! A device's life: there while it is wanted, gone while it is not.

use super::{
    super::pushes::Book,
    line::{Line, News},
    slot::{Doors, Slot},
    told::Told,
};
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tidings_client::ClientError;

/// How long a device reads before it looks what is wanted of it.
const LISTEN: Duration = Duration::from_millis(50);
const BETWEEN_BEATS: Duration = Duration::from_secs(1);
/// A connection on which nothing came for so long, beats being answered, is given up.
const SILENCE: Duration = Duration::from_secs(4);
/// Before a device tries again, in milliseconds at random: those that lost a node do not fall upon the next together.
const AGAIN_MS: std::ops::Range<u64> = 100..500;

/// What all devices share.
pub(super) struct Around<'a> {
    pub(super) slots: &'a [Slot],
    pub(super) doors: &'a Doors,
    pub(super) book: &'a Book,
    pub(super) told: &'a Told,
    pub(super) gone: &'a AtomicBool,
}

pub(super) fn live(number: usize, around: &Around<'_>) {
    let Around { doors, gone, .. } = around;
    let slot = &around.slots[number];
    let mut node = slot.home;
    let mut connections = 0;
    while !gone.load(Ordering::Relaxed) {
        if slot.take_call() {
            node = slot.home;
        }
        if !slot.is_wanted() {
            slot.is_at_rest();
            std::thread::sleep(LISTEN);
            continue;
        }
        slot.is_busy();
        match Line::open(slot, doors, node) {
            Ok((line, pushes)) => {
                slot.is_bound(pushes);
                connections += 1;
                let ended = Visit { number, connection: connections, slot, around, node }.stay(line);
                match ended {
                    Ended::Left => {
                        node = slot.home;
                        continue;
                    }
                    Ended::Broke(why) => slot.broke(why),
                }
            }
            Err(error) => slot.broke(format!("not bound: {}", in_a_word(&error))),
        }
        node = elsewhere(node, doors.nodes.len());
        std::thread::sleep(Duration::from_millis(rand::random_range(AGAIN_MS)));
    }
}

enum Ended {
    /// As it was told to.
    Left,
    Broke(String),
}

/// One session.
struct Visit<'a> {
    number: usize,
    connection: u64,
    slot: &'a Slot,
    around: &'a Around<'a>,
    node: usize,
}

/// What a visitor keeps in mind.
struct Mind {
    heard: Instant,
    beaten: Instant,
    /// Whether it has asked to be told of the others, and was not refused.
    watches: bool,
}

impl Visit<'_> {
    /// Until it is to go, or the connection ends.
    fn stay(&self, mut line: Line) -> Ended {
        let mut mind = Mind { heard: Instant::now(), beaten: Instant::now(), watches: false };
        loop {
            if self.slot.take_call() {
                if self.node != self.slot.home {
                    return self.leave(line, true);
                }
                self.slot.is_at_rest();
            }
            if !self.slot.is_wanted() || self.around.gone.load(Ordering::Relaxed) {
                // Every other time it is just gone, like an app that is swiped away.
                return self.leave(line, self.connection.is_multiple_of(2));
            }
            let result = self.listen(&mut line, &mut mind);
            if let Err(why) = result {
                self.slot.has_ended();
                return Ended::Broke(why);
            }
        }
    }

    fn leave(&self, line: Line, politely: bool) -> Ended {
        // Busy before it is gone: nodes may know at once.
        self.slot.is_busy();
        line.end(politely);
        self.slot.has_ended();
        Ended::Left
    }

    fn listen(&self, line: &mut Line, mind: &mut Mind) -> Result<(), String> {
        let word = |error: ClientError| in_a_word(&error);
        if mind.beaten.elapsed() >= BETWEEN_BEATS {
            mind.beaten = Instant::now();
            line.beat().map_err(word)?;
            if !std::mem::replace(&mut mind.watches, true) {
                line.watch(self.around.doors).map_err(word)?;
            }
        }
        match line.next(LISTEN).map_err(word)? {
            Some(news) => {
                mind.heard = Instant::now();
                match news {
                    News::Push { id, body } => {
                        self.around.book.take(self.number, self.connection, id, &body);
                        line.acknowledge(id).map_err(word)?;
                    }
                    News::Bound { pushes } => self.slot.is_bound(pushes),
                    News::Leave => return Err("told to connect again".into()),
                    News::Presence(changes) => self.around.told.take(changes, self.around.slots, self.node),
                    // Nothing else is asked for: it asks again.
                    News::Refused(_) => mind.watches = false,
                    News::Other => {}
                }
            }
            None if mind.heard.elapsed() > SILENCE => return Err("silence".into()),
            None => {}
        }
        Ok(())
    }
}

/// Any other node.
fn elsewhere(node: usize, nodes: usize) -> usize {
    if nodes < 2 { node } else { (node + rand::random_range(1..nodes)) % nodes }
}

fn in_a_word(error: &ClientError) -> String {
    match error {
        ClientError::Io(error) => error.kind().to_string(),
        ClientError::Closed { code, reason } => format!("{code} {reason}"),
        ClientError::Ended { code, .. } => code.clone(),
        other => other.to_string(),
    }
}
