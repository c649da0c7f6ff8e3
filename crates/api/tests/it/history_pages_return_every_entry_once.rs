//! Following `next` or `previous` until it is absent returns every entry once, whatever is sent meanwhile.

use crate::support::*;
use serde_json::Value;
use tidings_client::http::HttpClient;

const PATH: &str = "/v1/conversations/g/messages";

/// A server whose group `g` has this many entries.
fn with_entries(count: u64) -> Server {
    let server = Server::start().with_people();
    let mut app = server.app();
    while newest(&mut app) < count {
        send(&mut app, "before");
    }
    server
}

fn send(app: &mut HttpClient, text: &str) {
    let message = format!(r#"{{"conversation":"g","from":"alice","body":{text:?}}}"#);
    expect_status(app, "POST", "/v1/messages", &message, 200);
}

fn page(http: &mut HttpClient, query: &str) -> Value {
    serde_json::from_str(&expect_status(http, "GET", &format!("{PATH}?{query}"), "", 200)).unwrap()
}

fn newest(http: &mut HttpClient) -> u64 {
    page(http, "limit=1")["conversation_last_seq"].as_u64().unwrap()
}

fn seqs(page: &Value) -> Vec<u64> {
    page["entries"].as_array().unwrap().iter().map(|entry| entry["seq"].as_u64().unwrap()).collect()
}

/// All pages from the first on, in the order in which they came; `between` runs before each further one.
fn follow(
    http: &mut HttpClient,
    first: &str,
    way: &str,
    limit: usize,
    mut between: impl FnMut(usize),
) -> Vec<Vec<u64>> {
    let mut now = page(http, &format!("{first}&limit={limit}"));
    let mut pages = vec![seqs(&now)];
    while let Some(cursor) = now[way].as_str() {
        between(pages.len());
        now = page(http, &format!("cursor={cursor}&limit={limit}"));
        pages.push(seqs(&now));
        assert!(pages.len() < 1_000, "no end: {pages:?}");
    }
    pages
}

#[test]
fn paging_both_ways_at_any_page_size_returns_every_entry_once() {
    let server = with_entries(20);
    let mut app = server.app();
    for limit in [1, 2, 3, 7, 19, 20, 21, 500] {
        let before = newest(&mut app);
        // New entries come between the pages: a reader that pages backward began before them and does not get them.
        let mut sender = server.app();
        let backward = follow(&mut app, "", "previous", limit, |nth| {
            if nth % 4 == 1 {
                send(&mut sender, "meanwhile");
            }
        });
        let all: Vec<u64> = backward.into_iter().rev().flatten().collect();
        assert_eq!(all, (1..=before).collect::<Vec<_>>(), "backward by {limit}");

        // A reader that pages forward gets them last.
        let mut sent = 0;
        let forward = follow(&mut app, "from_seq=1", "next", limit, |nth| {
            if nth % 4 == 1 && sent < 3 {
                send(&mut sender, "meanwhile");
                sent += 1;
            }
        });
        let all: Vec<u64> = forward.into_iter().flatten().collect();
        assert_eq!(all, (1..=newest(&mut app)).collect::<Vec<_>>(), "forward by {limit}");
    }
}

#[test]
fn cursors_lead_both_ways_and_stay_in_the_first_range() {
    let server = with_entries(20);
    let mut bob = server.user("bob");
    let first = page(&mut bob, "from_seq=5&to_seq=14&limit=4");
    assert_eq!((seqs(&first), first["more"].as_bool()), (vec![5, 6, 7, 8], Some(true)));
    assert_eq!(first.get("previous"), None, "{first}");
    let second = page(&mut bob, &format!("cursor={}&limit=4", first["next"].as_str().unwrap()));
    assert_eq!(seqs(&second), [9, 10, 11, 12]);
    // The page size may change between pages.
    let back = page(&mut bob, &format!("cursor={}&limit=2", second["previous"].as_str().unwrap()));
    assert_eq!((seqs(&back), back["more"].as_bool()), (vec![7, 8], Some(true)));
    let last = page(&mut bob, &format!("cursor={}", second["next"].as_str().unwrap()));
    assert_eq!((seqs(&last), last["more"].as_bool()), (vec![13, 14], Some(false)));
    assert_eq!(last.get("next"), None, "{last}");
    assert_eq!(last["conversation_last_seq"], 20);

    let past = format!("from_time=1000000000000&to_time={}&limit=15", now_ms() + 3_600_000);
    let first = page(&mut bob, &past);
    send(&mut server.app(), "within the time");
    let rest = page(&mut bob, &format!("cursor={}", first["next"].as_str().unwrap()));
    assert_eq!(seqs(&rest), [16, 17, 18, 19, 20, 21]);
    assert_eq!(rest.get("next"), None, "{rest}");

    let empty = page(&mut bob, "from_seq=100");
    assert_eq!((seqs(&empty), empty.get("next"), empty.get("previous")), (vec![], None, None));
}

#[test]
fn large_entries_make_shorter_pages_with_a_cursor() {
    let server = Server::start().with_people();
    let mut app = server.app();
    for _ in 0..40 {
        send(&mut app, &"x".repeat(60_000));
    }
    let pages = follow(&mut app, "from_seq=1", "next", 500, |_| ());
    assert!(pages.len() > 1, "{pages:?}");
    assert_eq!(pages.concat(), (1..=newest(&mut app)).collect::<Vec<_>>());
    let mut pages = follow(&mut app, "", "previous", 500, |_| ());
    pages.reverse();
    assert_eq!(pages.concat(), (1..=newest(&mut app)).collect::<Vec<_>>());
}

#[test]
fn invalid_page_cursors_are_refused() {
    let server = with_entries(5);
    let mut app = server.app();
    let other = r#"{"id":"h","kind":"group","owner":"alice"}"#;
    expect_status(&mut app, "POST", "/v1/conversations", other, 201);
    let first = page(&mut app, "from_seq=1&limit=2");
    let cursor = first["next"].as_str().unwrap();
    let elsewhere = format!("/v1/conversations/h/messages?cursor={cursor}");
    check_refused(&mut app, "GET", &elsewhere, "", "cursor_invalid", "of this conversation");
    check_refused(&mut app, "GET", &format!("{PATH}?cursor=51"), "", "cursor_invalid", "cursor");
    let both = format!("{PATH}?cursor={cursor}&from_seq=3");
    check_refused(&mut app, "GET", &both, "", "invalid_field", "only limit may be given");
    check_refused(&mut app, "GET", &format!("{PATH}?limit=0"), "", "invalid_field", "limit: must be at least 1");
}
