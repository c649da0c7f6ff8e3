//! The parts of a run as a request of OTLP's metrics service.

use super::parts::{Latency, Part, Parts, SCALE, Scenario};
use opentelemetry_proto::tonic::{
    collector::metrics::v1::ExportMetricsServiceRequest,
    common::v1::{AnyValue, InstrumentationScope, KeyValue, any_value},
    metrics::v1::{
        AggregationTemporality, ExponentialHistogram, ExponentialHistogramDataPoint, Gauge, Metric, NumberDataPoint,
        ResourceMetrics, ScopeMetrics, Sum, exponential_histogram_data_point::Buckets, metric::Data,
        number_data_point::Value,
    },
    resource::v1::Resource,
};
use std::collections::BTreeMap;

const SERVICE: &str = "tidings-bench";
/// The attribute of each point with the title of its part.
const PART: &str = "part";
const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// All points as of this moment. `run_id` is that of the result.
pub(super) fn request_of(parts: &Parts, run_id: &str, now_ns: u64) -> ExportMetricsServiceRequest {
    let newest = parts.scenarios.len().saturating_sub(1);
    let resource_metrics = parts.scenarios.iter().enumerate().map(|(number, scenario)| {
        let mut metrics = counters(scenario, now_ns);
        metrics.extend(latency(scenario, now_ns));
        if number == newest {
            metrics.extend(gauges(parts));
        }
        let scope = InstrumentationScope {
            name: env!("CARGO_PKG_NAME").into(),
            version: env!("CARGO_PKG_VERSION").into(),
            ..InstrumentationScope::default()
        };
        ResourceMetrics {
            resource: Some(Resource { attributes: attributes(scenario, run_id), ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics { scope: Some(scope), metrics, ..ScopeMetrics::default() }],
            ..ResourceMetrics::default()
        }
    });
    ExportMetricsServiceRequest { resource_metrics: resource_metrics.collect() }
}

fn attributes(scenario: &Scenario, run_id: &str) -> Vec<KeyValue> {
    let mut attributes = vec![
        text("service.name", SERVICE),
        text("service.version", env!("CARGO_PKG_VERSION")),
        text("service.instance.id", run_id),
        text("tidings.scenario", &scenario.name),
    ];
    // OTLP's integers have a sign: a seed of 64 bits may be beyond them.
    attributes.extend(scenario.seed.map(|seed| text("tidings.seed", &seed.to_string())));
    attributes
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(any_value::Value::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn counters(scenario: &Scenario, now_ns: u64) -> Vec<Metric> {
    let mut points: BTreeMap<&str, Vec<NumberDataPoint>> = BTreeMap::new();
    for part in &scenario.parts {
        for (name, count) in &part.counters {
            points.entry(name).or_default().push(NumberDataPoint {
                attributes: vec![text(PART, &part.name)],
                start_time_unix_nano: part.began_ns,
                time_unix_nano: now_ns,
                value: Some(Value::AsInt(*count as i64)),
                ..NumberDataPoint::default()
            });
        }
    }
    let sum = |data_points| Data::Sum(Sum { data_points, aggregation_temporality: CUMULATIVE, is_monotonic: true });
    points.into_iter().map(|(name, points)| metric(name, "1", sum(points))).collect()
}

/// A part in which nothing has arrived has no point: the largest of no latencies is none.
fn latency(scenario: &Scenario, now_ns: u64) -> Option<Metric> {
    let parts = scenario.parts.iter().filter(|part| part.latency.count() > 0);
    let data_points: Vec<_> = parts.map(|part| latency_point(part, now_ns)).collect();
    let histogram = (!data_points.is_empty())
        .then_some(ExponentialHistogram { data_points, aggregation_temporality: CUMULATIVE })?;
    Some(metric("latency", "ms", Data::ExponentialHistogram(histogram)))
}

fn latency_point(part: &Part, now_ns: u64) -> ExponentialHistogramDataPoint {
    let Latency { buckets, sum_ms, max_ms } = &part.latency;
    let first = buckets.keys().next().copied().unwrap_or_default();
    let last = buckets.keys().next_back().copied().unwrap_or_default();
    let bucket_counts = (first..=last).map(|bucket| buckets.get(&bucket).copied().unwrap_or_default()).collect();
    ExponentialHistogramDataPoint {
        attributes: vec![text(PART, &part.name)],
        start_time_unix_nano: part.began_ns,
        time_unix_nano: now_ns,
        count: part.latency.count(),
        sum: Some(*sum_ms),
        scale: SCALE,
        positive: Some(Buckets { offset: first, bucket_counts }),
        max: Some(*max_ms),
        ..ExponentialHistogramDataPoint::default()
    }
}

fn gauges(parts: &Parts) -> Vec<Metric> {
    let Some(sample) = &parts.sample else { return Vec::new() };
    let gauge = |value| {
        let point = NumberDataPoint { time_unix_nano: sample.at_ns, value: Some(value), ..NumberDataPoint::default() };
        Data::Gauge(Gauge { data_points: vec![point] })
    };
    let cores = sample.cores.map(|cores| metric("server_cores", "{core}", gauge(Value::AsDouble(cores))));
    let bytes = sample.bytes.map(|bytes| metric("server_bytes", "By", gauge(Value::AsInt(bytes as i64))));
    cores.into_iter().chain(bytes).collect()
}

fn metric(name: &str, unit: &str, data: Data) -> Metric {
    Metric { name: name.to_owned(), unit: unit.to_owned(), data: Some(data), ..Metric::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::otlp::parts::{ServerSample, tests::run_of};

    const MS: u64 = 1_000_000;

    fn metrics(parts: &Parts) -> Vec<Metric> {
        let request = request_of(parts, "r", 99);
        request.resource_metrics.into_iter().flat_map(|of| of.scope_metrics).flat_map(|of| of.metrics).collect()
    }

    fn latency_of(parts: &Parts) -> Option<ExponentialHistogramDataPoint> {
        metrics(parts).into_iter().find_map(|metric| match metric.data {
            Some(Data::ExponentialHistogram(histogram)) => histogram.data_points.into_iter().next(),
            _ => None,
        })
    }

    #[test]
    fn a_part_without_latencies_has_counters_and_no_histogram() {
        let parts = run_of(&[(0, None)]);
        assert_eq!(latency_of(&parts), None);
        let names: Vec<String> = metrics(&parts).into_iter().map(|metric| metric.name).collect();
        assert_eq!(names, ["acknowledged", "delivered", "planned", "sent"]);
    }

    #[test]
    fn each_latency_is_within_its_bucket() {
        for late_us in [1, 999, 1_000, 1_001, 16_000, 3_600_000_000] {
            let point = latency_of(&run_of(&[(0, Some(late_us * 1_000))])).unwrap_or_default();
            let buckets = point.positive.unwrap_or_default();
            assert_eq!((point.count, buckets.bucket_counts), (1, vec![1]));
            let bound = |bucket: i32| (f64::from(bucket) * 2f64.powi(-SCALE)).exp2();
            let (low, high) = (bound(buckets.offset), bound(buckets.offset + 1));
            let late_ms = late_us as f64 / 1e3;
            // The histogram of a bin is off by a hundredth.
            assert!(low < late_ms * 1.01 && late_ms <= high, "{late_ms} ms between {low} and {high}");
        }
    }

    #[test]
    fn buckets_without_a_latency_stand_between_those_that_have_one() {
        let point = latency_of(&run_of(&[(0, Some(MS)), (0, Some(2 * MS)), (0, Some(2 * MS))])).unwrap_or_default();
        let buckets = point.positive.unwrap_or_default();
        assert_eq!((point.count, buckets.bucket_counts.len()), (3, 17));
        assert_eq!((buckets.bucket_counts[0], buckets.bucket_counts[16]), (1, 2));
        assert_eq!((point.start_time_unix_nano, point.time_unix_nano, point.zero_count), (5, 99, 0));
    }

    #[test]
    fn a_server_is_two_gauges_and_one_that_has_ended_is_none() {
        let mut parts = run_of(&[]);
        let names = |parts: &Parts| metrics(parts).into_iter().map(|metric| metric.name).collect::<Vec<_>>();
        parts.sample = Some(ServerSample { cores: Some(0.5), bytes: Some(1 << 20), at_ns: 98 });
        assert_eq!(names(&parts), ["server_cores", "server_bytes"]);
        parts.sample = Some(ServerSample { cores: None, bytes: None, at_ns: 98 });
        assert_eq!(names(&parts), [""; 0]);
    }
}
