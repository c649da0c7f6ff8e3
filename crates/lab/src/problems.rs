//! Faults in words: the first few are told, the rest only counted.

/// How many of one list are told.
const PROBLEMS_MAX: usize = 10;
/// How much of one is told, in characters: what was received is part of it.
const LENGTH_MAX: usize = 400;

pub(crate) trait Problems {
    fn note(&mut self, what: String);
}

impl Problems for Vec<String> {
    fn note(&mut self, what: String) {
        if self.len() < PROBLEMS_MAX {
            self.push(what.chars().take(LENGTH_MAX).collect());
        }
    }
}
