//! JSON at which some clients' parsers fail is refused with the field's path, wherever it would be stored.

use crate::support::*;

#[test]
fn halves_of_characters_and_numbers_out_of_range_are_refused_everywhere() {
    let server = Server::start().with_people();
    let mut app = server.app();
    expect_status(&mut app, "POST", "/v1/messages", r#"{"conversation":"g","from":"alice","body":1}"#, 200);
    let message = r#"{"conversation":"g","from":"alice","body":JSON}"#;
    let batch = r#"{"messages":[{"conversation":"g","from":"alice","body":1},{"conversation":"g","from":"alice","body":JSON}]}"#;
    let stream = r#"{"conversation":"g","from":"alice","body":{"text":"a","more":JSON}}"#;
    let popup = r#"{"state":"live","placements":["home"],"variants":[{"id":"a","content":{"title":"t","data":JSON}}]}"#;
    let event = r#"{"events":[{"id":"1","type":"custom","name":"n","user":"bob","properties":{"p":JSON}}]}"#;
    let rule = r#"{"state":"live","placements":["home"],"variants":[],"audience":{"attribute":"a","eq":JSON}}"#;
    let decide = r#"{"user":"bob","placement":"home","attributes":{"p":JSON}}"#;
    let bulk = r#"{"account":"news","to":{"users":["bob"]},"message":{"body":JSON}}"#;
    let chunk = r#"{"offset":0,"text":JSON}"#;
    for (method, path, body, field) in [
        ("POST", "/v1/messages", message, "body"),
        ("POST", "/v1/messages/batch", batch, "messages[1].body"),
        ("PATCH", "/v1/conversations/g/messages/1", r#"{"body":JSON}"#, "body"),
        ("POST", "/v1/streams", stream, "body.more"),
        ("POST", "/v1/streams/g/1", chunk, "text"),
        ("POST", "/v1/streams/g/1/end", r#"{"body":JSON}"#, "body"),
        ("POST", "/v1/push", r#"{"to":{"all":true},"body":JSON}"#, "body"),
        ("PUT", "/v1/users", r#"{"users":[{"id":"bob","attributes":{"a":JSON}}]}"#, "users[0].attributes.a"),
        ("POST", "/v1/conversations", r#"{"kind":"group","id":"n","attributes":{"a":[JSON]}}"#, "attributes.a[0]"),
        ("PATCH", "/v1/conversations/g", r#"{"attributes":{"a":JSON}}"#, "attributes.a"),
        ("PUT", "/v1/popups/p", popup, "variants[0].content.data"),
        ("PUT", "/v1/popups/p", rule, "audience.eq"),
        ("POST", "/v1/popup-events", event, "events[0].properties.p"),
        ("POST", "/v1/popups/decide", decide, "attributes.p"),
        ("POST", "/v1/bulk-sends", bulk, "message.body"),
        ("POST", "/v1/notifications/explain", r#"{"user":"bob","conversation":"g","body":JSON}"#, "body"),
    ] {
        for (json, why) in [
            (r#""\ud83d""#, r"holds \ud83d, half of a surrogate pair, which is not a character"),
            ("1e400", "holds a number beyond the range of 64-bit floating point; send it as a string"),
            ("-1e400", "holds a number beyond the range of 64-bit floating point; send it as a string"),
        ] {
            let body = body.replace("JSON", json);
            check_refused(&mut app, method, path, &body, "invalid_field", &format!("{field}: {why}"));
        }
    }
    let history = expect_status(&mut app, "GET", "/v1/conversations/g/messages", "", 200);
    assert_eq!(history.matches("\"seq\":").count(), 1, "nothing of it is stored: {history}");
    let whole =
        r#"{"conversation":"g","from":"alice","body":["\ud83d\ude00","1e400",1e308,12345678901234567890,"\u0000"]}"#;
    expect_status(&mut app, "POST", "/v1/messages", whole, 200);
    let history = expect_status(&mut app, "GET", "/v1/conversations/g/messages", "", 200);
    assert!(
        history.contains(r#"["\ud83d\ude00","1e400",1e308,12345678901234567890,"\u0000"]"#),
        "as it was sent: {history}"
    );
}
