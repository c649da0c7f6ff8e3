//! The keys of a population as they are written: each is read by its name, and any other is a mistake.

use crate::{
    client_engine::device::DeviceProtocol,
    options::SendProtocol,
    scenario::{
        file::{PopulationFile, PopulationKind},
        values::Via,
    },
    toml_file::{Mistake, Time},
};
use serde::de::DeserializeOwned;
use std::{ops::Range, time::Duration};
use toml::Spanned;

/// The messages that a population sends.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Texts {
    pub(crate) body_bytes: usize,
    /// Unanswered sends per WebSocket session.
    pub(crate) pipeline: usize,
}

const SENDERS: usize = 16;
const BODY_BYTES: usize = 200;
pub(super) const PIPELINE: usize = 64;

/// The keys of a population. Those that its kind does not ask for are mistakes.
pub(super) struct Keys<'a> {
    file: &'a PopulationFile,
    kind: Range<usize>,
    known: Vec<&'static str>,
}

impl<'a> Keys<'a> {
    /// Those of this population, and its kind.
    pub(super) fn of(written: &'a Spanned<PopulationFile>) -> Result<(Self, PopulationKind), Mistake> {
        let mut keys = Keys { file: written.get_ref(), kind: written.span(), known: Vec::new() };
        let kind = keys.read::<PopulationKind>("kind")?;
        let kind = kind.ok_or_else(|| Mistake::at(written.span(), "missing field `kind`"))?;
        keys.kind = kind.span();
        Ok((keys, kind.into_inner()))
    }

    pub(super) fn read<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<Spanned<T>>, Mistake> {
        self.known.push(name);
        let Some((_, value)) = self.file.iter().find(|(key, _)| key.get_ref() == name) else { return Ok(None) };
        let read = value.get_ref().clone().try_into();
        let read = read.map_err(|error: toml::de::Error| Mistake::at(value.span(), error.message().trim_end()))?;
        Ok(Some(Spanned::new(value.span(), read)))
    }

    pub(super) fn get<T: DeserializeOwned>(&mut self, name: &'static str) -> Result<Option<T>, Mistake> {
        Ok(self.read(name)?.map(Spanned::into_inner))
    }

    /// A number of at least 1.
    pub(super) fn count(&mut self, name: &'static str) -> Result<Option<usize>, Mistake> {
        match self.read(name)? {
            Some(value) if *value.get_ref() == 0 => Err(Mistake::at(value.span(), "must be at least 1")),
            value => Ok(value.map(Spanned::into_inner)),
        }
    }

    /// The same of a key that must be given.
    pub(super) fn needed(&mut self, name: &'static str) -> Result<usize, Mistake> {
        self.count(name)?.ok_or_else(|| self.needs(name))
    }

    pub(super) fn needs(&self, name: &str) -> Mistake {
        Mistake::at(self.kind.clone(), format!("a population of this kind needs `{name}`"))
    }

    pub(super) fn time(&mut self, name: &'static str) -> Result<Option<Duration>, Mistake> {
        Ok(self.get::<Time>(name)?.map(|time| time.0))
    }

    /// How many of so many are offline, and are to be told by offline push.
    pub(super) fn offline_of(&mut self, count: usize) -> Result<usize, Mistake> {
        let Some(share) = self.read::<f64>("offline_share")? else { return Ok(0) };
        match (count as f64 * share.get_ref()).round() as usize {
            offline if (1..count).contains(&offline) => Ok(offline),
            _ => {
                let what = "must leave somebody online and somebody offline, such as 0.5";
                Err(Mistake::at(share.span(), what))
            }
        }
    }

    pub(super) fn send_protocol(&mut self) -> Result<SendProtocol, Mistake> {
        match self.read("via")?.map(|via| (*via.get_ref(), via.span())) {
            None | Some((Via::Http, _)) => Ok(SendProtocol::Http),
            Some((Via::Ws, _)) => Ok(SendProtocol::Ws),
            Some((Via::Miop | Via::Miops, span)) => Err(Mistake::at(span, "messages are sent by `http` or `ws`")),
        }
    }

    pub(super) fn device_protocol(&mut self) -> Result<DeviceProtocol, Mistake> {
        match self.read("via")?.map(|via| (*via.get_ref(), via.span())) {
            None | Some((Via::Miop, _)) => Ok(DeviceProtocol::Miop),
            Some((Via::Miops, _)) => Ok(DeviceProtocol::Miops),
            Some((Via::Ws, _)) => Ok(DeviceProtocol::Ws),
            Some((Via::Http, span)) => Err(Mistake::at(span, "connections are opened by `miop`, `miops` or `ws`")),
        }
    }

    pub(super) fn senders(&mut self) -> Result<usize, Mistake> {
        Ok(self.count("senders")?.unwrap_or(SENDERS))
    }

    pub(super) fn body_bytes(&mut self) -> Result<usize, Mistake> {
        Ok(self.count("body_bytes")?.unwrap_or(BODY_BYTES))
    }

    pub(super) fn texts(&mut self) -> Result<Texts, Mistake> {
        Ok(Texts { body_bytes: self.body_bytes()?, pipeline: self.count("pipeline")?.unwrap_or(PIPELINE) })
    }

    /// All keys have been asked for.
    pub(super) fn refuse_others(&self) -> Result<(), Mistake> {
        let other = self.file.iter().find(|(key, _)| !self.known.contains(&key.get_ref().as_str()));
        let Some((key, value)) = other else { return Ok(()) };
        let known: Vec<String> = self.known.iter().skip(1).map(|name| format!("`{name}`")).collect();
        let what = format!("a population of this kind has no `{}`, but {}", key.get_ref(), known.join(", "));
        Err(Mistake::at(value.span(), what))
    }
}
