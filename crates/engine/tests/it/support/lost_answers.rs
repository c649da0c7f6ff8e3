//! Writes of push and popups whose answers are lost: some are stored, some are not, and some are stored a while later.

use super::*;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::collections::VecDeque;

/// What happens to a write whose answer is lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WriteFate {
    Stored,
    NotStored,
    StoredLate,
}

#[derive(Default)]
pub struct LostAnswers {
    dice: Mutex<Option<(StdRng, f64)>>,
    next: Mutex<VecDeque<Option<WriteFate>>>,
    /// A write that is still on its way to the store.
    late: Mutex<Option<Write>>,
    count: AtomicUsize,
}

pub(super) enum Write {
    Push(Term, Vec<PushChange>),
    Rows(Term, RowSpace, Vec<RowChange>),
}

impl Write {
    fn write(self, store: &MemoryStore) -> StoreResult<()> {
        match self {
            Write::Push(term, changes) => store.write_push(term, &changes),
            Write::Rows(term, space, changes) => store.write_rows(term, space, changes),
        }
    }
}

impl LostAnswers {
    /// From now on answers are lost with this probability.
    pub fn begin(&self, seed: u64, probability: f64) {
        *self.dice.lock() = Some((StdRng::seed_from_u64(seed), probability));
    }

    /// The answers to the next writes: `None` arrives.
    pub fn next(&self, fates: impl IntoIterator<Item = Option<WriteFate>>) {
        self.next.lock().extend(fates);
    }

    /// From now on every answer arrives.
    pub fn end(&self) {
        *self.dice.lock() = None;
        self.next.lock().clear();
    }

    /// How many answers were lost.
    pub fn count(&self) -> usize {
        self.count.load(Ordering::SeqCst)
    }

    fn next_fate(&self) -> Option<WriteFate> {
        if let Some(fate) = self.next.lock().pop_front() {
            return fate;
        }
        let mut dice = self.dice.lock();
        let (dice, probability) = dice.as_mut()?;
        let all = [WriteFate::Stored, WriteFate::NotStored, WriteFate::StoredLate];
        dice.random_bool(*probability).then(|| all[dice.random_range(0..all.len())])
    }

    pub(super) fn write(&self, store: &MemoryStore, write: Write) -> StoreResult<()> {
        self.fence(store);
        let Some(fate) = self.next_fate() else { return write.write(store) };
        self.count.fetch_add(1, Ordering::SeqCst);
        match fate {
            WriteFate::Stored => write.write(store)?,
            WriteFate::NotStored => {}
            WriteFate::StoredLate => *self.late.lock() = Some(write),
        }
        Err(StoreError::OutcomeUnknown("the answer was lost".into()))
    }

    /// The late write is stored now or never.
    pub(super) fn fence(&self, store: &MemoryStore) {
        self.land(store, |dice| Some(dice.is_none_or(|dice| dice.random_bool(0.5))));
    }

    /// The late write may be stored before any read.
    pub(super) fn read(&self, store: &MemoryStore) {
        self.land(store, |dice| dice.is_some_and(|dice| dice.random_bool(0.1)).then_some(true));
    }

    fn land(&self, store: &MemoryStore, lands: impl FnOnce(Option<&mut StdRng>) -> Option<bool>) {
        let mut late = self.late.lock();
        if late.is_none() {
            return;
        }
        match lands(self.dice.lock().as_mut().map(|(dice, _)| dice)) {
            // A stale term stores nothing.
            Some(true) => drop(late.take().map(|write| write.write(store))),
            Some(false) => *late = None,
            None => {}
        }
    }
}
