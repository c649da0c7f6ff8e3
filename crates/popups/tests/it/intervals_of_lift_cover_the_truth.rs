//! The interval of a lift: against values computed by another program, against a slow second computation, and in simulated
//! experiments whose lift is known.

use rand::{RngExt, SeedableRng, rngs::StdRng};
use tidings_popups::{Converted, Lift};

fn of(converted: u64, people: u64) -> Converted {
    Converted { people, converted }
}

/// The ratios at the ends of the interval.
fn ends(treated: Converted, others: Converted) -> (f64, f64) {
    let lift = Lift::of(treated, others).unwrap();
    (lift.low + 1.0, lift.high.map_or(f64::INFINITY, |high| high + 1.0))
}

/// By statsmodels 0.15.0: `confint_proportions_2indep(x, m, y, n, method="score", compare="ratio", correction=False)`.
#[test]
fn intervals_are_those_of_statsmodels() {
    for (x, m, y, n, low, high) in [
        (36, 40, 16, 80, 2.939_569, 7.152_223),
        (50, 1_000, 40, 1_000, 0.834_990, 1.872_078),
        (120, 5_000, 100, 5_000, 0.923_702, 1.559_054),
        (3, 2_000, 1, 2_000, 0.430_269, 20.927_396),
        (0, 500, 5, 500, 0.0, 0.764_960),
        (10, 100, 10, 100, 0.444_879, 2.247_802),
        (900, 30_000, 300, 10_000, 0.879_441, 1.137_377),
        // The lower end by hand: below the ratio 1.6 the likeliest rate is 10/16 of it, so the end is where
        // 7 (1 - p) / p = 3.841_459 - 3.266_667 with p = 10/16 of the ratio. (statsmodels ends its search at 1.6.)
        (7, 7, 3, 9, 1.478_588, 8.292_987),
        (1, 50, 49, 50, 0.003_610, 0.107_147),
        (250, 4_000, 190, 3_800, 1.040_959, 1.501_267),
    ] {
        let found = ends(of(x, m), of(y, n));
        let is_near = |found: f64, expected: f64| (found - expected).abs() < 2e-4 * expected.max(0.01);
        assert!(is_near(found.0, low) && is_near(found.1, high), "{x}/{m}, {y}/{n}: {found:?}, not ({low}, {high})");
    }
}

/// Koopman's statistic from its definition: the rate that is likeliest if the ratio is this one is searched for, not computed.
fn slow_chi_squared((x, m): (f64, f64), (y, n): (f64, f64), ratio: f64) -> f64 {
    let likelihood = |rate: f64| {
        let (treated, others) = (rate * ratio, rate);
        let part = |count: f64, probability: f64| if count == 0.0 { 0.0 } else { count * probability.ln() };
        part(x, treated) + part(m - x, 1.0 - treated) + part(y, others) + part(n - y, 1.0 - others)
    };
    let (mut low, mut high) = (0.0, f64::min(1.0, 1.0 / ratio));
    for _ in 0..200 {
        let (left, right) = (low + (high - low) / 3.0, high - (high - low) / 3.0);
        if likelihood(left) < likelihood(right) { low = left } else { high = right }
    }
    let rate = f64::midpoint(low, high);
    let squared = |count: f64, people: f64, rate: f64| (count - people * rate).powi(2) / (people * rate * (1.0 - rate));
    squared(x, m, rate * ratio) + squared(y, n, rate)
}

#[test]
fn the_ends_are_where_the_score_test_begins_to_reject() {
    let mut random = StdRng::seed_from_u64(31);
    for _ in 0..300 {
        let (m, n) = (random.random_range(20..5_000), random.random_range(20..5_000));
        let (x, y) = (random.random_range(1..m / 2), random.random_range(1..n / 2));
        let (low, high) = ends(of(x, m), of(y, n));
        for end in [low, high] {
            let statistic = slow_chi_squared((x as f64, m as f64), (y as f64, n as f64), end);
            assert!((statistic - 3.841_459).abs() < 1e-3, "{x}/{m}, {y}/{n}: {statistic} at the ratio {end}");
        }
    }
}

#[test]
fn counts_of_nothing_have_an_answer() {
    assert_eq!(Lift::of(of(0, 0), of(1, 10)), None, "nobody was assigned");
    assert_eq!(Lift::of(of(0, 10), of(0, 10)), None, "nobody converted");
    let nobody_else = Lift::of(of(9, 1_000), of(0, 1_000)).unwrap();
    assert_eq!((nobody_else.lift, nobody_else.high), (None, None));
    assert!(nobody_else.low > 0.0 && nobody_else.is_found(), "{nobody_else:?}");
    let none = Lift::of(of(0, 1_000), of(9, 1_000)).unwrap();
    assert_eq!((none.lift, none.low), (Some(-1.0), -1.0));
    assert!(none.is_found(), "{none:?}");
    let all = Lift::of(of(50, 50), of(50, 50)).unwrap();
    assert!(all.low < 0.0 && all.high.unwrap() > 0.0 && !all.is_found(), "{all:?}");
}

/// How many of so many people convert: from one who does to the next the distance is geometric.
fn draw(random: &mut StdRng, people: u64, rate: f64) -> u64 {
    let (mut at, mut converted) = (0.0_f64, 0);
    loop {
        let uniform: f64 = random.random();
        at += ((1.0 - uniform).ln() / (1.0 - rate).ln()).floor() + 1.0;
        if at > people as f64 {
            return converted;
        }
        converted += 1;
    }
}

const EXPERIMENTS: u32 = 4_000;

/// Simulates experiments of thousands of people whose lift is this one; returns in which share of them the interval covers
/// it, and in which a lift is found.
fn simulate(lift: f64) -> (f64, f64) {
    let mut random = StdRng::seed_from_u64(4_000 + (lift * 100.0) as u64);
    let (mut covered, mut found) = (0, 0);
    for _ in 0..EXPERIMENTS {
        let rate = random.random_range(0.01..0.10);
        let shown = random.random_range(2_000..12_000);
        let control = random.random_range(1_000..=shown);
        let treated = of(draw(&mut random, shown, rate * (1.0 + lift)), shown);
        let others = of(draw(&mut random, control, rate), control);
        let measured = Lift::of(treated, others).unwrap();
        covered += u32::from(measured.low <= lift && measured.high.is_none_or(|high| lift <= high));
        found += u32::from(measured.is_found());
    }
    (f64::from(covered) / f64::from(EXPERIMENTS), f64::from(found) / f64::from(EXPERIMENTS))
}

#[test]
fn the_interval_covers_the_truth_in_95_of_100_experiments() {
    for lift in [0.0, 0.05, 0.20] {
        let (covered, found) = simulate(lift);
        println!("lift {lift}: {EXPERIMENTS} experiments, covered {covered:.4}, found {found:.4}");
        assert!(
            (0.94..=0.96).contains(&covered),
            "lift {lift}: the interval covers it in {covered} of the experiments"
        );
        if lift == 0.0 {
            assert!(found <= 0.06, "a lift is found where there is none in {found} of the experiments");
        }
    }
}
