//! A script as it is written: what each of its sessions does, step by step.

use super::values::{ThinkTime, Via};
use crate::toml_file::Time;
use serde::{
    Deserialize, Deserializer,
    de::{Error, MapAccess, Visitor, value::MapAccessDeserializer},
};
use std::fmt;
use toml::Spanned;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScriptFile {
    pub(crate) sessions: Spanned<usize>,
    pub(crate) via: Option<Spanned<Via>>,
    pub(crate) seed: Option<u64>,
    pub(crate) steps: Option<Vec<Spanned<StepFile>>>,
    /// In place of steps: a program in Lua that takes them.
    pub(crate) lua: Option<Spanned<String>>,
}

/// To whom a scripted client sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Recipient {
    /// The other session of the same pair.
    Partner,
    /// The group of all sessions of the script.
    Everybody,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SendFile {
    pub(crate) to: Recipient,
    pub(crate) body: String,
    pub(crate) within: Option<Time>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct PushFile {
    pub(crate) body: String,
}

/// What a scripted client waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum ExpectedKind {
    Message,
    Push,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ExpectFile {
    pub(crate) kind: ExpectedKind,
    pub(crate) body: Option<String>,
    /// Exactly so many; 0: none may come.
    pub(crate) count: Option<usize>,
    pub(crate) within: Time,
}

/// What a scripted client does.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Action {
    Bind,
    /// Acknowledges the pushes that have come.
    Acknowledge,
    Disconnect,
    Wait(ThinkTime),
    Send(SendFile),
    /// The app server pushes to the session's user.
    Push(PushFile),
    Expect(ExpectFile),
}

impl Action {
    /// As a script writes it.
    pub(crate) fn word(&self) -> &'static str {
        match self {
            Action::Bind => "bind",
            Action::Acknowledge => "acknowledge",
            Action::Disconnect => "disconnect",
            Action::Wait(_) => "wait",
            Action::Send(_) => "send",
            Action::Push(_) => "push",
            Action::Expect(_) => "expect",
        }
    }
}

/// A step of a script, as it is written: a word, or a table with one of the other steps.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum StepFile {
    Once(Action),
    Repeat { times: usize, steps: Vec<Spanned<StepFile>> },
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct StepTable {
    wait: Option<ThinkTime>,
    send: Option<SendFile>,
    push: Option<PushFile>,
    expect: Option<ExpectFile>,
    repeat: Option<usize>,
    steps: Option<Vec<Spanned<StepFile>>>,
}

impl<'de> Deserialize<'de> for StepFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = StepFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "\"bind\", \"acknowledge\", \"disconnect\", or a table with `wait`, `send`, `push`, `expect` or `repeat`",
                )
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<StepFile, E> {
                match text {
                    "bind" => Ok(StepFile::Once(Action::Bind)),
                    "acknowledge" => Ok(StepFile::Once(Action::Acknowledge)),
                    "disconnect" => Ok(StepFile::Once(Action::Disconnect)),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<StepFile, A::Error> {
                let StepTable { wait, send, push, expect, repeat, steps } =
                    StepTable::deserialize(MapAccessDeserializer::new(map))?;
                let actions = [
                    wait.map(Action::Wait),
                    send.map(Action::Send),
                    push.map(Action::Push),
                    expect.map(Action::Expect),
                ];
                let mut given = actions.into_iter().flatten();
                match (given.next(), given.next(), repeat, steps) {
                    (Some(action), None, None, None) => Ok(StepFile::Once(action)),
                    (None, None, Some(times), Some(steps)) => Ok(StepFile::Repeat { times, steps }),
                    _ => Err(A::Error::custom(
                        "must have one of `wait`, `send`, `push` and `expect`, or `repeat` with `steps`",
                    )),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
