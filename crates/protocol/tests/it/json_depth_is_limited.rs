//! The depth of JSON, checked against literal JSON that `serde_json` reads.

use tidings_protocol::{
    depth::{check_depth, is_deeper_than},
    error::ErrorCode,
};

fn nested(levels: usize, open: &str, within: &str, close: &str) -> String {
    open.repeat(levels) + within + &close.repeat(levels)
}

#[test]
fn depth_up_to_the_limit_is_accepted_and_one_more_refused() {
    for (open, within, close) in
        [("[", "", "]"), ("{\"a\":", "1", "}"), ("[{\"[\":[", "\"]\"", "]}]"), (" [ 1 , ", "\"\\\"\"", " ] ")]
    {
        let each = open.bytes().filter(|byte| b"[{".contains(byte)).count() - usize::from(open.contains("\"[\""));
        let at = nested(64 / each, open, within, close);
        let levels = 64 / each * each;
        assert!(!is_deeper_than(at.as_bytes(), levels), "{at}");
        assert!(is_deeper_than(at.as_bytes(), levels - 1), "{at}");
        assert!(serde_json::from_str::<serde_json::Value>(&at).is_ok(), "{at}");
    }
    assert!(check_depth("body", &nested(64, "[", "", "]")).is_ok());
    let refusal = check_depth("body", &nested(65, "[", "", "]"));
    assert!(
        refusal.is_err_and(|refusal| refusal.code == ErrorCode::LimitExceeded && refusal.detail.starts_with("body:"))
    );
}

#[test]
fn strings_and_siblings_do_not_add_depth() {
    let brackets = "[".repeat(20_000);
    for flat in [
        format!("\"{brackets}\""),
        format!("{{\"{brackets}\":\"{{\\\"{brackets}\\\\\"}}"),
        format!("[{}1]", "[],".repeat(20_000)),
        format!("[{}1]", "{\"a\":[]},".repeat(20_000)),
    ] {
        assert!(check_depth("body", &flat).is_ok(), "{}", &flat[..100]);
        assert!(serde_json::from_str::<serde_json::Value>(&flat).is_ok(), "{}", &flat[..100]);
    }
}

#[test]
fn truncated_json_is_judged_by_what_it_opens() {
    assert!(is_deeper_than("[".repeat(20_000).as_bytes(), 64));
    assert!(!is_deeper_than(("[".to_owned() + "\"" + &"[".repeat(100)).as_bytes(), 64));
    assert!(!is_deeper_than(("[".to_owned() + "\"" + &"[".repeat(100) + "\\").as_bytes(), 64));
    assert!(!is_deeper_than(("]".repeat(100) + &"[".repeat(64)).as_bytes(), 64));
}
