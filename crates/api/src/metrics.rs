//! Metrics of the HTTP API and the process: latencies of requests, closed connections, memory, descriptors.

mod process;

use crate::{
    request_service::{DECIDE_PATH, PUSH_PATH, REPORT_PATH, SEND_PATH},
    routes,
    websocket_upgrade::CONNECT_PATH,
};
use axum::http::{Method, StatusCode};
use prometheus_client::{
    encoding::{
        EncodeLabelSet,
        text::{encode_eof, encode_registry},
    },
    metrics::{
        counter::ConstCounter,
        family::Family,
        histogram::{Histogram, exponential_buckets},
        info::Info,
    },
    registry::Registry,
};
use std::{sync::OnceLock, time::Duration};
use tidings_domain::metrics::Metrics;
use tidings_listen::ConnectionSlots;

/// The end of every exposition.
const EOF: &str = "# EOF\n";
/// The label of requests to no known route.
const NO_ROUTE: &str = "none";
const CLASSES: [&str; 5] = ["1xx", "2xx", "3xx", "4xx", "5xx"];

/// The labels of a request. Each has few values: routes are the path templates of the OpenAPI description, methods the known ones.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabel {
    route: String,
    method: &'static str,
    status: &'static str,
}

type Requests = Family<RequestLabel, Histogram, fn() -> Histogram>;

/// The latencies of one frequent operation, by status class: kept apart, so that a request needs no look-up by labels.
pub(crate) struct RouteLatency {
    requests: Requests,
    route: &'static str,
    method: &'static str,
    classes: [OnceLock<Histogram>; CLASSES.len()],
}

impl RouteLatency {
    fn new(requests: &Requests, route: &'static str, method: &'static str) -> Self {
        RouteLatency { requests: requests.clone(), route, method, classes: Default::default() }
    }

    pub(crate) fn observe(&self, status: StatusCode, took: Duration) {
        let class = class_of(status);
        let histogram = self.classes[class].get_or_init(|| {
            let label = RequestLabel { route: self.route.to_owned(), method: self.method, status: CLASSES[class] };
            self.requests.get_or_create(&label).clone()
        });
        histogram.observe(took.as_secs_f64());
    }
}

/// The metrics of the HTTP API.
pub(crate) struct HttpMetrics {
    registry: Registry,
    requests: Requests,
    routes: Vec<String>,
    pub(crate) sends: RouteLatency,
    pub(crate) decisions: RouteLatency,
    pub(crate) reports: RouteLatency,
    pub(crate) pushes: RouteLatency,
    pub(crate) upgrades: RouteLatency,
}

impl HttpMetrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("tidings");
        // 0.1 ms to about 6.5 s: from an answer out of memory to the slowest page of history.
        let requests: Requests = Family::new_with_constructor(|| Histogram::new(exponential_buckets(0.000_1, 2.0, 17)));
        registry.register("http_request_seconds", "From a request's head to that of its answer", requests.clone());
        let mut routes: Vec<String> = routes::openapi().paths.paths.keys().cloned().collect();
        routes.push(CONNECT_PATH.to_owned());
        // Literal paths before templates, so that `/v1/popups/decide` is not counted as `/v1/popups/{popup}`.
        routes.sort_by_key(|route| route.matches('{').count());
        let latency = |route| RouteLatency::new(&requests, route, "POST");
        let (sends, decisions) = (latency(SEND_PATH), latency(DECIDE_PATH));
        let (reports, pushes) = (latency(REPORT_PATH), latency(PUSH_PATH));
        let upgrades = RouteLatency::new(&requests, CONNECT_PATH, "GET");
        HttpMetrics { registry, requests, routes, sends, decisions, reports, pushes, upgrades }
    }

    /// Counts a request by its path and method.
    pub(crate) fn observe(&self, path: &str, method: &Method, status: StatusCode, took: Duration) {
        let route = self.route_of(path).unwrap_or(NO_ROUTE).to_owned();
        let label = RequestLabel { route, method: method_of(method), status: CLASSES[class_of(status)] };
        self.requests.get_or_create(&label).observe(took.as_secs_f64());
    }

    fn route_of(&self, path: &str) -> Option<&str> {
        self.routes.iter().find(|route| fits(route, path)).map(String::as_str)
    }

    /// The metrics of the engine, the HTTP API and the process, as OpenMetrics text.
    pub(crate) fn render(&self, metrics: &Metrics, slots: &ConnectionSlots) -> String {
        let mut now = Registry::with_prefix("tidings");
        let help = "Idle connections without a credential that were closed to make room";
        now.register("http_connections_evicted", help, ConstCounter::new(slots.evictions()));
        encode_all(metrics, &[&self.registry, &now])
    }
}

/// The metrics of a process without the HTTP API, as OpenMetrics text.
pub fn render(metrics: &Metrics) -> String {
    encode_all(metrics, &[])
}

fn encode_all(metrics: &Metrics, others: &[&Registry]) -> String {
    let mut text = metrics.render();
    text.truncate(text.strip_suffix(EOF).map_or(text.len(), str::len));
    let mut build = Registry::with_prefix("tidings");
    let labels =
        [("version", env!("CARGO_PKG_VERSION")), ("os", std::env::consts::OS), ("arch", std::env::consts::ARCH)];
    build.register("build", "The program that runs", Info::new(labels.to_vec()));
    for registry in others.iter().copied().chain([&build, &process::registry()]) {
        // Writing to memory cannot fail.
        let _ = encode_registry(&mut text, registry);
    }
    let _ = encode_eof(&mut text);
    text
}

/// Whether a path matches a route's template, segment by segment.
fn fits(route: &str, path: &str) -> bool {
    let (mut route, mut path) = (route.split('/'), path.split('/'));
    loop {
        match (route.next(), path.next()) {
            (None, None) => return true,
            (Some(known), Some(part)) if known == part || known.starts_with('{') && !part.is_empty() => {}
            _ => return false,
        }
    }
}

fn class_of(status: StatusCode) -> usize {
    usize::from(status.as_u16() / 100).clamp(1, CLASSES.len()) - 1
}

fn method_of(method: &Method) -> &'static str {
    const NAMES: [&str; 7] = ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS"];
    NAMES.into_iter().find(|name| *name == method.as_str()).unwrap_or("other")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_counted_under_its_route_template() {
        let metrics = HttpMetrics::new();
        for (path, route) in [
            ("/v1/messages", Some("/v1/messages")),
            ("/v1/conversations/g%20x/messages", Some("/v1/conversations/{conversation}/messages")),
            ("/v1/popups/decide", Some("/v1/popups/decide")),
            ("/v1/popups/summer", Some("/v1/popups/{popup}")),
            ("/v1/connect", Some("/v1/connect")),
            ("/v1/popups/", None),
            ("/v1/messages/7", None),
            ("/", None),
            ("", None),
        ] {
            assert_eq!(metrics.route_of(path), route, "{path}");
        }
    }

    #[test]
    fn a_process_without_the_http_api_exports_process_metrics_too() {
        let text = render(&Metrics::new());
        for name in
            ["tidings_build_info{", "process_open_fds ", "process_cpu_seconds_total ", "tidings_commits_total 0"]
        {
            assert!(text.lines().any(|line| line.starts_with(name)), "no {name} in {text}");
        }
        assert!(text.ends_with("\n# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    }

    #[test]
    fn status_and_method_labels_have_few_values() {
        let class = |status| CLASSES[class_of(StatusCode::from_u16(status).unwrap_or_default())];
        assert_eq!([101, 204, 304, 413, 503].map(class), CLASSES);
        assert_eq!(class(999), "5xx");
        assert_eq!((method_of(&Method::PATCH), method_of(&Method::TRACE)), ("PATCH", "other"));
    }
}
