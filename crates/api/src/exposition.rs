//! The text formats of `/metrics`: Prometheus' text (0.0.4) unless the `Accept` header asks for OpenMetrics.
//!
//! The two name counters differently: a family `sends` of OpenMetrics has the sample `sends_total`, while in Prometheus' text the
//! family itself is `sends_total`. A reader of the wrong format would see every counter without type and help.

use axum::http::{HeaderMap, header};
use std::collections::HashMap;

/// The media type of Prometheus' text, which every reader knows.
pub const TEXT: &str = "text/plain; version=0.0.4; charset=utf-8";
/// The media type of OpenMetrics.
pub const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Converts OpenMetrics text to the format that the `Accept` header asks for, and returns it with its media type.
pub fn in_accepted_format(
    headers: &HeaderMap,
    open_metrics: String,
) -> ([(header::HeaderName, &'static str); 1], String) {
    if asks_for_open_metrics(headers) {
        ([(header::CONTENT_TYPE, OPEN_METRICS)], open_metrics)
    } else {
        ([(header::CONTENT_TYPE, TEXT)], to_prometheus_text(&open_metrics))
    }
}

/// Whether `Accept` names OpenMetrics with at least the weight of plain text.
fn asks_for_open_metrics(headers: &HeaderMap) -> bool {
    let values = || headers.get_all(header::ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let wish = |media_type: &str| {
        let ranges = values().flat_map(|value| value.split(','));
        let weights = ranges.filter_map(|range| {
            let (name, parameters) = range.split_once(';').unwrap_or((range, ""));
            name.trim().eq_ignore_ascii_case(media_type).then(|| weight(parameters))
        });
        weights.fold(0.0, f32::max)
    };
    let open_metrics = wish("application/openmetrics-text");
    open_metrics > 0.0 && open_metrics >= wish("text/plain")
}

/// The `q` among a media range's parameters; 1 when there is none.
fn weight(parameters: &str) -> f32 {
    let mut pairs = parameters.split(';').filter_map(|parameter| parameter.split_once('='));
    let q = pairs.find(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
    q.map_or(1.0, |(_, value)| value.trim().parse().unwrap_or(0.0))
}

fn to_prometheus_text(open_metrics: &str) -> String {
    let types = open_metrics.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    let suffixes: HashMap<&str, &str> = types.filter_map(|(name, of)| Some((name, suffix(of)?))).collect();
    let mut text = String::with_capacity(open_metrics.len() + suffixes.len() * 12);
    for line in open_metrics.lines() {
        let described = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE "));
        let named = described.and_then(|rest| rest.split_once(' '));
        match named.and_then(|(name, rest)| Some((name, suffixes.get(name)?, rest))) {
            Some((name, suffix, rest)) => {
                let rest = if line.starts_with("# TYPE ") && rest == "info" { "gauge" } else { rest };
                text.extend([&line[.."# HELP ".len()], name, suffix, " ", rest, "\n"]);
            }
            None if line == "# EOF" || line.starts_with("# UNIT ") => {}
            None => text.extend([line, "\n"]),
        }
    }
    text
}

/// The suffix that OpenMetrics adds to a family's name in the samples of this type.
fn suffix(of: &str) -> Option<&'static str> {
    match of {
        "counter" => Some("_total"),
        // Prometheus' text has no such type: an info is a gauge of 1.
        "info" => Some("_info"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[track_caller]
    fn check(accept: &[&str], media_type: &str) {
        let mut headers = HeaderMap::new();
        for value in accept {
            headers.append(header::ACCEPT, value.parse().unwrap());
        }
        let ([(_, answered)], _) = in_accepted_format(&headers, String::new());
        assert_eq!(answered, media_type, "{accept:?}");
    }

    #[test]
    fn the_accept_header_selects_the_exposition_format() {
        check(&[], TEXT);
        check(&["*/*"], TEXT);
        check(&["text/plain"], TEXT);
        check(&["application/json"], TEXT);
        check(&["application/openmetrics-text"], OPEN_METRICS);
        check(&["Application/OpenMetrics-Text; version=1.0.0"], OPEN_METRICS);
        check(&["text/plain;q=0.4, application/openmetrics-text;q=0.6, */*;q=0.2"], OPEN_METRICS);
        check(&["text/plain", "application/openmetrics-text; q=0.5"], TEXT);
        check(&["text/plain", "application/openmetrics-text"], OPEN_METRICS);
        check(&["application/openmetrics-text;q=0"], TEXT);
        check(&["application/openmetrics-text;q=none"], TEXT);
    }

    #[test]
    fn prometheus_text_names_families_like_their_samples() {
        let open_metrics = "# HELP sends Messages sent.\n# TYPE sends counter\nsends_total{lane=\"group\"} 3\n\
            # HELP took_seconds How long.\n# TYPE took_seconds histogram\n# UNIT took_seconds seconds\n\
            took_seconds_bucket{le=\"+Inf\"} 1\n# HELP sends_waiting Not sent.\n# TYPE sends_waiting gauge\nsends_waiting 0\n\
            # HELP build What runs.\n# TYPE build info\nbuild_info{version=\"1\"} 1\n# EOF\n";
        let text = "# HELP sends_total Messages sent.\n# TYPE sends_total counter\nsends_total{lane=\"group\"} 3\n\
            # HELP took_seconds How long.\n# TYPE took_seconds histogram\n\
            took_seconds_bucket{le=\"+Inf\"} 1\n# HELP sends_waiting Not sent.\n# TYPE sends_waiting gauge\nsends_waiting 0\n\
            # HELP build_info What runs.\n# TYPE build_info gauge\nbuild_info{version=\"1\"} 1\n";
        assert_eq!(to_prometheus_text(open_metrics), text);
    }
}
