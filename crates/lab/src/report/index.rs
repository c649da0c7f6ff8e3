//! A page that leads to the reports of several runs, each in a folder beside it.

use super::files::{PAGE, STYLE, escape};
use crate::{LabError, result::Verdict};
use std::{fmt::Write, path::Path};

pub(crate) const INDEX: &str = "index.html";

/// One run of the page.
#[derive(Debug, Clone)]
pub(crate) struct IndexRow {
    /// Also the name of its folder.
    pub(crate) name: String,
    pub(crate) about: String,
    pub(crate) verdict: Verdict,
    /// The verdict, or why there is no report.
    pub(crate) sentence: String,
    pub(crate) seconds: f64,
}

/// Writes the page into the folder that has the runs' folders.
pub(crate) fn write_index(folder: &Path, rows: &[IndexRow]) -> Result<(), LabError> {
    std::fs::create_dir_all(folder)?;
    Ok(std::fs::write(folder.join(INDEX), page(folder, rows))?)
}

/// The one verdict of all runs.
fn verdict_box(rows: &[IndexRow]) -> String {
    let verdict = rows.iter().fold(Verdict::Passed, |verdict, row| verdict.and(row.verdict));
    let (tone, mark) = match verdict {
        Verdict::Passed => ("is-good", '\u{2713}'),
        Verdict::Failed => ("is-bad", '\u{2715}'),
        _ => ("is-warn", '!'),
    };
    let passed = rows.iter().filter(|row| row.verdict == Verdict::Passed).count();
    let name = verdict.name();
    format!(
        "<div class=\"verdict {tone}\"><span class=\"mark\" aria-hidden=\"true\">{mark}</span><div><strong>{}{}</strong>{passed} of {} \
         passed. {}</div></div>\n",
        name[..1].to_uppercase(),
        &name[1..],
        rows.len(),
        verdict.sentence()
    )
}

fn page(folder: &Path, rows: &[IndexRow]) -> String {
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n\
         <title>Scenarios \u{2013} Tidings lab</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n<main id=\"report\">\n\
         <p class=\"eyebrow\">Tidings lab</p>\n<h1>Scenarios</h1>\n{}<div class=\"scroll\"><table>\n\
         <thead><tr><th></th><th>Scenario</th><th>About</th><th class=\"number\">Took</th></tr></thead>\n<tbody>\n",
        verdict_box(rows)
    );
    for row in rows {
        let name = escape(&row.name);
        // A run that ended with an error has left no page.
        let linked = if folder.join(&row.name).join(PAGE).exists() {
            format!("<a href=\"{name}/{PAGE}\">{name}</a>")
        } else {
            name
        };
        let (tone, mark) = if row.verdict == Verdict::Passed { ("met", '\u{2713}') } else { ("missed", '\u{2715}') };
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "<tr><td class=\"state {tone}\">{mark} {}</td><td>{linked}</td><td>{}</td><td class=\"number\">{:.0} s</td></tr>",
            escape(&row.sentence),
            escape(&row.about),
            row.seconds
        );
    }
    text.push_str("</tbody>\n</table></div>\n</main>\n</body>\n</html>\n");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::unwrap_used)]
    fn one_verdict_stands_above_runs_of_which_each_report_is_linked() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("good")).unwrap();
        std::fs::write(folder.path().join("good").join(PAGE), "x").unwrap();
        let row = |name: &str, verdict, sentence: &str| IndexRow {
            name: name.into(),
            about: "A <b>.".into(),
            verdict,
            sentence: sentence.into(),
            seconds: 1.5,
        };
        write_index(
            folder.path(),
            &[row("good", Verdict::Passed, "passed"), row("bad", Verdict::Failed, "no PostgreSQL")],
        )
        .unwrap();
        let page = std::fs::read_to_string(folder.path().join(INDEX)).unwrap();
        assert!(page.contains("<a href=\"good/report.html\">good</a>"), "{page}");
        assert!(page.contains("no PostgreSQL") && !page.contains("href=\"bad"), "{page}");
        assert!(page.contains("A &lt;b&gt;."), "text stays text");
        assert!(page.contains("<strong>Failed</strong>1 of 2 passed."), "{page}");
    }
}
