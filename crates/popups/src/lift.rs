//! Lift: how much more often those who were shown a popup converted than those who were not, with a 95 % interval.
//!
//! The interval for the ratio of two proportions is that of the score test, by P. A. R. Koopman, "Confidence intervals for
//! the ratio of two binomial proportions", Biometrics 40 (1984), 513-517: all ratios that the test does not reject. At the
//! ratio 1 the test is Pearson's chi-squared test without a correction, so the interval contains "no lift" exactly when
//! that test finds no difference. It needs no continuity correction and holds with few conversions, where the interval of
//! the logarithm (Katz) does not exist.

/// The 95 % quantile of the chi-squared distribution with one degree of freedom.
const CHI_SQUARED_95: f64 = 3.841_458_820_694_124;
/// The logarithms of ratios that are looked at; beyond them nothing can be told from 0 or from infinity.
const LOG_RATIO_MAX: f64 = 40.0;
/// Halvings of that range: to about 1e-12.
const HALVINGS: usize = 46;

/// How many people there were, and how many of them converted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Converted {
    pub people: u64,
    pub converted: u64,
}

/// A lift of 0.2 is 20 % more.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Lift {
    /// Absent: nobody converted among those who are compared with.
    pub lift: Option<f64>,
    pub low: f64,
    /// Absent: without end, since nobody converted among those who are compared with.
    pub high: Option<f64>,
}

impl Lift {
    /// The lift of `treated` over `others`; `None` if there is nobody in one of them, or nobody converted.
    ///
    /// ```
    /// use tidings_popups::{Converted, Lift};
    ///
    /// // Koopman's example: 36 of 40 against 16 of 80.
    /// let [treated, others] = [(40, 36), (80, 16)].map(|(people, converted)| Converted { people, converted });
    /// let lift = Lift::of(treated, others).unwrap();
    /// assert_eq!(lift.lift, Some(3.5));
    /// assert_eq!((format!("{:.3}", lift.low + 1.0), format!("{:.3}", lift.high.unwrap() + 1.0)), ("2.940".into(), "7.152".into()));
    /// ```
    pub fn of(treated: Converted, others: Converted) -> Option<Lift> {
        if treated.people == 0 || others.people == 0 || treated.converted + others.converted == 0 {
            return None;
        }
        let is_rejected = |log: f64| chi_squared(treated, others, log.exp()) > CHI_SQUARED_95;
        // From an end that is rejected to a ratio that is not.
        let end_between = |mut rejected: f64, mut kept: f64| {
            for _ in 0..HALVINGS {
                let middle = f64::midpoint(rejected, kept);
                if is_rejected(middle) {
                    rejected = middle;
                } else {
                    kept = middle;
                }
            }
            kept.exp() - 1.0
        };
        let rate = |of: Converted| of.converted as f64 / of.people as f64;
        let ratio = (others.converted > 0).then(|| rate(treated) / rate(others));
        let best = ratio.map_or(LOG_RATIO_MAX, |ratio| ratio.ln().max(-LOG_RATIO_MAX));
        Some(Lift {
            lift: ratio.map(|ratio| ratio - 1.0),
            low: if treated.converted == 0 { -1.0 } else { end_between(-LOG_RATIO_MAX, best) },
            high: ratio.map(|_| end_between(LOG_RATIO_MAX, best)),
        })
    }

    /// Whether the interval does not contain 0.
    pub fn is_found(&self) -> bool {
        self.low > 0.0 || self.high.is_some_and(|high| high < 0.0)
    }
}

/// The score statistic of the hypothesis that the rate of `treated` is `ratio` times that of `others`.
fn chi_squared(treated: Converted, others: Converted, ratio: f64) -> f64 {
    let (m, x) = (treated.people as f64, treated.converted as f64);
    let (n, y) = (others.people as f64, others.converted as f64);
    // The likeliest rate of `treated` under the hypothesis: the lower root of (m + n) p² - b p + ratio (x + y), written so that
    // no digits cancel.
    let b = ratio * (m + y) + x + n;
    let root = (b * b - 4.0 * ratio * (m + n) * (x + y)).max(0.0).sqrt();
    let p = 2.0 * ratio * (x + y) / (b + root);
    let term = |people: f64, converted: f64, rate: f64| {
        let (difference, variance) = (converted - people * rate, people * rate * (1.0 - rate));
        if variance > 0.0 { difference * difference / variance } else { 0.0 }
    };
    term(m, x, p.min(1.0)) + term(n, y, (p / ratio).min(1.0))
}
