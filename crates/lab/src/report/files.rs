//! The files of a report: `report.html`, one page that needs no other file and no network; `report.json`; CSV of what is plotted.

use crate::{
    LabError,
    result::parts::{Part, parts_of},
};
use serde_json::Value;
use std::{fmt::Write, path::Path};

pub(crate) const PAGE: &str = "report.html";

pub(super) const STYLE: &str = include_str!("page/report.css");
const SCRIPT: &str = include_str!("page/report.js");
/// The same release that the console draws with; see `page/uPlot.LICENSE`.
const PLOT_SCRIPT: &str = include_str!("page/uPlot.iife.min.js");
const PLOT_STYLE: &str = include_str!("page/uPlot.min.css");

/// The columns of a series over time.
const SERIES: [&str; 8] = ["planned", "sent", "acknowledged", "delivered", "p50", "p99", "max", "lag_max"];
const SAMPLES: [&str; 4] = ["server_cores", "server_bytes", "lab_cores", "machine_cores"];
/// Those of the kernel, which stand in a place of their own.
const KERNEL: [&str; 6] =
    ["accepted_per_second", "listen_overflows", "listen_drops", "retransmits", "time_wait", "backlog"];

pub(crate) fn write_json(file: &Path, document: &Value) -> Result<(), LabError> {
    let text = serde_json::to_string_pretty(document).map_err(std::io::Error::from)?;
    Ok(std::fs::write(file, text + "\n")?)
}

/// Writes all files of a report into its folder.
pub(crate) fn write_report(folder: &Path, document: &Value) -> Result<(), LabError> {
    write_json(&folder.join("report.json"), document)?;
    let parts = parts_of(document);
    std::fs::write(folder.join("series.csv"), series_csv(&parts))?;
    std::fs::write(folder.join("samples.csv"), samples_csv(&parts))?;
    std::fs::write(folder.join("percentiles.csv"), percentiles_csv(&parts))?;
    Ok(std::fs::write(folder.join(PAGE), page(document))?)
}

/// A page with the document inside. The script reads it and draws.
pub(crate) fn page(document: &Value) -> String {
    // Within a script element only `</script` and `<!--` would end or change it, and both begin with a character that JSON may
    // also write as an escape.
    let data = document.to_string().replace('<', "\\u003c");
    let bench = escape(document["bench"].as_str().unwrap_or("run"));
    let run = &document["run"];
    let verdict = escape(run["verdict"].as_str().unwrap_or_default());
    let sentence = escape(run["sentence"].as_str().unwrap_or_default());
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; script-src 'unsafe-inline'; \
         style-src 'unsafe-inline'\">\n\
         <title>{bench}: {verdict} – Tidings lab</title>\n<style>\n{PLOT_STYLE}\n{STYLE}</style>\n</head>\n<body>\n\
         <noscript><p>{bench}: {verdict}. {sentence} The plots take JavaScript; report.json has every figure.</p></noscript>\n\
         <main id=\"report\"></main>\n<script type=\"application/json\" id=\"document\">{data}</script>\n\
         <script>\n{PLOT_SCRIPT}\n</script>\n<script>\n{SCRIPT}</script>\n</body>\n</html>\n"
    )
}

pub(super) fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A field of CSV, in quotes where it needs them.
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_owned() }
}

fn cell(column: Option<&Value>, row: usize) -> String {
    match column.and_then(|values| values.get(row)) {
        None | Some(Value::Null) => String::new(),
        Some(value) => value.to_string(),
    }
}

fn series_csv(parts: &[Part<'_>]) -> String {
    let mut text = format!("part,seconds,{}\n", SERIES.join(","));
    for part in parts {
        let Some(series) = part.get("series") else { continue };
        let width = series["bin_s"].as_f64().unwrap_or_default();
        let rows = series["planned"].as_array().map_or(0, Vec::len);
        for row in 0..rows {
            let cells: Vec<String> = SERIES.iter().map(|name| cell(series.get(name), row)).collect();
            // Writing to a string does not fail.
            let _ = writeln!(text, "{},{},{}", field(&part.title), row as f64 * width, cells.join(","));
        }
    }
    text
}

fn samples_csv(parts: &[Part<'_>]) -> String {
    let mut text = format!("part,seconds,{},{}\n", SAMPLES.join(","), KERNEL.join(","));
    for part in parts {
        let Some(samples) = part.get("samples") else { continue };
        for row in 0..samples["at"].as_array().map_or(0, Vec::len) {
            let cells = SAMPLES.iter().map(|name| cell(samples.get(name), row));
            let kernel = KERNEL.iter().map(|name| cell(samples["kernel"].get(name), row));
            let cells: Vec<String> = cells.chain(kernel).collect();
            let _ = writeln!(text, "{},{},{}", field(&part.title), cell(samples.get("at"), row), cells.join(","));
        }
    }
    text
}

fn percentiles_csv(parts: &[Part<'_>]) -> String {
    let mut text = String::from("part,of,percentile,milliseconds\n");
    for part in parts {
        for (name, of) in [("latency_curve", "delivered"), ("acknowledged_curve", "acknowledged")] {
            for point in part.get(name).and_then(Value::as_array).into_iter().flatten() {
                let _ = writeln!(text, "{},{of},{},{}", field(&part.title), cell(Some(point), 0), cell(Some(point), 1));
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_page_needs_no_network_and_text_in_it_cannot_end_its_script() {
        let document = json!({ "bench": "</title><b>", "problems": ["</script><script>alert(1)</script>"], "run": {} });
        let page = page(&document);
        assert_eq!(page.matches("</script>").count(), 3, "the document, uPlot, and the page's own");
        assert!(!page.contains("<b>"));
        for outside in ["src=\"http", "href=\"http", "@import", "url("] {
            assert!(!page.contains(outside), "{outside}");
        }
    }

    #[test]
    fn plotted_series_are_also_csv() {
        let document = json!({ "outcome": {
            "title": "a, b", "latency": { "p50": 1 }, "latency_curve": [[50.0, 1.5]],
            "series": { "bin_s": 0.25, "planned": [3, 4], "p99": [2.5, null] },
        }});
        let parts = parts_of(&document);
        assert_eq!(
            series_csv(&parts),
            "part,seconds,planned,sent,acknowledged,delivered,p50,p99,max,lag_max\n\"a, b\",0,3,,,,,2.5,,\n\"a, b\",0.25,4,,,,,,,\n"
        );
        assert!(percentiles_csv(&parts).ends_with("\"a, b\",delivered,50.0,1.5\n"));
    }

    #[test]
    fn the_plots_are_of_the_release_that_the_console_uses() {
        let package = include_str!("../../../../web/package.json");
        let release = PLOT_SCRIPT.split("(v").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or_default();
        assert!(package.contains(&format!("\"uplot\": \"{release}\"")), "{release}");
    }
}
