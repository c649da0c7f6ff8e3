//! Values of a scenario's file that are more than a number or a text: times, rates, thresholds.

use crate::{options::parse_duration, result::Threshold, toml_file::Time};
use serde::{
    Deserialize, Deserializer,
    de::{Error, IgnoredAny, MapAccess, SeqAccess, Visitor, value::MapAccessDeserializer},
};
use std::{fmt, time::Duration};

/// How clients reach the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Via {
    Http,
    Ws,
    Miop,
    Miops,
}

/// What devices do in a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum DeviceTask {
    /// All that are not bound yet bind.
    Bind,
    /// They stay, with heartbeats.
    Stay,
    /// All drop their connections and come back at one moment.
    Reconnect,
    /// They are pushed to.
    Push,
    /// They are pushed to while a gateway is killed, and until all are bound again.
    Outlive,
}

/// A bound of a figure, such as `p99<70`.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Bound(pub(super) Threshold);

impl<'de> Deserialize<'de> for Bound {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map(Bound).map_err(D::Error::custom)
    }
}

/// How long a scripted client waits: so long, or a time between two that is drawn for each wait.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ThinkTime {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
}

impl<'de> Deserialize<'de> for ThinkTime {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = ThinkTime;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a time such as \"2s\", or two such as [\"1s\", \"3s\"]")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<ThinkTime, E> {
                let time = parse_duration(text).map_err(E::custom)?;
                Ok(ThinkTime { least: time, most: time })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut times: A) -> Result<ThinkTime, A::Error> {
                match (times.next_element::<Time>()?, times.next_element::<Time>()?, times.next_element::<Time>()?) {
                    (Some(least), Some(most), None) if least.0 <= most.0 => {
                        Ok(ThinkTime { least: least.0, most: most.0 })
                    }
                    _ => Err(A::Error::custom("must be two times, the shorter one first")),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}

/// How a rate runs, as it is written: a number, `"max"`, or a table with one of the other shapes.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case", remote = "Self")]
pub(crate) enum RateFile {
    #[serde(skip)]
    Max,
    #[serde(skip)]
    Constant(f64),
    Ramp(RampFile),
    Steps(Vec<f64>),
    Burst(BurstFile),
    UntilItBreaks(UntilItBreaksFile),
    Highest(HighestFile),
    ShareOfMax(ShareOfMaxFile),
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct RampFile {
    pub(crate) from: f64,
    pub(crate) to: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BurstFile {
    pub(crate) base: f64,
    pub(crate) peak: f64,
    pub(crate) every: Time,
    #[serde(rename = "for")]
    pub(crate) lasts: Time,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct UntilItBreaksFile {
    /// The first step's rate.
    pub(crate) from: f64,
    /// Each step's rate is this many times that of the step before.
    #[serde(default = "default_factor")]
    pub(crate) factor: f64,
    /// No step has a higher rate.
    pub(crate) to: f64,
    /// How long each step lasts.
    pub(crate) each: Time,
    /// What breaks a step beside refusals, lost connections and a balance that does not hold.
    #[serde(default)]
    pub(crate) thresholds: Vec<Bound>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct HighestFile {
    /// The first rate that is tried.
    pub(crate) from: f64,
    /// How long each trial lasts; the rate that was found is proved for as long as the phase.
    pub(crate) each: Time,
    /// What a rate must keep.
    pub(crate) thresholds: Vec<Bound>,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ShareOfMaxFile {
    /// Of the rate that the work reaches alone.
    pub(crate) share: f64,
    /// How long it runs alone, before the phase; unset: the rate that it reached in an earlier one.
    pub(crate) each: Option<Time>,
}

fn default_factor() -> f64 {
    1.5
}

impl<'de> Deserialize<'de> for RateFile {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Reader;
        impl<'de> Visitor<'de> for Reader {
            type Value = RateFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(
                    "a number a second, \"max\", or a table with `ramp`, `steps`, `burst`, `until_it_breaks`, `highest` or `share_of_max`",
                )
            }

            fn visit_i64<E: Error>(self, rate: i64) -> Result<RateFile, E> {
                Ok(RateFile::Constant(rate as f64))
            }

            fn visit_f64<E: Error>(self, rate: f64) -> Result<RateFile, E> {
                Ok(RateFile::Constant(rate))
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<RateFile, E> {
                match text {
                    "max" => Ok(RateFile::Max),
                    _ => Err(E::invalid_value(serde::de::Unexpected::Str(text), &self)),
                }
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RateFile, A::Error> {
                // What is derived, which takes the first key and looks at no other.
                let shape = RateFile::deserialize(MapAccessDeserializer::new(&mut map))?;
                match map.next_key::<IgnoredAny>()? {
                    None => Ok(shape),
                    Some(_) => Err(A::Error::custom(
                        "must have one of `ramp`, `steps`, `burst`, `until_it_breaks`, `highest` and `share_of_max`",
                    )),
                }
            }
        }
        deserializer.deserialize_any(Reader)
    }
}
