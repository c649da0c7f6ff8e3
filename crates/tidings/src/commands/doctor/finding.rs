//! What the doctor reports of one thing: how it is, how it should be, why, and the command.

use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum State {
    Fine,
    /// Works, and could be better.
    Advice,
    /// The load would meet this limit.
    Wrong,
    /// Cannot be read here, such as in a container.
    Unknown,
}

#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct Finding {
    pub(super) name: String,
    pub(super) state: State,
    pub(super) now: String,
    pub(super) needed: String,
    pub(super) why: &'static str,
    /// The command, or the place, that changes it.
    pub(super) command: String,
}

impl Finding {
    pub(super) fn new(
        name: impl Into<String>,
        now: impl Into<String>,
        needed: impl Into<String>,
        why: &'static str,
    ) -> Self {
        let (name, now, needed) = (name.into(), now.into(), needed.into());
        Finding { name, state: State::Fine, now, needed, why, command: String::new() }
    }

    /// A number that has to be at least so great; `None`: it cannot be read.
    pub(super) fn at_least(name: &str, now: Option<u64>, needed: u64, why: &'static str) -> Self {
        let told =
            now.map_or("not known".into(), |now| if now == u64::MAX { "no limit".into() } else { now.to_string() });
        let state = match now {
            None => State::Unknown,
            Some(now) if now < needed => State::Wrong,
            Some(_) => State::Fine,
        };
        Finding { state, ..Finding::new(name, told, format!("{needed} or more"), why) }
    }

    pub(super) fn command(self, command: impl Into<String>) -> Self {
        Finding { command: command.into(), ..self }
    }

    pub(super) fn state(self, state: State) -> Self {
        Finding { state, ..self }
    }

    /// What would be wrong is only worth a thought.
    pub(super) fn advise_only(self) -> Self {
        let state = if self.state == State::Wrong { State::Advice } else { self.state };
        Finding { state, ..self }
    }

    pub(super) fn print(&self) {
        let mark = match self.state {
            State::Fine => "ok     ",
            State::Advice => "advice ",
            State::Wrong => "WRONG  ",
            State::Unknown => "unknown",
        };
        println!("{mark}  {}: {} (needed: {})", self.name, self.now, self.needed);
        println!("         {}", self.why);
        if self.state != State::Fine && !self.command.is_empty() {
            println!("         {}", self.command);
        }
    }
}
