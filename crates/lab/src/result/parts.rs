//! The measured parts of a run, found in its figures wherever a bench has put them: what has a latency.

use serde_json::{Map, Value};

/// One measured part: an outcome of messages, of streams, of popup decisions.
#[derive(Debug)]
pub(crate) struct Part<'a> {
    pub(crate) title: String,
    figures: &'a Map<String, Value>,
    /// Where a bench keeps what the load saw apart from what it cost, the latter.
    around: Option<&'a Map<String, Value>>,
}

impl<'a> Part<'a> {
    /// These figures, which a measured part has.
    pub(crate) fn of(title: &str, figures: &'a Map<String, Value>) -> Self {
        let load = figures.get("stretch").and_then(Value::as_object);
        Part { title: title.to_owned(), figures: load.unwrap_or(figures), around: load.map(|_| figures) }
    }
}

/// All parts, in the order in which they stand.
pub(crate) fn parts_of(figures: &Value) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    gather(figures, "", &mut parts);
    parts
}

fn gather<'a>(value: &'a Value, path: &str, parts: &mut Vec<Part<'a>>) {
    let inner = |name: &str| if path.is_empty() { name.to_owned() } else { format!("{path}.{name}") };
    match value {
        Value::Object(object) => {
            // The report's own part of the document is no part of the run, and those of a comparison belong to other runs.
            if path == "run" || path == "sides" || path == "compared" {
                return;
            }
            let part = Part::of("", object);
            if part.number(&["latency", "p50"]).is_some() {
                let title = part.get("title").and_then(Value::as_str).filter(|title| !title.is_empty());
                let title = title.unwrap_or(path.trim_end_matches(".measured")).to_owned();
                parts.push(Part { title, ..part });
                return;
            }
            // What the bench is about comes first, then what it is compared with.
            let (first, others): (Vec<_>, Vec<_>) =
                object.iter().partition(|(name, _)| ["outcome", "idle"].contains(&name.as_str()));
            first.iter().chain(&others).for_each(|(name, value)| gather(value, &inner(name), parts));
        }
        Value::Array(values) => {
            values.iter().enumerate().for_each(|(index, value)| gather(value, &inner(&(index + 1).to_string()), parts));
        }
        _ => {}
    }
}

/// Changes each measured part where it stands: what has a latency, or what is around it.
pub(crate) fn for_each_part(figures: &mut Value, change: &mut impl FnMut(&mut Map<String, Value>)) {
    match figures {
        Value::Object(object) => {
            let has_latency =
                |object: &Map<String, Value>| object.get("latency").is_some_and(|one| one.get("p50").is_some());
            if has_latency(object) || object.get("stretch").and_then(Value::as_object).is_some_and(has_latency) {
                return change(object);
            }
            object.values_mut().for_each(|value| for_each_part(value, change));
        }
        Value::Array(values) => values.iter_mut().for_each(|value| for_each_part(value, change)),
        _ => {}
    }
}

/// Gives each measured part another title, made of the one that it has or of its place.
pub(crate) fn retitle(figures: &mut Value, title: &impl Fn(&str) -> String) {
    for_each_part(figures, &mut |part| {
        let old = part.get("title").and_then(Value::as_str).unwrap_or_default();
        let new = title(old);
        part.insert("title".into(), Value::String(new));
    });
}

impl Part<'_> {
    pub(crate) fn get(&self, name: &str) -> Option<&Value> {
        self.figures.get(name).or_else(|| self.around?.get(name)).filter(|value| !value.is_null())
    }

    pub(crate) fn number(&self, path: &[&str]) -> Option<f64> {
        let (first, rest) = path.split_first()?;
        rest.iter().try_fold(self.get(first)?, |value, name| value.get(name))?.as_f64()
    }

    fn or_zero(&self, name: &str) -> f64 {
        self.number(&[name]).unwrap_or(0.0)
    }

    /// Messages, chunks or answers a second.
    pub(crate) fn rate(&self) -> Option<f64> {
        let count = ["committed", "answers", "chunks"].iter().find_map(|name| {
            // In an outcome of streams, `committed` is a latency.
            self.number(&[name])
        })?;
        Some(count / self.number(&["seconds"])?.max(1e-9))
    }

    pub(crate) fn server_cores(&self) -> Option<f64> {
        Some(self.number(&["server_cpu_seconds"])? / self.number(&["seconds"])?.max(1e-9))
    }

    /// How much of the time the server's store was at work, as its metrics tell.
    pub(crate) fn store_percent(&self) -> Option<f64> {
        let busy = self.number(&["metrics", "store_busy_seconds"])?;
        Some(100.0 * busy / self.number(&["seconds"])?.max(1e-9))
    }

    /// The most entries that the webhook, or the search for devices of providers, was behind the newest. A gauge that was always 0 is not
    /// among the samples.
    pub(crate) fn offline_lag(&self) -> Option<f64> {
        let samples = self.get("samples")?;
        samples.get("at")?.as_array().filter(|rows| !rows.is_empty())?;
        let metrics = samples.get("metrics")?.as_object()?;
        let lags =
            ["tidings_webhook_lag", "tidings_provider_lag"].iter().filter_map(|name| metrics.get(*name)?.as_array());
        Some(lags.flatten().filter_map(Value::as_f64).fold(0.0, f64::max))
    }

    /// The share of what went wrong: of planned messages those refused, of expected deliveries those lost, doubled and so on.
    pub(crate) fn error_percent(&self) -> Option<f64> {
        let planned = ["planned", "answers", "chunks"].iter().find_map(|name| self.number(&[name]))?;
        let refused = self.or_zero("refused") + self.or_zero("broken") + self.or_zero("unsent");
        let faults =
            ["lost", "doubled", "out_of_order", "altered", "gaps"].iter().map(|name| self.or_zero(name)).sum::<f64>();
        let expected = self.number(&["expected"]).unwrap_or(planned);
        Some(100.0 * (refused / planned.max(1.0)).max(faults / expected.max(1.0)))
    }

    /// What was delivered, and what is wrong with it, in words; `None` if this part counts no deliveries.
    pub(crate) fn balance(&self) -> Option<String> {
        let (delivered, expected) = (self.number(&["delivered"])?, self.number(&["expected"])?);
        let named = ["lost", "doubled", "out_of_order", "altered", "gaps"]
            .iter()
            .filter_map(|name| Some((*name, self.number(&[name])?)));
        let faults: Vec<_> = named.filter(|(_, count)| *count > 0.0).collect();
        let words: Vec<String> =
            faults.iter().map(|(name, count)| format!(", {} {count:.0}", name.replace('_', " "))).collect();
        Some(format!("{delivered:.0} of {expected:.0}{}", words.concat()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn parts_are_found_wherever_they_stand() {
        let figures = json!({
            "idle": { "title": "nothing else", "latency": { "p50": 1 } },
            "floods": [{ "direct": { "latency": { "p50": 2 } } }],
            "closed": { "measured": { "stretch": { "latency": { "p50": 3 }, "answers": 50, "seconds": 2.0 }, "server_cpu_seconds": 1.0 } },
            "run": { "latency": { "p50": 4 } },
        });
        let parts = parts_of(&figures);
        let mut titles: Vec<_> = parts.iter().map(|part| part.title.as_str()).collect();
        titles.sort_unstable();
        assert_eq!(parts[0].title, "nothing else", "what others are compared with comes first");
        assert_eq!(titles, ["closed", "floods.1.direct", "nothing else"]);
        let popups = parts.iter().find(|part| part.title == "closed").map(|part| (part.rate(), part.server_cores()));
        assert_eq!(popups, Some((Some(25.0), Some(0.5))));
    }
}
