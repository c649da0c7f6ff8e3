//! Means over rounds with their confidence intervals.
//!
//! The method is that of Georges, Buytaert and Eeckhout, "Statistically Rigorous Java Performance Evaluation" (OOPSLA 2007): each
//! round is one observation, the interval of a mean is Student's with n - 1 degrees of freedom, and two systems differ when the
//! interval of the difference of their means leaves out 0. The difference takes Welch's form (Biometrika 34, 1947), since two
//! versions need not spread alike. Rounds must be whole runs: messages within one run depend on each other.

use serde::Serialize;

/// Student's t, two-sided 95 %, by degrees of freedom from 1.
const T_95: [f64; 30] = [
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
];

/// For degrees of freedom that the table does not have, the next smaller ones: the interval is rather too wide.
fn t_95(degrees: f64) -> f64 {
    let index = (degrees.floor().max(1.0) as usize).min(T_95.len());
    T_95[index - 1]
}

/// The mean of a figure over the rounds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Mean {
    pub(super) rounds: usize,
    pub(super) mean: f64,
    /// Half of the 95 % confidence interval; unset with one round, which says nothing about spread.
    pub(super) half_width: Option<f64>,
    pub(super) least: f64,
    pub(super) most: f64,
    #[serde(skip)]
    variance: f64,
}

impl Mean {
    pub(super) fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
        Some(Mean {
            rounds: values.len(),
            mean,
            half_width: (values.len() > 1).then(|| t_95(count - 1.0) * (variance / count).sqrt()),
            least: values.iter().copied().fold(f64::INFINITY, f64::min),
            most: values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            variance,
        })
    }
}

/// The difference of two means.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(super) struct Difference {
    pub(super) difference: f64,
    /// In percent of the first mean, unless that is 0.
    pub(super) percent: Option<f64>,
    /// The 95 % confidence interval; unset if either side has one round only.
    pub(super) interval: Option<(f64, f64)>,
    /// The interval leaves out 0.
    pub(super) is_shown: bool,
}

impl Difference {
    pub(super) fn between(first: &Mean, second: &Mean) -> Self {
        let difference = second.mean - first.mean;
        let percent = (first.mean != 0.0).then(|| 100.0 * difference / first.mean.abs());
        if first.rounds < 2 || second.rounds < 2 {
            return Difference { difference, percent, interval: None, is_shown: false };
        }
        let (one, other) = (first.variance / first.rounds as f64, second.variance / second.rounds as f64);
        let error = (one + other).sqrt();
        // Welch and Satterthwaite's degrees of freedom; without any spread there is nothing to divide by.
        let below = one.powi(2) / (first.rounds as f64 - 1.0) + other.powi(2) / (second.rounds as f64 - 1.0);
        let degrees = if below > 0.0 { (one + other).powi(2) / below } else { 1.0 };
        let half = t_95(degrees) * error;
        let (low, high) = (difference - half, difference + half);
        Difference { difference, percent, interval: Some((low, high)), is_shown: low > 0.0 || high < 0.0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[allow(clippy::unwrap_used)]
    fn mean(values: &[f64]) -> Mean {
        Mean::of(values).unwrap()
    }

    #[test]
    fn the_interval_of_a_mean_is_students() {
        // Mean 10, standard deviation 2, n = 5: 2.776 * 2 / sqrt(5).
        let five = mean(&[8.0, 8.0, 10.0, 12.0, 12.0]);
        assert_eq!(five.mean, 10.0);
        assert!((five.half_width.unwrap_or_default() - 2.483).abs() < 0.001, "{five:?}");
        assert_eq!(mean(&[3.0]).half_width, None);
        assert_eq!(Mean::of(&[]), None);
    }

    #[test]
    fn a_difference_is_shown_only_beyond_the_spread() {
        let (low, high) = (mean(&[10.0, 10.2, 9.8, 10.1]), mean(&[12.0, 12.3, 11.8, 12.1]));
        let shown = Difference::between(&low, &high);
        assert!(shown.is_shown && shown.interval.is_some_and(|(least, most)| least > 1.5 && most < 2.5), "{shown:?}");
        let noisy = mean(&[8.0, 16.0, 9.0, 15.0]);
        assert!(!Difference::between(&low, &noisy).is_shown);
        assert!(!Difference::between(&low, &mean(&[99.0])).is_shown, "one round shows nothing");
        assert!(Difference::between(&mean(&[5.0, 5.0]), &mean(&[6.0, 6.0])).is_shown, "no spread at all");
        assert!(!Difference::between(&mean(&[0.0, 0.0]), &mean(&[0.0, 0.0])).is_shown);
    }

    /// The arithmetic was done apart: 27.3 degrees of freedom, of which the table has 27.
    #[test]
    fn degrees_of_freedom_are_rounded_towards_a_wider_interval() {
        let a = [27.5, 21.0, 19.0, 23.6, 17.0, 17.9, 16.9, 20.1, 21.9, 22.6, 23.1, 19.6, 19.0, 21.7, 21.4];
        let b = [27.1, 22.0, 20.8, 23.4, 23.4, 23.5, 25.8, 22.0, 24.8, 20.2, 21.9, 22.1, 22.9, 30.5, 31.3];
        let found = Difference::between(&mean(&a), &mean(&b));
        let (low, high) = found.interval.unwrap_or_default();
        assert!((low - 1.0019).abs() < 1e-3 && (high - 5.5847).abs() < 1e-3, "{found:?}");
    }
}
