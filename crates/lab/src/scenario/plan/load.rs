//! How much of a work is due, and when; and which population can do that.

use super::population::{DeviceSpec, Members, Population};
use crate::{
    devices::device_counts::PUSHES_MAX,
    message_clients::PairSpec,
    rate_profile::{BurstTimes, RateProfile},
    scenario::{file::WorkFile, values::RateFile},
    toml_file::Mistake,
};
use std::{ops::Range, time::Duration};
use tidings_protocol::limits::BODY_BYTES_MAX;
use toml::Spanned;

/// Chunks of a profile: a burst more often than this is no burst.
const BURSTS_MAX: f64 = 10_000.0;

/// What the body of a message that grows has beside its text, at most.
const STREAM_BODY_BYTES: usize = 64;

/// When the chunks of a work are due.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Load {
    Planned(RateProfile),
    /// As fast as it goes.
    Max {
        window: usize,
        lasts: Duration,
    },
    /// A share of the rate that it reaches alone, as fast as it goes, for so long; or that it reached in an earlier phase.
    ShareOfMax {
        share: f64,
        window: usize,
        alone: Option<Duration>,
        lasts: Duration,
    },
    Rounds {
        rounds: usize,
        pause: Duration,
        /// After those, more until so long is over.
        at_least: Duration,
    },
    /// Devices bind: so many a second, or as fast as it goes.
    Bind {
        per_second: Option<f64>,
    },
    /// Devices stay, with heartbeats.
    Stay {
        lasts: Duration,
    },
    /// All devices come back at one moment.
    Reconnect,
    /// Devices are pushed to while a gateway is killed, which must be forgotten soon.
    Outlive {
        pause: Duration,
        forgotten_within: Duration,
    },
    /// This share of the rate that is searched for.
    Searched {
        share: f64,
    },
    /// A recorded chat, once: so many times as fast as it was, or as fast as it goes.
    Replay {
        speed: Option<f64>,
        window: usize,
    },
    /// All steps of a script, once.
    Script,
}

impl Load {
    /// The load of one step of a search; any other is what it is.
    pub(crate) fn at_step(&self, rate: f64, each: Duration) -> Load {
        match self {
            Load::Searched { share } => Load::Planned(RateProfile::constant(rate * share, each.as_secs_f64())),
            other => other.clone(),
        }
    }

    /// Whether its rate follows from what an earlier phase reached.
    pub(crate) fn is_share_of_earlier(&self) -> bool {
        matches!(self, Load::ShareOfMax { alone: None, .. })
    }
}

pub(super) fn positive(rate: f64, span: &Range<usize>) -> Result<f64, Mistake> {
    if rate > 0.0 && rate.is_finite() { Ok(rate) } else { Err(Mistake::at(span.clone(), "a rate must be above 0")) }
}

fn not_negative(rate: f64, span: &Range<usize>) -> Result<f64, Mistake> {
    if rate >= 0.0 && rate.is_finite() {
        Ok(rate)
    } else {
        Err(Mistake::at(span.clone(), "a rate must not be below 0"))
    }
}

/// The profile of a rate that is neither `max` nor searched for.
pub(super) fn profile_of(rate: &RateFile, span: &Range<usize>, seconds: f64) -> Result<RateProfile, Mistake> {
    let profile = match rate {
        RateFile::Constant(rate) => RateProfile::constant(positive(*rate, span)?, seconds),
        RateFile::Ramp(ramp) => {
            RateProfile::ramp(not_negative(ramp.from, span)?, not_negative(ramp.to, span)?, seconds)
        }
        RateFile::Steps(rates) => {
            let rates = rates.iter().map(|rate| not_negative(*rate, span)).collect::<Result<Vec<_>, _>>()?;
            RateProfile::steps(&rates, seconds)
        }
        RateFile::Burst(burst) => {
            let (every, lasts) = (burst.every.0.as_secs_f64(), burst.lasts.0.as_secs_f64());
            if lasts <= 0.0 || lasts >= every {
                return Err(Mistake::at(span.clone(), "`for` must be above 0 and below `every`"));
            }
            if seconds / every > BURSTS_MAX {
                return Err(Mistake::at(span.clone(), "there are more than 10000 bursts in this phase"));
            }
            let (base, peak) = (not_negative(burst.base, span)?, positive(burst.peak, span)?);
            RateProfile::bursts(base, peak, BurstTimes { every, lasts }, seconds)
        }
        RateFile::Max | RateFile::UntilItBreaks(_) | RateFile::Highest(_) | RateFile::ShareOfMax(_) => {
            RateProfile::default()
        }
    };
    match profile.messages() {
        0 => Err(Mistake::at(span.clone(), "nothing is due at this rate while the phase lasts")),
        _ => Ok(profile),
    }
}

/// Whether a population can do this.
pub(super) fn check_load(
    load: &Load,
    population: &Population,
    searches: bool,
    written: &Spanned<WorkFile>,
) -> Result<(), Mistake> {
    let refuse = |what: String| Err(Mistake::at(written.span(), what));
    if let (Load::Planned(profile), true) = (load, searches)
        && !profile.is_constant()
    {
        return refuse("beside a rate that runs until it breaks, other work runs at a constant rate".into());
    }
    match (&population.members, load) {
        (Members::Pairs(PairSpec { are_open: false, pairs, .. }, _), Load::Planned(profile)) => {
            if profile.messages() > *pairs as u64 {
                refuse(format!("{} conversations are opened, and there are {pairs} pairs", profile.messages()))
            } else {
                Ok(())
            }
        }
        (Members::Pairs(PairSpec { are_open: false, .. }, _), _) => {
            refuse("conversations are opened at a rate that is planned".into())
        }
        (Members::Connections { devices: DeviceSpec { devices: users, .. }, stay }, Load::Planned(profile)) => {
            let open = stay.map_or(profile.messages() as f64, |stay| profile.highest() * stay.as_secs_f64());
            if open.min(profile.messages() as f64) > *users as f64 {
                refuse(format!("{open:.0} connections may be open at once, and there are {users} users"))
            } else {
                Ok(())
            }
        }
        (Members::Connections { .. }, Load::Searched { .. }) => Ok(()),
        (Members::Connections { .. }, _) => refuse("connections come at a rate that is planned".into()),
        (Members::Devices(_), Load::Rounds { rounds, .. }) if *rounds <= PUSHES_MAX => Ok(()),
        (Members::Devices(_), Load::Planned(profile)) if profile.messages() <= PUSHES_MAX as u64 => Ok(()),
        (Members::Devices(_), Load::Bind { .. } | Load::Stay { .. } | Load::Reconnect | Load::Outlive { .. }) => Ok(()),
        (_, Load::Bind { .. } | Load::Stay { .. } | Load::Reconnect | Load::Outlive { .. }) => {
            refuse("only `devices` bind, stay, reconnect and outlive a gateway".into())
        }
        (Members::FaultyDevices(_), Load::Rounds { rounds: 1, .. }) => Ok(()),
        (Members::FaultyDevices(_), _) => {
            refuse("faulty devices do all that they do in one round: `rounds = 1`".into())
        }
        (Members::Devices(_), _) => {
            refuse(format!("devices are pushed to in `rounds` or at a planned rate, {PUSHES_MAX} times at most"))
        }
        (Members::PopupUsers(_), Load::Rounds { rounds: 2.., .. }) => {
            refuse("each of these users is decided for once in one of `rounds`".into())
        }
        (Members::Streams(streams), Load::Planned(profile)) if profile.is_constant() => {
            let text_bytes = profile.messages() as usize * streams.chunk_bytes;
            if text_bytes + STREAM_BODY_BYTES > BODY_BYTES_MAX {
                refuse(format!("a text would have {text_bytes} bytes; a body has at most {BODY_BYTES_MAX}"))
            } else {
                Ok(())
            }
        }
        (Members::Streams(_), _) => refuse("messages grow at a constant rate".into()),
        (Members::Chat(_), Load::Replay { .. }) => Ok(()),
        (Members::Chat(_), _) | (_, Load::Replay { .. }) => refuse("a chat, and nothing else, takes `replay`".into()),
        (Members::Conversation(..) | Members::Pairs(..) | Members::PopupUsers(_), _) => Ok(()),
    }
}
