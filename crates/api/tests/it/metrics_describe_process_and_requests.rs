//! `/metrics` exports the process under the usual names, requests by route, and the program's version.

use crate::support::*;
use std::collections::BTreeSet;

fn value(metrics: &str, name: &str) -> f64 {
    let line = metrics.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {name} in\n{metrics}")).parse().unwrap()
}

#[test]
fn process_metrics_have_the_prometheus_names() {
    let server = Server::start();
    let mut app = server.app();
    let metrics = expect_status(&mut app, "GET", "/metrics", "", 200);
    let fits = |name: &str, least: f64, most: f64| {
        let value = value(&metrics, name);
        assert!((least..=most).contains(&value), "{name} {value}");
    };
    fits("process_resident_memory_bytes", 1e6, 1e11);
    fits("process_virtual_memory_bytes", 1e6, 1e15);
    fits("process_cpu_seconds_total", 0.001, 1e6);
    fits("process_open_fds", 5.0, 1e6);
    fits("process_max_fds", 64.0, 1e19);
    fits("process_threads", 3.0, 1e5);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
    // The clock of a machine may be set while the process runs: by a day at most.
    fits("process_start_time_seconds", now - 86_400.0, now + 86_400.0);
    // Other tests in this process open and close sockets meanwhile, so only the sockets that this test holds are counted.
    let held: Vec<_> = (0..300).map(|_| std::fs::File::open("/dev/null").unwrap()).collect();
    let open = value(&expect_status(&mut app, "GET", "/metrics", "", 200), "process_open_fds");
    assert!(open >= held.len() as f64, "{open}");
    let version = env!("CARGO_PKG_VERSION");
    let line = metrics.lines().find(|line| line.starts_with("tidings_build_info{"));
    assert!(
        line.is_some_and(|line| line.contains(&format!("version=\"{version}\"")) && line.ends_with("} 1")),
        "{line:?}"
    );
}

#[test]
fn requests_are_timed_by_route_method_and_status() {
    let server = Server::start().with_people();
    let mut app = server.app();
    let send = r#"{"conversation":"g","from":"alice","body":1}"#;
    for _ in 0..3 {
        expect_status(&mut app, "POST", "/v1/messages", send, 200);
    }
    expect_status(&mut app, "POST", "/v1/messages", "{", 400);
    // On the fast path, and then through the library.
    for mut asker in [server.app(), app] {
        expect_status(&mut asker, "POST", "/v1/popups/decide", r#"{"user":"alice","placement":"home"}"#, 204);
        expect_status(&mut asker, "GET", "/v1/conversations/g/messages", "", 200);
        expect_status(&mut asker, "GET", "/v1/users/alice", "", 200);
        for nowhere in 0..5 {
            expect_status(&mut asker, "GET", &format!("/v1/nowhere/{nowhere}"), "", 404);
        }
    }
    let metrics = expect_status(&mut server.app(), "GET", "/metrics", "", 200);
    let count = |route: &str, method: &str, status: &str| {
        let labels = format!("{{route=\"{route}\",method=\"{method}\",status=\"{status}\"}}");
        value(&metrics, &format!("tidings_http_request_seconds_count{labels}"))
    };
    assert_eq!(count("/v1/messages", "POST", "2xx"), 3.0);
    assert_eq!(count("/v1/messages", "POST", "4xx"), 1.0);
    assert_eq!(count("/v1/popups/decide", "POST", "2xx"), 2.0);
    assert_eq!(count("/v1/conversations/{conversation}/messages", "GET", "2xx"), 2.0);
    assert_eq!(count("/v1/users/{user}", "GET", "2xx"), 2.0);
    assert_eq!(count("none", "GET", "4xx"), 10.0);
}

#[test]
fn openmetrics_is_served_when_the_accept_header_asks() {
    let server = Server::start();
    let answer = server
        .raw(b"GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text\r\nConnection: close\r\n\r\n");
    let (head, text) = answer.split_once("\r\n\r\n").unwrap();
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0; charset=utf-8"), "{head}");
    assert!(text.ends_with("# EOF\n") && text.matches("# EOF").count() == 1, "{text}");
    let mut families = BTreeSet::new();
    for family in text.lines().filter_map(|line| line.strip_prefix("# TYPE ")) {
        assert!(families.insert(family.split(' ').next().unwrap()), "{family} appears twice");
    }
}
