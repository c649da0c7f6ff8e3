//! The option `--mix`.

use std::{fmt, str::FromStr};

/// Operations of the mix as a share of all operations: 0 without `--mix`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct MixShare(f64);

/// Above this share there would be too few messages to change: a message takes a few operations at most.
const PERCENT_MAX: f64 = 80.0;

impl MixShare {
    /// Operations of the mix for each plain message.
    pub(crate) fn per_message(self) -> f64 {
        self.0 / (1.0 - self.0)
    }

    pub(crate) fn is_on(self) -> bool {
        self.0 > 0.0
    }

    /// What the title of a run adds: nothing without a mix.
    pub(crate) fn suffix(self) -> String {
        if self.is_on() { format!(", with a mix of {self}") } else { String::new() }
    }
}

impl FromStr for MixShare {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%').unwrap_or(text).parse::<f64>() {
            Ok(percent) if (0.0..=PERCENT_MAX).contains(&percent) => Ok(MixShare(percent / 100.0)),
            _ => Err(format!("a share of 0% to {PERCENT_MAX}%, such as 5%")),
        }
    }
}

impl fmt::Display for MixShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0 * 100.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_one_of_all_operations() {
        let share = |text: &str| text.parse::<MixShare>();
        assert_eq!(share("5%"), share("5"));
        assert!(share("20%").is_ok_and(|share| share.per_message() == 0.25));
        assert!(share("0").is_ok_and(|share| !share.is_on()));
        assert!(share("81%").is_err() && share("-1").is_err() && share("few").is_err() && share("NaN").is_err());
    }
}
