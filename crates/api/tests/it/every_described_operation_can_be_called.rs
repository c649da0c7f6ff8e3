//! Calls each operation of the OpenAPI description once, as an app would; none may be left out.

use crate::support::*;
use std::{
    collections::BTreeSet,
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};
use tidings_client::http::HttpClient;
use tidings_engine::config::EngineConfig;
use tidings_testkit::MemoryStore;

/// Calls an operation and records the call.
struct Caller {
    http: HttpClient,
    called: BTreeSet<String>,
}

impl Caller {
    #[track_caller]
    fn check(&mut self, operation: &str, path: &str, body: &str, status: u16, holds: &str) -> String {
        self.called.insert(operation.to_owned());
        let method = operation.split(' ').next().unwrap();
        let text = expect_status(&mut self.http, method, path, body, status);
        assert!(text.contains(holds), "{operation}: {text} does not hold {holds}");
        text
    }
}

#[test]
fn every_described_operation_can_be_called() {
    let engine = EngineConfig { events_keep: Duration::from_secs(86_400), ..EngineConfig::default() };
    let server =
        Server::of_parts(ServerParts { engine, store: Arc::new(MemoryStore::shared()), ..ServerParts::default() });
    let mut app = Caller { http: server.app(), called: BTreeSet::new() };

    let users = r#"{"users":[{"id":"alice","name":"Alice","attributes":{"vip":true}},{"id":"bob"},{"id":"é@x"}]}"#;
    app.check("PUT /v1/users", "/v1/users", users, 200, r#"{"created":3,"updated":0}"#);
    app.check("PUT /v1/users", "/v1/users", r#"{"users":[{"id":"bob","name":"Bob"}]}"#, 200, r#""updated":1"#);
    app.check("GET /v1/users/{user}", "/v1/users/alice", "", 200, r#""attributes":{"vip":true}"#);
    app.check("GET /v1/users/{user}", "/v1/users/%C3%A9%40x", "", 200, r#"{"id":"é@x""#);

    app.check("GET /v1/users", "/v1/users?users=bob,nobody,alice", "", 200, r#"{"users":[{"id":"bob","name":"Bob""#);
    let asked = r#"{"users":["alice","é@x"]}"#;
    app.check("POST /v1/users/query", "/v1/users/query", asked, 200, r#"{"users":[{"id":"alice","name":"Alice""#);
    let many = format!(r#"{{"users":[{}"x"]}}"#, r#""x","#.repeat(200));
    app.check("POST /v1/users/query", "/v1/users/query", &many, 413, "limit_exceeded");

    let window = r#"{"window":{"start":"22:00","end":"07:00","time_zone":"Europe/Berlin"}}"#;
    let path = "/v1/users/alice/do-not-disturb";
    app.check("PUT /v1/users/{user}/do-not-disturb", path, window, 204, "");
    app.check("GET /v1/users/{user}", "/v1/users/alice", "", 200, r#""do_not_disturb":{"start":"22:00""#);
    app.check("PUT /v1/users/{user}/do-not-disturb", path, r#"{"window":null}"#, 204, "");

    let (operation, path) = ("PUT /v1/users/{user}/locale", "/v1/users/alice/locale");
    app.check(operation, path, r#"{"language":"de-AT","time_zone":"Europe/Vienna"}"#, 204, "");
    let locale = r#""language":"de-AT","time_zone":"Europe/Vienna"}"#;
    app.check("GET /v1/users/{user}", "/v1/users/alice", "", 200, locale);
    app.check(operation, path, r#"{"language":"de_AT"}"#, 422, "language: ");
    app.check(operation, path, r#"{"time_zone":"Europe/Wien"}"#, 422, "time_zone: ");
    let users = r#"{"users":[{"id":"alice","language":"","time_zone":"Asia/Tokyo"}]}"#;
    app.check("PUT /v1/users", "/v1/users", users, 200, r#""updated":1"#);
    let alice = app.check("GET /v1/users/{user}", "/v1/users/alice", "", 200, r#""time_zone":"Asia/Tokyo""#);
    assert!(!alice.contains("language"), "{alice}");
    app.check("PUT /v1/users", "/v1/users", r#"{"users":[{"id":"alice","language":"1"}]}"#, 422, "language: ");
    app.check(operation, path, "{}", 204, "");

    let (set, path) = ("PUT /v1/users/{user}/notification-preferences", "/v1/users/alice/notification-preferences");
    let preferences = r#"{"group":{"only_mentions":true},"off":["webhook"],"snooze_until":1767225600000}"#;
    app.check(set, path, preferences, 204, "");
    assert_eq!(app.check("GET /v1/users/{user}/notification-preferences", path, "", 200, ""), preferences);
    app.check(set, path, r#"{"off":["session"]}"#, 422, "off[0]: ");
    app.check(set, path, r#"{"off":["popup","popup"]}"#, 422, "off[1]: ");
    app.check(set, path, r#"{"direct":{"off":["session"]}}"#, 422, "direct.off[0]: ");
    app.check(set, path, r#"{"off":["mail"]}"#, 422, "off[0]");
    app.check(set, path, r#"{"snooze_until":99999999999999999}"#, 422, "snooze_until: ");
    app.check(set, path, "{}", 204, "");
    assert_eq!(app.check("GET /v1/users/{user}/notification-preferences", path, "", 200, ""), "{}");

    let group = r#"{"id":"g","kind":"group","name":"G","owner":"alice"}"#;
    app.check("POST /v1/conversations", "/v1/conversations", group, 201, r#""id":"g","kind":"group""#);
    app.check("POST /v1/conversations", "/v1/conversations", group, 200, r#""id":"g""#);
    let direct = r#"{"kind":"direct","members":["bob","alice"]}"#;
    app.check("POST /v1/conversations", "/v1/conversations", direct, 201, r#""id":"alice~bob""#);
    app.check("GET /v1/conversations/{conversation}", "/v1/conversations/g", "", 200, r#""member_count":1"#);
    let (list, path) =
        ("GET /v1/conversations", "/v1/conversations?kind=group&name_prefix=g&member=alice&active_since=0");
    app.check(list, path, "", 200, r#"{"conversations":[{"id":"g","kind":"group""#);
    let first = app.check(list, "/v1/conversations?limit=1", "", 200, r#""next":"alice~bob"}"#);
    assert!(first.starts_with(r#"{"conversations":[{"id":"alice~bob""#), "{first}");
    app.check(list, "/v1/conversations?after=alice~bob&id_prefix=g", "", 200, r#"[{"id":"g""#);
    app.check(list, "/v1/conversations?importing=true", "", 200, r#"{"conversations":[]}"#);
    app.check(list, "/v1/conversations?attribute=x", "", 422, "attribute: ");
    app.check(list, "/v1/conversations?member=nobody", "", 404, "not_found");
    app.check(list, "/v1/conversations?conversations=nowhere,g", "", 200, r#"{"conversations":[{"id":"g""#);
    app.check("GET /v1/users", "/v1/users?id_prefix=al&attribute=vip:true", "", 200, r#"{"users":[{"id":"alice""#);
    app.check("GET /v1/users", "/v1/users?limit=1&after=alice", "", 200, r#""next":"bob"}"#);
    app.check("GET /v1/users", "/v1/users?name_prefix=BO&suspended=false", "", 200, r#"{"users":[{"id":"bob""#);
    app.check("GET /v1/users", "/v1/users?suspended=true", "", 200, r#"{"users":[]}"#);
    let operation = "PATCH /v1/conversations/{conversation}";
    app.check(operation, "/v1/conversations/g", r#"{"name":"Gee"}"#, 200, r#""name":"Gee""#);

    // Lines of their own, which the tests of imports send.
    app.check("POST /v1/import", "/v1/import", "{}", 415, "application/x-ndjson");
    let user = br#"{"type":"user","id":"imported","name":"I"}"#;
    let imported = app.http.exchange_text("POST", "/v1/import", "application/x-ndjson", user).unwrap();
    assert_eq!(imported.status, 200);
    let exported = app.check("GET /v1/export", "/v1/export", "", 200, r#"{"type":"user","id":"imported","name":"I"}"#);
    assert!(exported.lines().all(|line| line.starts_with(r#"{"type":"#)), "{exported}");
    app.check("GET /v1/export", "/v1/export?conversation=nowhere", "", 404, "not_found");

    let path = "/v1/notifications/policy";
    app.check("GET /v1/notifications/policy", path, "", 200, r#"{"version":0,"policy":{"rules":[{"id":"default""#);
    let policy = r#"{"rules":[{"id":"mentions","when":{"attribute":"mention","op":"eq","value":true},
        "channels":[{"channel":"session"},{"channel":"providers","after_s":5},{"channel":"webhook","after_s":60}]},
        {"id":"rest","channels":[{"channel":"session"}]}]}"#;
    app.check("PUT /v1/notifications/policy", path, policy, 200, r#""version":1"#);
    app.check("PUT /v1/notifications/policy", path, r#"{"rules":[{"id":""}]}"#, 422, "rules[0].id: ");
    let ask = r#"{"user":"alice","conversation":"g","from":"bob","body":{"text":"hello"},"mentions":["alice"]}"#;
    let explained =
        app.check("POST /v1/notifications/explain", "/v1/notifications/explain", ask, 200, r#""rule":"mentions""#);
    assert!(
        explained.contains(r#""channel":"webhook""#) && explained.contains(r#""outcome":"not_set_up""#),
        "{explained}"
    );
    let ask = r#"{"user":"alice","conversation":"g","from":"bob","body":1}"#;
    let passed = r#""passed_over":[{"rule":"mentions","because":"when"}]"#;
    app.check("POST /v1/notifications/explain", "/v1/notifications/explain", ask, 200, passed);
    app.check("DELETE /v1/notifications/policy", path, "", 200, r#""version":2"#);
    let versions = app.check(
        "GET /v1/notifications/policy/versions",
        "/v1/notifications/policy/versions",
        "",
        200,
        r#""removed":true"#,
    );
    assert!(versions.contains(r#""id":"rest""#), "{versions}");

    let path = "/v1/conversations/g/members";
    let operation = "POST /v1/conversations/{conversation}/members";
    app.check(
        operation,
        path,
        r#"{"add":["bob","é@x"]}"#,
        200,
        r#"{"added":2,"removed":0,"changed":0,"member_count":3}"#,
    );
    app.check(operation, path, r#"{"remove":["é@x"]}"#, 200, r#""removed":1"#);
    let operation = "GET /v1/conversations/{conversation}/members";
    let first = app.check(
        operation,
        "/v1/conversations/g/members?limit=1",
        "",
        200,
        r#""user":"alice","name":"Alice","role":"owner""#,
    );
    let next = serde_json::from_str::<serde_json::Value>(&first).unwrap()["next"].as_str().unwrap().to_owned();
    app.check(operation, &format!("/v1/conversations/g/members?limit=1&after={next}"), "", 200, r#""user":"bob""#);
    let (restrictions, of_bob) = ("/v1/conversations/g/restrictions", "/v1/conversations/g/restrictions/bob");
    let (operation, mute) =
        ("PUT /v1/conversations/{conversation}/restrictions/{user}", r#"{"kind":"mute","reason":"loud"}"#);
    app.check(operation, of_bob, mute, 204, "");
    let operation = "GET /v1/conversations/{conversation}/restrictions";
    app.check(operation, &format!("{restrictions}?kind=mute"), "", 200, r#"{"user":"bob","kind":"mute","at":"#);
    let operation = "DELETE /v1/conversations/{conversation}/restrictions/{user}";
    app.check(operation, &format!("{of_bob}?kind=mute"), "", 204, "");
    let (operation, to_bob) = ("POST /v1/conversations/{conversation}/owner", r#"{"from":"alice","to":"bob"}"#);
    app.check(operation, "/v1/conversations/g/owner", to_bob, 200, r#""changed":2"#);
    app.check(operation, "/v1/conversations/g/owner", r#"{"from":"bob","to":"alice"}"#, 200, r#""changed":2"#);
    let invites = "/v1/conversations/g/invites";
    let operation = "POST /v1/conversations/{conversation}/invites";
    let made = app.check(operation, invites, r#"{"uses_max":2}"#, 201, r#""token":"invite_"#);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let (invite, token) = (made["id"].as_str().unwrap(), made["token"].as_str().unwrap());
    let join = format!(r#"{{"token":"{token}","user":"é@x"}}"#);
    app.check("POST /v1/invites/join", "/v1/invites/join", &join, 200, r#""member_count":3"#);
    let listed =
        app.check("GET /v1/conversations/{conversation}/invites", invites, "", 200, r#""uses_max":2,"uses":1"#);
    assert!(!listed.contains(token), "{listed}");
    let operation = "DELETE /v1/conversations/{conversation}/invites/{invite}";
    app.check(operation, &format!("{invites}/{invite}"), "", 204, "");
    app.check("PATCH /v1/conversations/{conversation}", "/v1/conversations/g", r#"{"join_requests":true}"#, 200, "");
    let path = "/v1/conversations/g/members";
    app.check("POST /v1/conversations/{conversation}/members", path, r#"{"remove":["é@x"]}"#, 200, r#""removed":1"#);
    let requests = "/v1/conversations/g/join-requests";
    let ask = "POST /v1/conversations/{conversation}/join-requests";
    app.check(ask, requests, r#"{"user":"é@x","text":"me?"}"#, 204, "");
    let operation = "GET /v1/conversations/{conversation}/join-requests";
    app.check(operation, requests, "", 200, r#""text":"me?","state":"waiting""#);
    let of_user = format!("{requests}/%C3%A9@x");
    let operation = "POST /v1/conversations/{conversation}/join-requests/{user}/refuse";
    app.check(operation, &format!("{of_user}/refuse"), r#"{"reason":"full"}"#, 204, "");
    let operation = "GET /v1/conversations/{conversation}/join-requests/{user}";
    app.check(operation, &of_user, "", 200, r#""state":"refused","reason":"full""#);
    app.check(ask, requests, r#"{"user":"é@x"}"#, 204, "");
    let operation = "POST /v1/conversations/{conversation}/join-requests/{user}/approve";
    app.check(operation, &format!("{of_user}/approve"), "", 200, r#""added":1"#);
    app.check("POST /v1/conversations/{conversation}/members", path, r#"{"remove":["é@x"]}"#, 200, r#""removed":1"#);

    let message = r#"{"conversation":"g","from":"alice","client_msg_id":"m1","body":{"text":"hello"}}"#;
    let sent = app.check("POST /v1/messages", "/v1/messages", message, 200, r#"{"conversation":"g","seq":"#);
    let seq = serde_json::from_str::<serde_json::Value>(&sent).unwrap()["seq"].as_u64().unwrap();
    let again = app.check("POST /v1/messages", "/v1/messages", message, 200, r#""duplicate":true"#);
    assert!(again.contains(&format!(r#""seq":{seq},"#)), "{again}");
    let (signal, path) = ("POST /v1/conversations/{conversation}/signals", "/v1/conversations/g/signals");
    app.check(signal, path, r#"{"type":"stop","body":{"seq":1}}"#, 204, "");
    app.check(signal, path, r#"{"type":"stop","from":"alice"}"#, 204, "");
    app.check(signal, path, r#"{"type":""}"#, 413, "type (bytes, at least 1)");
    let report = "POST /v1/conversations/{conversation}/messages/{seq}/report";
    let path = format!("/v1/conversations/g/messages/{seq}/report");
    let reported = app.check(report, &path, r#"{"reason":"spam","user":"bob"}"#, 200, r#"{"report":""#);
    let id = serde_json::from_str::<serde_json::Value>(&reported).unwrap()["report"].as_str().unwrap().to_owned();
    app.check(report, &path, r#"{"reason":"spam","user":"bob"}"#, 200, r#""duplicate":true"#);
    app.check(
        "GET /v1/reports",
        "/v1/reports?reason=spam&reported=alice",
        "",
        200,
        r#""reporter":"bob","reported":"alice""#,
    );
    let path = format!("/v1/reports/{id}");
    app.check("GET /v1/reports/{report}", &path, "", 200, r#""context":[{"#);
    let update = r#"{"state":"resolved","note":"done","if_state":"open"}"#;
    app.check("PATCH /v1/reports/{report}", &path, update, 200, r#""state":"resolved","by":""#);
    app.check("PATCH /v1/reports/{report}", &path, update, 409, "if_state: ");
    let batch = r#"{"messages":[{"to":"bob","from":"alice","body":1},{"conversation":"nowhere","body":2}]}"#;
    let operation = "POST /v1/messages/batch";
    app.check(operation, "/v1/messages/batch", batch, 200, r#"{"results":[{"conversation":"alice~bob","seq":1,"#);
    app.check(operation, "/v1/messages/batch", batch, 200, r#""code":"not_found""#);
    let path = format!("/v1/conversations/g/messages?from_seq={seq}&limit=1");
    app.check("GET /v1/conversations/{conversation}/messages", &path, "", 200, r#""body":{"text":"hello"}"#);

    accounts_answer(&mut app);
    messages_change(&mut app, seq);
    messages_grow(&mut app);

    let path = "/v1/users/bob/conversations";
    let list = app.check("GET /v1/users/{user}/conversations", path, "", 200, r#""unread":1"#);
    assert!(list.contains("alice~bob") && list.contains(r#""id":"g""#), "{list}");
    let synced = app.check("GET /v1/users/{user}/sync", "/v1/users/bob/sync", "", 200, r#""resume":{"complete":"#);
    let cursor = serde_json::from_str::<serde_json::Value>(&synced).unwrap()["cursor"].as_str().unwrap().to_owned();
    let path = format!("/v1/users/bob/sync?cursor={cursor}");
    app.check("GET /v1/users/{user}/sync", &path, "", 200, r#""resume":{"complete":true},"entries":[]"#);
    let operation = "PUT /v1/users/{user}/conversations/{conversation}/read";
    let path = "/v1/users/bob/conversations/g/read";
    app.check(operation, path, &format!(r#"{{"seq":{seq}}}"#), 200, r#""unread":0"#);
    let operation = "PATCH /v1/users/{user}/conversations/{conversation}";
    let path = "/v1/users/bob/conversations/g";
    app.check(operation, path, r#"{"pinned":true,"title":"Mine"}"#, 200, r#""title":"Mine""#);
    let line =
        app.check(operation, path, r#"{"pinned":false,"title":null,"archived":true}"#, 200, r#""archived":true"#);
    assert!(!line.contains("pinned_at") && !line.contains("title"), "{line}");
    let archived = "/v1/users/bob/conversations?filter=archived";
    app.check("GET /v1/users/{user}/conversations", archived, "", 200, r#"{"conversations":[{"id":"g""#);
    app.check(operation, path, r#"{"archived":false}"#, 200, r#""id":"g""#);
    let operation = "GET /v1/conversations/{conversation}/messages/{seq}/receipts";
    let path = format!("/v1/conversations/g/messages/{seq}/receipts");
    app.check(operation, &path, "", 200, r#"{"delivered":1,"read":1,"members":1}"#);
    let operation = "GET /v1/conversations/{conversation}/messages/{seq}/notifications";
    let path_of_notifications = format!("/v1/conversations/g/messages/{seq}/notifications?user=bob");
    app.check(operation, &path_of_notifications, "", 200, r#""user":"bob""#);
    app.check("PUT /v1/users/{user}/receipts", "/v1/users/bob/receipts", r#"{"send":false}"#, 204, "");
    app.check(operation, &path, "", 200, r#"{"delivered":1,"read":0,"members":1}"#);
    let path = "/v1/conversations/g/receipts";
    app.check("GET /v1/conversations/{conversation}/receipts", path, "", 200, r#"{"moved":[{"what":"delivered""#);
    let path = "/v1/users/bob/conversations/g";
    app.check("GET /v1/users/{user}/conversations/{conversation}", path, "", 200, r#"{"conversations":[{"id":"g""#);
    app.check("GET /v1/users/{user}/conversations", "/v1/users/bob/conversations?search=GEE", "", 200, r#""id":"g""#);
    app.check("GET /v1/users/{user}/unread", "/v1/users/bob/unread", "", 200, r#"{"unread":"#);
    app.check("POST /v1/users/{user}/read-all", "/v1/users/bob/read-all", "", 200, r#""more":false}"#);
    app.check("GET /v1/users/{user}/unread", "/v1/users/bob/unread", "", 200, r#"{"unread":0,"#);
    let operation = "PUT /v1/users/{user}/conversations/{conversation}/mute";
    app.check(operation, "/v1/users/bob/conversations/g/mute", r#"{"muted":true}"#, 204, "");
    let list = app.check("GET /v1/users/{user}/conversations", "/v1/users/bob/conversations", "", 200, "");
    assert!(list.contains(r#""muted":true"#), "{list}");

    app.check("GET /v1/events", "/v1/events?limit=1", "", 200, r#""type":"user""#);
    app.check("GET /v1/events", "/v1/events?after=start&types=members", "", 200, r#""read_seq":"#);
    // It lasts for minutes.
    app.check("GET /v1/events/stream", "/v1/events/stream?types=usr", "", 422, "types: ");
    app.check("GET /v1/outbox-sources", "/v1/outbox-sources", "", 200, r#"{"sources":[]}"#);
    let off = Server::start();
    expect_status(&mut off.app(), "GET", "/v1/events", "", 409);
    expect_status(&mut off.app(), "PUT", "/v1/event-consumers/bot", "{}", 409);

    let (operation, bot) = ("PUT /v1/event-consumers/{name}", "/v1/event-consumers/bot");
    app.check(operation, bot, r#"{"types":["user"]}"#, 201, r#""state":"read""#);
    app.check(operation, bot, r#"{"types":["user","members"]}"#, 200, r#""types":["user","members"]"#);
    app.check(operation, "/v1/event-consumers/b%20t", "{}", 422, "name: ");
    let search = r#"{"webhook":{"url":"http://127.0.0.1:9/"}}"#;
    let made = app.check(operation, "/v1/event-consumers/search", search, 201, r#""secret":"whsec_"#);
    assert!(made.contains(r#""state":"waiting""#), "{made}");
    let path = "/v1/event-consumers/bot/events";
    let page = app.check("GET /v1/event-consumers/{name}/events", &format!("{path}?limit=1"), "", 200, "specversion");
    let next = serde_json::from_str::<serde_json::Value>(&page).unwrap()["next"].as_str().unwrap().to_owned();
    let after = format!(r#"{{"after":"{next}"}}"#);
    let operation = "PUT /v1/event-consumers/{name}/cursor";
    app.check(operation, "/v1/event-consumers/bot/cursor", &after, 200, &format!(r#""cursor":"{next}""#));
    app.check(operation, "/v1/event-consumers/search/cursor", &after, 409, "has a webhook");
    let operation = "POST /v1/event-consumers/{name}/replay";
    app.check(operation, "/v1/event-consumers/bot/replay", r#"{"after":"start"}"#, 200, r#""name":"bot""#);
    let list = app.check("GET /v1/event-consumers", "/v1/event-consumers", "", 200, r#""name":"search""#);
    assert!(!list.contains("whsec_"), "{list}");
    app.check("GET /v1/event-consumers/{name}", bot, "", 200, r#""state":"read""#);
    let dead = "/v1/event-consumers/search/dead-letters";
    app.check("GET /v1/event-consumers/{name}/dead-letters", dead, "", 200, r#"{"dead_letters":[]}"#);
    for way in ["replay", "delete"] {
        let operation = format!("POST /v1/event-consumers/{{name}}/dead-letters/{way}");
        app.check(&operation, &format!("{dead}/{way}"), "{}", 200, r#"{"handled":0}"#);
    }
    app.check("DELETE /v1/event-consumers/{name}", bot, "", 204, "");
    app.check("GET /v1/event-consumers/{name}", bot, "", 404, "not_found");

    let operation = "POST /v1/presence/query";
    app.check(operation, "/v1/presence/query", r#"{"users":["bob"]}"#, 200, r#""user":"bob","online":false"#);
    app.check("GET /v1/presence", "/v1/presence?users=bob,eve", "", 200, r#""user":"eve","online":false"#);
    let path = "/v1/admin/presence?user=bob";
    app.check("GET /v1/admin/presence", path, "", 200, r#""user":"bob","stored":[],"memory":[]"#);
    app.check("GET /v1/admin/settings", "/v1/admin/settings", "", 200, r#"{"settings":["#);
    app.check("GET /v1/admin/nodes", "/v1/admin/nodes", "", 200, r#""nodes":[{"name":"core""#);
    let operation = "POST /v1/admin/presence/compare";
    let same = r#"{"registered":0,"held":0,"ghosts":0,"missing":0,"wrong_node":0,"repaired":0,"differences":[]}"#;
    app.check(operation, "/v1/admin/presence/compare", r#"{"repair":true}"#, 200, same);
    app.check("POST /v1/users/{user}/kick", "/v1/users/bob/kick", "{}", 200, r#"{"sessions":0}"#);
    let suspend = "POST /v1/users/{user}/suspend";
    app.check(suspend, "/v1/users/bob/suspend", r#"{"reason":"spam"}"#, 200, r#"{"reason":"spam","by":""#);
    app.check("POST /v1/users/{user}/unsuspend", "/v1/users/bob/unsuspend", "{}", 204, "");
    users_are_erased(&mut app);
    messages_are_scheduled(&mut app);
    let (list, one) = ("/v1/users/alice/blocks", "/v1/users/alice/blocks/bob");
    app.check("PUT /v1/users/{user}/blocks/{other}", one, "", 204, "");
    app.check("GET /v1/users/{user}/blocks", list, "", 200, r#"{"users":[{"user":"bob","at":"#);
    app.check("GET /v1/users/{user}/blocks", "/v1/users/alice/blocks?limit=1&after=x", "", 422, "after: ");
    app.check("DELETE /v1/users/{user}/blocks/{other}", one, "", 204, "");
    app.check("PUT /v1/users/{user}/blocks/{other}", "/v1/users/alice/blocks/alice", "", 422, "other: ");
    app.check("POST /v1/users/{user}/revoke", "/v1/users/bob/revoke", "{}", 200, r#"{"sessions":0,"issue_from":"#);
    let push =
        r#"{"to":{"users":["alice"],"devices":[{"user":"bob","device_id":"b1"}]},"type":"offer","body":{"n":1}}"#;
    let accepted = r#"{"push":1,"state":"completed","targets":0,"unknown":1,"expires_at":"#;
    app.check("POST /v1/push", "/v1/push", push, 202, accepted);
    let dry = r#"{"to":{"all":true},"body":1,"dry_run":true}"#;
    app.check("POST /v1/push", "/v1/push", dry, 200, r#"{"reach":{"devices":0,"online":0}}"#);
    app.check(
        "GET /v1/push/{push}",
        "/v1/push/1",
        "",
        200,
        r#""state":"completed","type":"offer","priority":"normal""#,
    );
    let path = "/v1/push/1/devices?state=pending&limit=5";
    app.check("GET /v1/push/{push}/devices", path, "", 200, r#"{"devices":[]}"#);
    let later = format!(r#"{{"to":{{"all":true}},"body":1,"send_at":{}}}"#, now_ms() + 3_600_000);
    app.check("POST /v1/push", "/v1/push", &later, 202, r#"{"push":2,"state":"scheduled""#);
    app.check(
        "GET /v1/push",
        "/v1/push?limit=1&state=scheduled&since=0",
        "",
        200,
        r#"{"pushes":[{"push":2,"state":"scheduled""#,
    );
    app.check("DELETE /v1/push/{push}", "/v1/push/2", "", 200, r#""state":"cancelled""#);
    server.register("alice", "a1");
    let reach = r#""devices":[{"device_id":"a1""#;
    app.check("GET /v1/push/{push}/deliveries", "/v1/push/1/deliveries?user=alice", "", 200, reach);
    let path = "/v1/users/alice/devices/a1/tags";
    let operation = "PUT /v1/users/{user}/devices/{device_id}/tags";
    app.check(operation, path, r#"{"tags":["news"]}"#, 200, r#""tags":["news"]"#);
    let operation = "GET /v1/users/{user}/devices";
    app.check(operation, "/v1/users/alice/devices", "", 200, r#"{"devices":[{"device_id":"a1","device_kind":"phone""#);
    app.check("DELETE /v1/users/{user}/devices/{device_id}", "/v1/users/alice/devices/a1", "", 204, "");

    // The server of these tests has no provider.
    let path = "/v1/users/alice/devices/a1/push_token";
    let operation = "PUT /v1/users/{user}/devices/{device_id}/push_token";
    app.check(operation, path, r#"{"provider":"apns","token":"abcd"}"#, 409, r#""code":"conflict""#);
    app.check(operation, path, r#"{"provider":"apns","token":"no hex"}"#, 422, r#""code":"invalid_field""#);
    app.check("DELETE /v1/users/{user}/devices/{device_id}/push_token", path, "", 204, "");
    app.check("GET /v1/users/{user}/push_tokens", "/v1/users/alice/push_tokens", "", 200, r#"{"push_tokens":[]}"#);

    popups_answer(&mut app);

    bulk_sends_answer(&mut app);
    event_stream_answers(&mut app, &server);

    let path = "/v1/notifications/dead-letters";
    let page = format!("{path}?channel=huawei&user=alice&outcome=refused&cause=x&after=webhook:1&limit=5");
    app.check("GET /v1/notifications/dead-letters", &page, "", 200, r#"{"dead_letters":[]}"#);
    for (verb, body, answer) in [
        ("replay", "{}", r#"{"replayed":0,"dropped":[]}"#),
        ("delete", r#"{"channel":"webhook","outcome":"refused"}"#, r#"{"deleted":0}"#),
    ] {
        app.check(&format!("POST {path}/{verb}"), &format!("{path}/{verb}"), body, 200, answer);
    }
    app.check("GET /v1/notifications/stats", "/v1/notifications/stats", "", 200, r#""channels":["#);
    let made = r#"{"path":"/backups/monday","bytes":42}"#;
    app.check("POST /v1/admin/backup", "/v1/admin/backup", r#"{"path":"monday"}"#, 200, made);
    api_keys_answer(&mut app);
    let metrics = app.check("GET /metrics", "/metrics", "", 200, "tidings_committed_entries_total");
    assert!(metrics.contains(r#"tidings_queue_limit{queue="commit"}"#), "{metrics}");
    app.check("GET /healthz", "/healthz", "", 200, "ok");
    app.check("GET /readyz", "/readyz", "", 200, "ready");

    assert_eq!(app.called, described());
    expect_status(&mut app.http, "GET", "/docs/", "", 200);
}

/// A session over an event stream, which goes on while its frames are sent.
fn event_stream_answers(app: &mut Caller, server: &Server) {
    let mut socket = TcpStream::connect(server.address).unwrap();
    let token = token("alice");
    write!(socket, "GET /v1/stream?device_id=d HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {token}\r\n\r\n").unwrap();
    let mut events = String::new();
    while !events.contains(r#""t":"bound""#) {
        let mut bytes = [0; 4_096];
        let count = socket.read(&mut bytes).unwrap();
        assert!(count > 0, "ended with {events}");
        events.push_str(std::str::from_utf8(&bytes[..count]).unwrap());
    }
    assert!(events.contains("event: open\n"), "{events}");
    app.called.insert("GET /v1/stream".to_owned());
    let field = |name: &str| events.split_once(&format!("\"{name}\":\"")).unwrap().1.split('"').next().unwrap();
    let mut stream = server.with_credential(field("secret"));
    let path = format!("/v1/stream/{}?number=1", field("stream"));
    let taken = expect_status(&mut stream, "POST", &path, r#"{"t":"ping"}"#, 202);
    assert_eq!(taken, r#"{"taken":1}"#);
    app.called.insert("POST /v1/stream/{stream}".to_owned());
}

/// Message `seq` of the group `g` is changed in every way; an answer that mentions bob follows, and is recalled.
fn accounts_answer(app: &mut Caller) {
    let account = r#"{"id":"desk-shop","kind":"official","owner":"alice","members":["bob"]}"#;
    app.check("POST /v1/conversations", "/v1/conversations", account, 201, r#""id":"desk-shop""#);
    let operation = "PATCH /v1/conversations/{conversation}/desk";
    let path = "/v1/conversations/desk-shop/desk";
    let desk = r#"{"account":"desk-shop","open_to":"anyone","show_agents":false,"agents":["alice"]}"#;
    app.check(operation, path, r#"{"add":["alice"],"open_to":"anyone"}"#, 200, desk);
    app.check(operation, "/v1/conversations/g/desk", "{}", 409, r#""code":"conflict""#);
    app.check("GET /v1/conversations/{conversation}/desk", path, "", 200, desk);
    app.check("GET /v1/users/{user}/desks", "/v1/users/alice/desks", "", 200, desk);
    let message = r#"{"to":"desk-shop","from":"bob","body":{"text":"hello"},"silent":true}"#;
    app.check("POST /v1/messages", "/v1/messages", message, 200, r#"{"conversation":"bob~desk-shop","seq":1,"#);
    let operation = "PUT /v1/conversations/{conversation}/assignment";
    let path = "/v1/conversations/bob~desk-shop/assignment";
    let assign = r#"{"assigned_to":"alice","if_assigned_to":null}"#;
    app.check(operation, path, assign, 200, r#"{"conversation":"bob~desk-shop","assigned_to":"alice"}"#);
    app.check(operation, path, r#"{"assigned_to":null,"if_assigned_to":"bob"}"#, 409, "assignment_conflict");
    let operation = "GET /v1/conversations/{conversation}/desk/conversations";
    let path = "/v1/conversations/desk-shop/desk/conversations?assigned_to=alice";
    app.check(operation, path, "", 200, r#""account":"desk-shop","assigned_to":"alice""#);
}

fn messages_change(app: &mut Caller, seq: u64) {
    let message = format!("/v1/conversations/g/messages/{seq}");
    let one = "/v1/conversations/{conversation}/messages/{seq}";
    let edit = r#"{"from":"alice","body":{"text":"hello, all"},"if_version":1}"#;
    app.check(&format!("PATCH {one}"), &message, edit, 200, r#""version":2"#);
    app.check(&format!("PATCH {one}"), &message, edit, 409, r#""code":"version_conflict""#);
    app.check(&format!("GET {one}"), &message, "", 200, r#""body":{"text":"hello, all"},"version":2"#);
    let path = format!("{message}/versions");
    app.check(&format!("GET {one}/versions"), &path, "", 200, r#"{"versions":[{"version":2,"#);
    let path = format!("{message}/reactions/%F0%9F%91%8D?user=bob");
    let given = r#""reactions":[{"key":"👍","count":1,"users":["bob"]}]"#;
    app.check(&format!("PUT {one}/reactions/{{key}}"), &path, "", 200, given);
    let listed = r#"{"reactions":[{"user":"bob","key":"👍"}]}"#;
    app.check(&format!("GET {one}/reactions"), &format!("{message}/reactions"), "", 200, listed);
    app.check(&format!("DELETE {one}/reactions/{{key}}"), &path, "", 200, r#""reactions":[]"#);
    let pin = format!("{message}/pin");
    app.check(&format!("PUT {one}/pin"), &pin, "", 200, r#""pinned":true"#);
    let operation = "GET /v1/conversations/{conversation}/pins";
    app.check(operation, "/v1/conversations/g/pins", "", 200, r#""pinned":{"at":"#);
    app.check(&format!("DELETE {one}/pin"), &pin, "", 200, r#""pinned":false"#);
    let answer = format!(r#"{{"conversation":"g","from":"alice","body":2,"reply_to":{seq},"mentions":["bob"]}}"#);
    let sent = app.check("POST /v1/messages", "/v1/messages", &answer, 200, "");
    let answer = serde_json::from_str::<serde_json::Value>(&sent).unwrap()["seq"].as_u64().unwrap();
    let preview = format!(r#""reply_to":{{"seq":{seq},"from":"alice","type":"text","body":{{"text":"hello, all"}}}}"#);
    app.check(&format!("GET {one}/replies"), &format!("{message}/replies"), "", 200, &preview);
    app.check("GET /v1/users/{user}/mentions", "/v1/users/bob/mentions", "", 200, &format!(r#""seq":{answer},"#));
    let path = format!("/v1/conversations/g/messages/{answer}?from=alice");
    app.check(&format!("DELETE {one}"), &path, "", 200, &format!(r#"{{"conversation":"g","seq":{}"#, answer + 1));
    app.check("GET /v1/users/{user}/mentions", "/v1/users/bob/mentions", "", 200, r#"{"entries":[]}"#);
}

/// A message of the group `g` grows until it is whole.
fn messages_grow(app: &mut Caller) {
    let begin = r#"{"conversation":"g","from":"alice","body":{"text":"so"}}"#;
    let begun = app.check("POST /v1/streams", "/v1/streams", begin, 200, r#"{"conversation":"g","seq":"#);
    let seq = serde_json::from_str::<serde_json::Value>(&begun).unwrap()["seq"].as_u64().unwrap();
    let (stream, operation) = (format!("/v1/streams/g/{seq}"), "POST /v1/streams/{conversation}/{seq}");
    app.check(operation, &stream, r#"{"offset":2,"text":" far"}"#, 200, r#""offset":6"#);
    app.check(operation, &stream, r#"{"offset":9,"text":"!"}"#, 409, r#""code":"conflict""#);
    let operation = "POST /v1/streams/{conversation}/{seq}/end";
    app.check(operation, &format!("{stream}/end"), "{}", 200, r#""version":2"#);
    let message = format!("/v1/conversations/g/messages/{seq}");
    let operation = "GET /v1/conversations/{conversation}/messages/{seq}";
    app.check(operation, &message, "", 200, r#""body":{"text":"so far"}"#);
    // So that nothing more is unread than before.
    app.check("DELETE /v1/conversations/{conversation}/messages/{seq}", &message, "", 200, "");
}

fn api_keys_answer(app: &mut Caller) {
    let (keys, one) = ("/v1/admin/keys", "/v1/admin/keys/{key}");
    let new = r#"{"name":"newsletter","scopes":["send","read"]}"#;
    let made = app.check("POST /v1/admin/keys", keys, new, 201, r#"{"secret":"tidings_"#);
    let made: serde_json::Value = serde_json::from_str(&made).unwrap();
    let path = format!("{keys}/{}", made["key"]["id"].as_str().unwrap());
    app.check("GET /v1/admin/keys", keys, "", 200, r#""name":"newsletter","scopes":["send","read"]"#);
    app.check("GET /v1/admin/keys/me", "/v1/admin/keys/me", "", 200, r#"{"id":"configured","name":"api_key""#);
    app.check(&format!("GET {one}"), &path, "", 200, r#""created_by":"configured"}"#);
    app.check(&format!("PATCH {one}"), &path, r#"{"scopes":["read"]}"#, 200, r#""scopes":["read"]"#);
    app.check(
        &format!("POST {one}/rotate"),
        &format!("{path}/rotate"),
        r#"{"overlap_s":60}"#,
        200,
        "former_secret_until",
    );
    app.check(&format!("DELETE {one}"), &path, "", 204, "");
    app.check(&format!("GET {one}"), &path, "", 404, "no API key");
    app.check(
        "GET /v1/admin/audit",
        "/v1/admin/audit?limit=1",
        "",
        200,
        r#""operation":"DELETE /v1/admin/keys/{key}""#,
    );
}

fn messages_are_scheduled(app: &mut Caller) {
    let (operation, path) = ("/v1/scheduled-messages", "/v1/scheduled-messages");
    let new = r#"{"send_at":4102444800000,"message":{"conversation":"g","from":"alice","body":1}}"#;
    let past = new.replace("4102444800000", "1102444800000");
    app.check(&format!("POST {operation}"), path, &past, 422, "send_at: lies in the past");
    let made = app.check(&format!("POST {operation}"), path, new, 201, r#""message":{"conversation":"g""#);
    let id = serde_json::from_str::<serde_json::Value>(&made).unwrap()["id"].as_u64().unwrap();
    app.check(&format!("GET {operation}"), &format!("{path}?from=alice&limit=1"), "", 200, &format!(r#""next":{id}"#));
    app.check(&format!("GET {operation}"), path, "", 200, r#"{"scheduled_messages":[]}"#);
    let one = format!("{path}/{id}?from=alice");
    app.check(&format!("GET {operation}/{{scheduled}}"), &one, "", 200, r#""body":1"#);
    app.check(&format!("PATCH {operation}/{{scheduled}}"), &one, r#"{"body":2}"#, 200, r#""body":2"#);
    app.check(&format!("DELETE {operation}/{{scheduled}}"), &one, "", 204, "");
    app.check(&format!("DELETE {operation}/{{scheduled}}"), &one, "", 404, "not_found");
}

fn users_are_erased(app: &mut Caller) {
    app.check("PUT /v1/users", "/v1/users", r#"{"users":[{"id":"dan"}]}"#, 200, "");
    let held = r#"{"id":"held","kind":"group","owner":"dan"}"#;
    app.check("POST /v1/conversations", "/v1/conversations", held, 201, "");
    let (operation, hold) = ("/v1/conversations/{conversation}/legal-hold", "/v1/conversations/held/legal-hold");
    app.check(&format!("PUT {operation}"), hold, r#"{"name":"case 1"}"#, 200, r#""name":"case 1","by":""#);
    app.check(&format!("PUT {operation}"), hold, r#"{"name":""}"#, 422, "name: ");
    app.check(&format!("GET {operation}"), hold, "", 200, r#"{"conversation":"held","#);
    app.check("GET /v1/legal-holds", "/v1/legal-holds", "", 200, r#"{"legal_holds":[{"conversation":"held","#);
    let export = "GET /v1/users/{user}/export";
    let archive = app.http.exchange("GET", "/v1/users/dan/export?received=true", b"").unwrap();
    assert!(archive.status == 200 && archive.body.starts_with(b"PK"), "{archive:?}");
    app.check(export, "/v1/users/nobody/export", "", 404, "not_found");
    let delete = "DELETE /v1/conversations/{conversation}";
    app.check(delete, "/v1/conversations/held", "", 409, r#""code":"legal_hold""#);
    app.check(delete, "/v1/conversations/nothing", "", 404, "not_found");
    app.check("POST /v1/conversations", "/v1/conversations", r#"{"id":"gone","kind":"group"}"#, 201, "");
    app.check(delete, "/v1/conversations/gone", "", 202, r#""conversation":"gone","alias":"erased-c"#);
    app.check("GET /v1/erasures/{erasure}", "/v1/erasures/gone", "", 200, r#""conversation":"gone""#);
    let erase = "DELETE /v1/users/{user}";
    app.check(erase, "/v1/users/dan", "", 409, r#""code":"legal_hold""#);
    app.check(&format!("DELETE {operation}"), hold, "", 204, "");
    app.check(&format!("GET {operation}"), hold, "", 404, "not_found");
    app.check(erase, "/v1/users/nobody", "", 404, "not_found");
    app.check(erase, "/v1/users/dan?messages=burn", "", 422, "messages: ");
    let begun = app.check(erase, "/v1/users/dan?messages=keep", "", 202, r#""state":"running""#);
    let id = serde_json::from_str::<serde_json::Value>(&begun).unwrap()["id"].as_str().unwrap().to_owned();
    app.check("GET /v1/erasures", "/v1/erasures?limit=1", "", 200, r#""next":"0."#);
    let one = "GET /v1/erasures/{erasure}";
    app.check(one, &format!("/v1/erasures/{id}"), "", 200, r#""user":"dan","alias":"erased-"#);
    app.check(one, "/v1/erasures/dan", "", 200, &id);
    app.check(one, "/v1/erasures/nobody", "", 404, "not_found");
    app.check("GET /v1/erasures", "/v1/erasures?after=x", "", 422, "after: ");
}

fn bulk_sends_answer(app: &mut Caller) {
    let users = r#"{"users":[{"id":"shop"},{"id":"fan"}]}"#;
    app.check("PUT /v1/users", "/v1/users", users, 200, "");
    let account = r#"{"id":"shop","kind":"official","owner":"alice","members":["fan"]}"#;
    app.check("POST /v1/conversations", "/v1/conversations", account, 201, r#""id":"shop""#);
    let send = r#"{"client_bulk_id":"s1","account":"shop","to":{"users":["fan"]},"message":{"body":1}}"#;
    let operation = "POST /v1/bulk-sends";
    app.check(operation, "/v1/bulk-sends", send, 202, r#""id":1,"client_bulk_id":"s1","account":"shop""#);
    app.check(operation, "/v1/bulk-sends", send, 200, r#""id":1,"#);
    app.check("GET /v1/bulk-sends", "/v1/bulk-sends?limit=1", "", 200, r#"{"bulk_sends":[{"id":1,"#);
    app.check("GET /v1/bulk-sends/{bulk_send}", "/v1/bulk-sends/1", "", 200, r#""examined":"#);
    app.check("DELETE /v1/bulk-sends/{bulk_send}", "/v1/bulk-sends/1", "", 200, r#""ended_at":"#);
}

fn popups_answer(app: &mut Caller) {
    let segment = "/v1/popup-segments/friends";
    let answer = app.http.exchange_text("PUT", segment, "text/plain", b"bob\ncarol\n").unwrap();
    app.called.insert("PUT /v1/popup-segments/{segment}".to_owned());
    assert_eq!(answer.status, 200, "{answer:?}");
    app.check("GET /v1/popup-segments/{segment}", segment, "", 200, r#"{"id":"friends","users":2,"updated_at":"#);
    app.check("GET /v1/popup-segments", "/v1/popup-segments", "", 200, r#"{"segments":[{"id":"friends","users":2"#);
    let operation = "GET /v1/popup-segments/{segment}/users/{user}";
    app.check(operation, "/v1/popup-segments/friends/users/bob", "", 204, "");
    app.check(operation, "/v1/popup-segments/friends/users/alice", "", 404, "alice");

    let settings = r#"{"time_zone":"Europe/Berlin","caps":{"per_day":3}}"#;
    let same = r#"{"time_zone":"Europe/Berlin","caps":{"per_day":3},"holdout_percent":0.0}"#;
    app.check("PUT /v1/popup-settings", "/v1/popup-settings", settings, 200, same);
    app.check("GET /v1/popup-settings", "/v1/popup-settings", "", 200, same);

    let popup = r#"{"state":"live","placements":["home"],"audience":{"segment":"friends"},"caps":{"total":1},
        "variants":[{"id":"a","content":{"title":"Hello"}}]}"#;
    app.check("PUT /v1/popups/{popup}", "/v1/popups/p", popup, 201, r#"{"id":"p","version":1,"#);
    app.check("PUT /v1/popups/{popup}", "/v1/popups/p", popup, 200, r#"{"id":"p","version":2,"#);
    app.check("GET /v1/popups/{popup}", "/v1/popups/p", "", 200, r#""now":"live","spec":{"state":"live""#);
    app.check("GET /v1/popups", "/v1/popups?limit=1", "", 200, r#"{"popups":[{"id":"p","version":2,"#);
    let operation = "PUT /v1/popups/{popup}/state";
    app.check(operation, "/v1/popups/p/state", r#"{"state":"paused"}"#, 200, r#""now":"paused""#);
    app.check(operation, "/v1/popups/p/state", r#"{"state":"live"}"#, 200, r#"{"id":"p","version":4,"#);
    let versions = app.check("GET /v1/popups/{popup}/versions", "/v1/popups/p/versions", "", 200, r#""version":4,"#);
    assert_eq!(versions.matches(r#""updated_at""#).count(), 4, "{versions}");

    let ask = r#"{"user":"bob","placement":"home","attributes":{"country":"DE"}}"#;
    let operation = "POST /v1/popups/explain";
    app.check(operation, "/v1/popups/explain", ask, 200, r#""chosen":"p","popups":[{"popup":"p","version":4,"#);
    let operation = "POST /v1/popups/trigger";
    app.check(operation, "/v1/popups/trigger", ask, 200, r#"{"delivered":false}"#);
    let shown = app.check("POST /v1/popups/decide", "/v1/popups/decide", ask, 200, r#""content":{"title":"Hello"}}"#);
    app.check("POST /v1/popups/decide", "/v1/popups/decide", ask, 204, "");
    let decision = serde_json::from_str::<serde_json::Value>(&shown).unwrap()["decision"].clone();
    let events = format!(r#"{{"events":[{{"id":"e1","type":"click","decision":{decision}}}]}}"#);
    let operation = "POST /v1/popup-events";
    app.check(operation, "/v1/popup-events", &events, 202, r#"{"accepted":1,"duplicates":0}"#);
    app.check(operation, "/v1/popup-events", &events, 202, r#"{"accepted":0,"duplicates":1}"#);
    app.check("GET /v1/popup-events", "/v1/popup-events?popup=p", "", 200, r#""id":"e1","type":"click","popup":"p""#);
    let operation = "GET /v1/popups/{popup}/counts";
    app.check(
        operation,
        "/v1/popups/p/counts",
        "",
        200,
        r#""variant":"a","shown":1,"control":0,"impressions":0,"clicks":1"#,
    );

    let measured = r#"{"state":"live","placements":["start"],"variants":[{"id":"a","content":{}}],
        "conversion":{"event":"bought","within":"7d"}}"#;
    app.check("PUT /v1/popups/{popup}", "/v1/popups/measured", measured, 201, r#""conversion":{"event":"bought""#);
    let ask = r#"{"user":"alice","placement":"start"}"#;
    app.check("POST /v1/popups/decide", "/v1/popups/decide", ask, 200, r#""popup":"measured""#);
    let counted = r#""groups":[{"group":"shown","variant":"a","people":1,"open":1,"converted":0,"rate":0.0"#;
    app.check("GET /v1/popups/{popup}/lift", "/v1/popups/measured/lift", "", 200, counted);
    app.check("GET /v1/popups/{popup}/lift", "/v1/popups/welcome/lift", "", 404, "not_found");
    let operation = "GET /v1/popups/{popup}/assignments";
    let path = "/v1/popups/measured/assignments?format=csv";
    app.check(operation, path, "", 200, ",alice,shown,a,,0,0.0");
    app.check(operation, "/v1/popups/p/assignments", "", 409, "conflict");
    app.check("DELETE /v1/popups/{popup}", "/v1/popups/measured", "", 204, "");

    let welcome = r#"{"state":"live","placements":["home"],"journey":"start","variants":[{"id":"a","content":{}}]}"#;
    app.check("PUT /v1/popups/{popup}", "/v1/popups/welcome", welcome, 201, r#""journey":"start""#);
    let journey = r#"{"state":"live","entry":{"event":"signed_up"},"steps":[
        {"id":"hello","type":"popup","popup":"welcome"},{"id":"tell","type":"push","push":{"body":1}}]}"#;
    let path = "/v1/popup-journeys/start";
    app.check("PUT /v1/popup-journeys/{journey}", path, journey, 201, r#"{"id":"start","version":1,"oldest":1,"#);
    app.check(
        "GET /v1/popup-journeys/{journey}",
        path,
        "",
        200,
        r#""spec":{"state":"live","entry":{"event":"signed_up""#,
    );
    app.check("GET /v1/popup-journeys", "/v1/popup-journeys", "", 200, r#"{"journeys":[{"id":"start","version":1,"#);
    let events = r#"{"events":[{"id":"j1","type":"custom","user":"alice","name":"signed_up"}]}"#;
    app.check("POST /v1/popup-events", "/v1/popup-events", events, 202, r#"{"accepted":1,"duplicates":0}"#);
    let operation = "GET /v1/popup-journeys/{journey}/counts";
    let counts = r#"{"journey":"start","steps":[{"version":1,"step":"hello","reached":1,"left":0}]}"#;
    app.check(operation, "/v1/popup-journeys/start/counts", "", 200, counts);
    app.check("DELETE /v1/popup-journeys/{journey}", path, "", 204, "");
    app.check("DELETE /v1/popups/{popup}", "/v1/popups/welcome", "", 204, "");
    app.check("DELETE /v1/popups/{popup}", "/v1/popups/p", "", 204, "");
    app.check("DELETE /v1/popup-segments/{segment}", segment, "", 204, "");
}

pub(crate) fn described() -> BTreeSet<String> {
    let description = serde_json::to_value(tidings_api::routes::openapi()).unwrap();
    let paths = description["paths"].as_object().unwrap();
    let operations = paths.iter().flat_map(|(path, item)| {
        item.as_object().unwrap().keys().map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    operations.collect()
}

#[test]
fn a_user_token_reaches_its_own_resources() {
    let server = Server::start().with_people();
    let mut bob = server.user("bob");
    let message = r#"{"conversation":"g","body":"hi"}"#;
    let sent = expect_status(&mut bob, "POST", "/v1/messages", message, 200);
    assert!(sent.starts_with(r#"{"conversation":"g","seq":"#), "{sent}");
    assert!(expect_status(&mut bob, "GET", "/v1/users/me/conversations", "", 200).contains(r#""id":"g""#));
    assert!(expect_status(&mut bob, "GET", "/v1/users/bob/conversations", "", 200).contains(r#""id":"g""#));
    assert!(expect_status(&mut bob, "GET", "/v1/users/me", "", 200).contains(r#""id":"bob""#));
    assert!(expect_status(&mut bob, "GET", "/v1/users/alice", "", 200).contains(r#""name":"Alice""#));
    expect_status(&mut bob, "GET", "/v1/users/me/sync", "", 200);
    expect_status(&mut bob, "GET", "/v1/conversations/g/messages", "", 200);
}
