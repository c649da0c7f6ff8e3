//! What the files that users write for the lab have in common: a mistake is shown with its line, and a time is written as `10s`.

use crate::options::parse_duration;
use serde::{Deserialize, Deserializer, de::Error};
use std::{fmt::Write, ops::Range, time::Duration};
use toml::Spanned;

/// What is wrong, and where.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mistake {
    what: String,
    /// Bytes of the file; unset: no one place of it.
    span: Option<Range<usize>>,
}

impl Mistake {
    pub(crate) fn at(span: Range<usize>, what: impl Into<String>) -> Self {
        Mistake { what: what.into(), span: Some(span) }
    }

    pub(crate) fn nowhere(what: impl Into<String>) -> Self {
        Mistake { what: what.into(), span: None }
    }

    /// The mistake with the file's name, the line and the column, and the line itself.
    pub(crate) fn show(&self, file: &str, text: &str) -> String {
        let Some(span) = &self.span else { return format!("{file}: {}", self.what) };
        let before = text.get(..span.start).unwrap_or(text);
        let number = before.matches('\n').count() + 1;
        let line_start = before.rfind('\n').map_or(0, |end| end + 1);
        let line = text[line_start..].lines().next().unwrap_or_default();
        let column = before[line_start..].chars().count();
        let marked = text.get(span.clone()).unwrap_or_default().lines().next().unwrap_or_default().chars().count();
        let margin = " ".repeat(number.to_string().len());
        let mut shown = String::new();
        // Writing to a string does not fail.
        let _ = write!(
            shown,
            "{file}:{number}:{}: {}\n{margin} |\n{number} | {line}\n{margin} | {}{}",
            column + 1,
            self.what,
            " ".repeat(column),
            "^".repeat(marked.max(1))
        );
        shown
    }
}

impl From<toml::de::Error> for Mistake {
    fn from(error: toml::de::Error) -> Self {
        Mistake { what: error.message().trim_end().to_owned(), span: error.span() }
    }
}

/// What is written there, without its place.
pub(crate) fn value<T: Clone>(written: &Option<Spanned<T>>) -> Option<T> {
    written.as_ref().map(|written| written.get_ref().clone())
}

/// A time such as `500ms`, `10s` or `2m`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Time(pub(crate) Duration);

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        parse_duration(&text)
            .map(Time)
            .map_err(|_| D::Error::custom("must be a time such as \"500ms\", \"10s\" or \"2m\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_is_shown_with_its_line() {
        let text = "name = \"a\"\nröte = 5\n";
        let shown = Mistake::at(11..16, "unknown field").show("a.toml", text);
        assert_eq!(shown, "a.toml:2:1: unknown field\n  |\n2 | röte = 5\n  | ^^^^");
        let at_end = Mistake::at(text.len()..text.len(), "ends too early").show("a.toml", text);
        assert!(at_end.starts_with("a.toml:3:1: "), "{at_end}");
        assert_eq!(Mistake::nowhere("has no phase").show("a.toml", text), "a.toml: has no phase");
    }
}
