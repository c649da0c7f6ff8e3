//! Responses that callers do not read are in memory within one budget, of which a user has a share.

use crate::support::*;
use std::{
    io::{Read, Write},
    net::TcpStream,
};
use tidings_api::ApiConfig;
use tidings_engine::config::EngineConfig;
use tidings_listen::{OutboundBudget, OutboundBudgetConfig};

const PAGE_BYTES: usize = 1 << 20;

/// Asks again and again for the longest page of history, and reads nothing.
fn ask_for_pages(server: &Server, credential: &str) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let request = format!(
        "GET /v1/conversations/g/messages?limit=500 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {credential}\r\n\r\n"
    );
    stream.write_all(request.repeat(40).as_bytes()).unwrap();
    stream
}

#[test]
fn a_user_who_reads_no_responses_holds_a_share_of_the_memory() {
    let share = 2 * PAGE_BYTES;
    let budget = OutboundBudget::new(OutboundBudgetConfig { bytes_max: 64 * PAGE_BYTES, user_bytes_max: share });
    let server = Server::with_budget(ApiConfig::default(), EngineConfig::default(), None, budget.clone()).with_people();
    let body = "x".repeat(60_000);
    let send = format!(r#"{{"conversation":"g","from":"alice","body":"{body}"}}"#);
    for _ in 0..18 {
        expect_status(&mut server.app(), "POST", "/v1/messages", &send, 200);
    }
    let until = |what: &str, holds: &dyn Fn() -> bool| {
        let deadline = std::time::Instant::now() + PATIENCE;
        while !holds() {
            assert!(std::time::Instant::now() < deadline, "not in time: {what}; {budget:?}");
            std::thread::park_timeout(std::time::Duration::from_millis(1));
        }
    };
    let mut app = ask_for_pages(&server, API_KEY);
    until("the app server's responses fill its socket", &|| budget.held() > 0);
    let of_app = budget.held();
    let of_alice: Vec<TcpStream> = (0..8).map(|_| ask_for_pages(&server, &token("alice"))).collect();
    until("most connections of the user are closed", &|| budget.closed() >= 6);
    until("their memory is returned", &|| budget.held() <= of_app + share);
    println!(
        "{} bytes are held, of which {of_app} by the app server; {} connections were closed",
        budget.held(),
        budget.closed()
    );
    // Another user and the app server are served.
    expect_status(&mut server.user("bob"), "GET", "/v1/users/me", "", 200);
    let mut responses = 0;
    let mut part = vec![0; 1 << 20];
    while responses < 40 {
        let count = app.read(&mut part).unwrap();
        assert!(count > 0, "the app server's connection was closed after {responses}");
        responses += part[..count].windows(9).filter(|bytes| bytes == b"HTTP/1.1 ").count();
    }
    drop((app, of_alice));
    until("all memory is returned", &|| budget.held() == 0);
}
