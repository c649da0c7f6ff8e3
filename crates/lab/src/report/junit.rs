//! The checks of runs as JUnit's XML, which servers that run builds read: a test suite for each run, a test case for each check.

use crate::{
    LabError,
    result::{Check, Verdict},
};
use std::{collections::HashMap, fmt::Write, path::Path};

/// One run.
#[derive(Debug, Clone)]
pub(crate) struct TestSuite {
    /// The command, or the scenario.
    pub(crate) name: String,
    pub(crate) checks: Vec<Check>,
    pub(crate) seconds: f64,
    /// When it began, in milliseconds since 1970.
    pub(crate) started_at_ms: u64,
    /// The command line, without secrets.
    pub(crate) command: String,
    /// Why it did not run to its end.
    pub(crate) broken_off: Option<String>,
}

/// A test case, and what is wrong.
struct TestCase {
    name: String,
    /// The element that says so, its type and its sentence.
    fault: Option<(&'static str, &'static str, String)>,
}

impl TestSuite {
    /// One case more than there are checks: that the run came to its end. So a run without any check has one, too.
    fn cases(&self) -> Vec<TestCase> {
        // Servers that run builds know a case by its name alone.
        let mut seen: HashMap<String, usize> = HashMap::new();
        let mut unique = |name: String| {
            let count = seen.entry(name.clone()).and_modify(|count| *count += 1).or_insert(1);
            if *count == 1 { name } else { format!("{name} ({count})") }
        };
        let end = self.broken_off.clone().map(|why| ("error", "broken off", why));
        let end = TestCase { name: unique("the run comes to its end".into()), fault: end };
        let of_check = |check: &Check| {
            let place = if check.part.is_empty() { String::new() } else { format!("{}: ", check.part) };
            // A run that is invalid says nothing about the server: that is an error of the test, and no failure of what is tested.
            let element = if check.verdict == Verdict::LabFellBehind { "error" } else { "failure" };
            let fault = (!check.is_met()).then(|| (element, check.verdict.name(), check.sentence()));
            TestCase { name: unique(format!("{place}{}, {}", check.name, check.bound)), fault }
        };
        [end].into_iter().chain(self.checks.iter().map(of_check)).collect()
    }

    /// Writes all runs so far.
    pub(crate) fn write_all(file: &Path, suites: &[TestSuite]) -> Result<(), LabError> {
        Ok(std::fs::write(file, document(suites))?)
    }
}

fn document(suites: &[TestSuite]) -> String {
    let suites: Vec<(&TestSuite, Vec<TestCase>)> = suites.iter().map(|suite| (suite, suite.cases())).collect();
    let all = || suites.iter().flat_map(|(_, cases)| cases);
    let seconds: f64 = suites.iter().map(|(suite, _)| suite.seconds).sum();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"tidings bench\" {} time=\"{seconds:.3}\">\n",
        counts(all())
    );
    for (suite, cases) in &suites {
        let name = escape(&suite.name);
        // Writing to a string does not fail.
        let _ = writeln!(
            text,
            "  <testsuite name=\"{name}\" {} skipped=\"0\" time=\"{:.3}\" timestamp=\"{}\">",
            counts(cases.iter()),
            suite.seconds,
            timestamp(suite.started_at_ms)
        );
        let command = escape(&suite.command);
        let _ = writeln!(text, "    <properties><property name=\"command\" value=\"{command}\"/></properties>");
        for case in cases {
            let opened = format!("    <testcase classname=\"tidings.bench.{name}\" name=\"{}\"", escape(&case.name));
            let _ = match &case.fault {
                None => writeln!(text, "{opened} time=\"{:.3}\"/>", suite.seconds),
                Some((element, kind, sentence)) => {
                    let sentence = escape(sentence);
                    writeln!(
                        text,
                        "{opened} time=\"{:.3}\"><{element} type=\"{kind}\" message=\"{sentence}\">{sentence}</{element}></testcase>",
                        suite.seconds
                    )
                }
            };
        }
        text.push_str("  </testsuite>\n");
    }
    text + "</testsuites>\n"
}

fn counts<'a>(cases: impl Iterator<Item = &'a TestCase> + Clone) -> String {
    let with =
        |wanted: &str| cases.clone().filter(|case| case.fault.as_ref().is_some_and(|(of, ..)| *of == wanted)).count();
    format!("tests=\"{}\" failures=\"{}\" errors=\"{}\"", cases.clone().count(), with("failure"), with("error"))
}

/// Characters that XML has no way to write are left out.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\n' | '\t' => escaped.push(' '),
            c if c.is_control() || ('\u{fffe}'..='\u{ffff}').contains(&c) => {}
            c => escaped.push(c),
        }
    }
    escaped
}

/// As ISO 8601 has it, in UTC and to the second.
fn timestamp(ms: u64) -> String {
    let at = jiff::Timestamp::from_millisecond(ms as i64).unwrap_or_default();
    at.strftime("%Y-%m-%dT%H:%M:%S").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn suite(checks: Vec<Check>, broken_off: Option<&str>) -> TestSuite {
        TestSuite {
            name: "group".into(),
            checks,
            seconds: 1.5,
            started_at_ms: 951_827_696_789,
            command: "tidings bench group --threshold 'p99<70'".into(),
            broken_off: broken_off.map(str::to_owned),
        }
    }

    #[test]
    fn what_is_missed_is_a_failure_and_what_the_lab_missed_an_error() {
        let checks = vec![
            Check::of_server("deliveries", "once", false).part("a & <b>").value("9 of 10"),
            Check::of_threshold("p99 < 70 ms".into(), false).value("80"),
            Check::of_lab("the lab's own lag", "p99 ≤ 50 ms", false).value("60 ms"),
            Check::of_server("stored data", "passes", true),
            Check::of_server("stored data", "passes", true),
        ];
        let text = document(&[suite(checks, Some("no \u{1}PostgreSQL"))]);
        assert!(
            text.contains(
                "tests=\"6\" failures=\"2\" errors=\"2\" skipped=\"0\" time=\"1.500\" timestamp=\"2000-02-29T12:34:56\""
            ),
            "{text}"
        );
        assert!(text.contains("message=\"deliveries of a &amp; &lt;b&gt;: once; measured: 9 of 10.\""), "{text}");
        assert!(text.contains("<error type=\"broken off\" message=\"no PostgreSQL\">"), "{text}");
        assert!(text.contains("name=\"stored data, passes (2)\""), "a case is known by its name: {text}");
    }
}
