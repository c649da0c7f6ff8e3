//! The JSON frames of the WebSocket protocol. Each is an object whose `t` names its kind.
//!
//! A client binds first; every later request may carry a `ref`, which its answer repeats. The server reads clients' frames
//! strictly, as it reads HTTP bodies ([`crate::json`]); clients ignore fields and frames that they do not know.

mod client;
mod raw_client;
mod read_server;
mod server;

pub use client::*;
pub use raw_client::*;
pub use server::*;

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_client_reads_every_frame_that_a_server_writes() {
        let entry = r#"{"conversation":"c","seq":1,"kind":"message","at":5,"type":"text","body":{"a":[1, 2]}}"#;
        for text in [
            r#"{"t":"bound","session":"s","user":"u","heartbeat_ms":1,"cursor":"1.0.0.0","resume":{"complete":true}}"#,
            &format!(r#"{{"t":"messages","cursor":"1.0.1.0","entries":[{entry}]}}"#),
            r#"{"t":"sent","results":[{"ref":1,"conversation":"c","seq":1,"at":5}]}"#,
            r#"{"t":"read","conversation":"c","user":"u","seq":1}"#,
            r#"{"t":"ok","ref":1}"#,
            r#"{"t":"receipts","conversation":"c","marks":[{"user":"u","read_seq":5,"delivered_seq":7}]}"#,
            r#"{"t":"receipts","conversation":"c","moved":[{"what":"read","from_seq":4,"to_seq":5,"count":2}]}"#,
            &format!(
                r#"{{"t":"history","conversation":"c","entries":[{entry}],"next":"n2","previous":"p0","more":true,"conversation_first_seq":1,"conversation_last_seq":2,"first_seq":1,"last_seq":2}}"#
            ),
            &format!(
                r#"{{"t":"conversations","ref":1,"conversations":[{{"id":"c","kind":"group","role":"owner","last_seq":1,"last_at":5,"read_seq":0,"unread":1,"mentions":0,"muted":false,"last_entry":{entry}}}],"next":"1-2"}}"#
            ),
            &format!(
                r#"{{"t":"conversation","conversation":{{"id":"c","kind":"direct","role":"member","last_seq":1,"last_at":5,"read_seq":0,"unread":1,"mentions":0,"muted":false,"pinned_at":7,"archived":true,"title":"mine","cleared_seq":1,"last_message":{entry}}}}}"#
            ),
            r#"{"t":"receipts","ref":1,"conversation":"c","marks":[{"user":"u"}]}"#,
            r#"{"t":"unread","ref":1,"unread":2,"mentions":1,"conversations":1,"lines":[{"conversation":"c","unread":2,"mentions":1}]}"#,
            r#"{"t":"user","user":{"id":"u","name":"U"}}"#,
            r#"{"t":"typing","conversation":"c","user":"u"}"#,
            r#"{"t":"stream","conversation":"c","seq":1,"offset":5,"text":"é"}"#,
            r#"{"t":"appended","ref":1,"offset":7}"#,
            r#"{"t":"membership","conversation":"c","member":true}"#,
            r#"{"t":"pong"}"#,
            r#"{"t":"error","code":"queue_full","message":"m","retry":true,"retry_after_ms":5}"#,
            r#"{"t":"reconnect","after_ms":5}"#,
            r#"{"t":"presence","ref":1,"changes":[{"user":"u","online":false,"active":false,"last_seen":5}]}"#,
            r#"{"t":"popup","ref":1,"retry_after_ms":5}"#,
            r#"{"t":"popup","show":{"decision":"d","popup":"p","variant":"a","content":{"data":{"a":[1, 2]}}}}"#,
            r#"{"t":"push","push":7,"expires_at":5,"type":"text","body":null}"#,
            r#"{"t":"push","push":7,"expires_at":5,"collapse_key":"k","high":true,"type":"text","body":{"a":[1, 2]}}"#,
        ] {
            let frame: ServerFrame = serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"));
            assert_eq!(serde_json::to_string(&frame).unwrap(), *text);
        }
        assert!(serde_json::from_str::<ServerFrame>(r#"{"t":"ok"}"#).is_err());
    }
}
