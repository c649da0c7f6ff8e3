//! Invalid rules and attributes are refused with the path of the wrong part.

use serde_json::value::RawValue;
use tidings_popups::rules::{Attributes, Rule, Value, parse};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    limits::{
        ATTRIBUTE_LIST_MAX, ATTRIBUTE_VALUE_BYTES_MAX, DECIDE_ATTRIBUTES_MAX, RULE_CONDITIONS_MAX, RULE_DEPTH_MAX,
        RULE_VALUES_MAX,
    },
};

fn read(json: &str) -> Result<Rule, Refusal> {
    parse("audience", &RawValue::from_string(json.to_owned()).unwrap())
}

/// Asserts that the rule is refused with a detail that begins like this.
fn refused(json: &str, detail: &str) {
    let shown = &json[..json.len().min(200)];
    let refusal = read(json).map(|_| ()).expect_err(shown);
    assert_eq!(refusal.code, ErrorCode::InvalidField, "{shown}");
    assert!(refusal.detail.starts_with(detail), "{shown}\nis refused with {}\nexpected {detail}", refusal.detail);
    assert!(refusal.detail.len() < 1_000, "{shown}: {} bytes", refusal.detail.len());
}

#[test]
fn text_that_is_no_rule_is_refused_with_the_path_of_the_fault() {
    let cases = [
        // Forms.
        (r#"{}"#, "audience: a rule has exactly one of: all, any"),
        (r#"[]"#, "audience: must be an object"),
        (r#""all""#, "audience: must be an object"),
        (r#"null"#, "audience: must be an object"),
        (r#"{"every": []}"#, r#"audience: unknown name "every"; known are all, any"#),
        (r#"{"all": [], "any": []}"#, "audience: a rule has exactly one of"),
        (r#"{"all": [], "all": []}"#, r#"audience: "all" appears twice"#),
        (r#"{"all": [], "note": "x"}"#, r#"audience: unknown name "note""#),
        (r#"{"all": {}}"#, "audience.all: must be a list of rules"),
        (r#"{"all": null}"#, "audience.all: must be a list of rules"),
        (r#"{"any": [{"all": []}, 7]}"#, "audience.any[1]: must be an object"),
        (r#"{"not": []}"#, "audience.not: must be an object"),
        (r#"{"not": {"not": {"not": {}}}}"#, "audience.not.not.not: a rule has exactly one of"),
        // Attributes.
        (r#"{"attribute": "a"}"#, "audience.op: is missing"),
        (r#"{"attribute": "a", "op": "eq"}"#, "audience.value: is missing"),
        (r#"{"attribute": "", "op": "exists"}"#, "audience.attribute: must have 1 to 64 bytes, has 0"),
        (r#"{"attribute": 7, "op": "exists"}"#, "audience.attribute: must be a string"),
        (r#"{"attribute": "user.", "op": "exists"}"#, "audience.attribute: names no attribute"),
        (r#"{"attribute": "a", "op": "exists", "value": null}"#, "audience.value: exists takes no value"),
        (r#"{"attribute": "a", "op": "absent", "value": 1}"#, "audience.value: absent takes no value"),
        (r#"{"attribute": "a", "op": 1, "value": 1}"#, "audience.op: must be a string"),
        (
            r#"{"attribute": "a", "op": "eq", "value": 1, "values": 1}"#,
            r#"audience: unknown name "values"; known are attribute, op, value"#,
        ),
        (r#"{"attribute": "a", "op": "eq", "value": 1, "all": []}"#, r#"audience: unknown name "all""#),
        (r#"{"attribute": "a", "op": "eq", "op": "ne", "value": 1}"#, r#"audience: "op" appears twice"#),
        (
            r#"{"all": [{"all": []}, {"all": []}, {"attribute": "a", "op": "equals", "value": 1}]}"#,
            r#"audience.all[2].op: unknown operator "equals"; known are eq, ne"#,
        ),
        (
            r#"{"any": [{"attribute": "a", "op": "eq", "value": []}]}"#,
            "audience.any[0].value: must be a string, a number or a boolean",
        ),
        (r#"{"attribute": "a", "op": "ne", "value": null}"#, "audience.value: must be a string, a number or a boolean"),
        (r#"{"attribute": "a", "op": "eq", "value": {}}"#, "audience.value: must be a string, a number or a boolean"),
        (r#"{"attribute": "a", "op": "lt", "value": "1"}"#, "audience.value: must be a number"),
        (r#"{"attribute": "a", "op": "gte", "value": true}"#, "audience.value: must be a number"),
        (r#"{"attribute": "a", "op": "gte", "value": null}"#, "audience.value: must be a number"),
        (r#"{"attribute": "a", "op": "gt", "value": 1e999}"#, "audience.value: must be a number"),
        (r#"{"attribute": "a", "op": "eq", "value": -1e999}"#, "audience.value: must be a number"),
        (
            r#"{"attribute": "a", "op": "in", "value": "DE"}"#,
            "audience.value: must be a list of strings, or of numbers",
        ),
        (
            r#"{"attribute": "a", "op": "in", "value": []}"#,
            "audience.value: must be a list of strings, or of numbers; not empty",
        ),
        (r#"{"attribute": "a", "op": "in", "value": ["DE", 1]}"#, "audience.value[1]: must be a string"),
        (r#"{"attribute": "a", "op": "not_in", "value": [1, 2, "x"]}"#, "audience.value[2]: must be a number"),
        (r#"{"attribute": "a", "op": "in", "value": [true]}"#, "audience.value[0]: must be a number"),
        (r#"{"attribute": "a", "op": "in", "value": [["x"]]}"#, "audience.value[0]: must be a number"),
        (r#"{"attribute": "a", "op": "contains", "value": ["x"]}"#, "audience.value: must be a string"),
        (r#"{"attribute": "a", "op": "starts_with", "value": 1}"#, "audience.value: must be a string"),
        (r#"{"attribute": "a", "op": "version_gte", "value": 4.2}"#, "audience.value: must be a string"),
        (
            r#"{"attribute": "a", "op": "version_gte", "value": "x4"}"#,
            r#"audience.value: "x4" is not a semantic version"#,
        ),
        (r#"{"attribute": "a", "op": "version_lt", "value": "1.2.3.4.5"}"#, r#"audience.value: "1.2.3.4.5" is not"#),
        // Percentages.
        (r#"{"percent": 10}"#, "audience.percent: must be an object"),
        (r#"{"percent": {"from": 0, "to": 1}}"#, "audience.percent.salt: is missing"),
        (r#"{"percent": {"salt": "", "from": 0, "to": 1}}"#, "audience.percent.salt: must have 1 to 64 bytes"),
        (r#"{"percent": {"salt": "s", "to": 1}}"#, "audience.percent.from: is missing"),
        (r#"{"percent": {"salt": "s", "from": 0}}"#, "audience.percent.to: is missing"),
        (r#"{"percent": {"salt": "s", "from": -0.01, "to": 1}}"#, "audience.percent.from: must be from 0 to 100"),
        (r#"{"percent": {"salt": "s", "from": 0, "to": 100.01}}"#, "audience.percent.to: must be from 0 to 100"),
        (
            r#"{"percent": {"salt": "s", "from": 0, "to": 0.001}}"#,
            "audience.percent.to: must be from 0 to 100, with at most two",
        ),
        (
            r#"{"percent": {"salt": "s", "from": 0, "to": 33.333}}"#,
            "audience.percent.to: must be from 0 to 100, with at most two",
        ),
        (r#"{"percent": {"salt": "s", "from": 50, "to": 50}}"#, "audience.percent.to: must be above from"),
        (r#"{"percent": {"salt": "s", "from": 50, "to": 10}}"#, "audience.percent.to: must be above from"),
        (r#"{"percent": {"salt": "s", "from": 0, "to": 1, "by": 1}}"#, r#"audience.percent: unknown name "by""#),
        (r#"{"percent": {"salt": "s", "from": "0", "to": 1}}"#, "audience.percent.from: must be a number"),
        (r#"{"percent": {"salt": "s", "from": 0, "to": null}}"#, "audience.percent.to: must be a number"),
        // Segments and unread messages.
        (r#"{"segment": ""}"#, "audience.segment: must have 1 to 64 bytes"),
        (r#"{"segment": {"id": "x"}}"#, "audience.segment: must be a string"),
        (r#"{"unread_direct": 600}"#, "audience.unread_direct: must be an object"),
        (r#"{"unread_direct": {}}"#, "audience.unread_direct.older_than_s: is missing"),
        (r#"{"unread_direct": {"older_than_s": -1}}"#, "audience.unread_direct.older_than_s: must be a whole number"),
        (r#"{"unread_direct": {"older_than_s": 1.5}}"#, "audience.unread_direct.older_than_s: must be a whole number"),
        (r#"{"unread_direct": {"older_than_s": 1e30}}"#, "audience.unread_direct.older_than_s: must be a whole number"),
        (r#"{"unread_direct": {"older_than_s": 600, "x": 1}}"#, r#"audience.unread_direct: unknown name "x""#),
    ];
    for (json, detail) in cases {
        refused(json, detail);
    }
}

#[test]
fn rules_beyond_a_limit_are_refused_with_the_path_of_the_fault() {
    let name = "n".repeat(65);
    refused(&format!(r#"{{"segment": "{name}"}}"#), "audience.segment: must have 1 to 64 bytes, has 65");
    refused(&format!(r#"{{"attribute": "{name}", "op": "exists"}}"#), "audience.attribute: must have 1 to 64 bytes");
    refused(&format!(r#"{{"{}": 1}}"#, "ü".repeat(100_000)), "audience: unknown name \"üü");
    refused(
        &format!(r#"{{"attribute": "a", "op": "{}", "value": 1}}"#, "x".repeat(100_000)),
        "audience.op: unknown operator \"xx",
    );
    let text = "x".repeat(ATTRIBUTE_VALUE_BYTES_MAX + 1);
    refused(
        &format!(r#"{{"attribute": "a", "op": "eq", "value": "{text}"}}"#),
        "audience.value: may have at most 1024 bytes, has 1025",
    );

    let values =
        |count: usize| format!(r#"{{"attribute": "a", "op": "in", "value": [{}]}}"#, vec!["1"; count].join(","));
    assert!(read(&values(RULE_VALUES_MAX)).is_ok());
    refused(&values(RULE_VALUES_MAX + 1), "audience.value: may hold at most 10000 values, got 10001");

    for condition in [r#"{"segment": "s"}"#, r#"{"attribute": "a", "op": "exists"}"#, r#"{"all": []}"#] {
        let rule = |count: usize| format!(r#"{{"any": [{}]}}"#, vec![condition; count].join(","));
        assert!(read(&rule(RULE_CONDITIONS_MAX)).is_ok());
        refused(&rule(RULE_CONDITIONS_MAX + 1), "audience.any[500]");
    }
}

#[test]
fn a_rule_nested_too_deep_is_refused_at_any_depth() {
    let nots =
        |depth: usize| format!(r#"{}{{"segment": "s"}}{}"#, r#"{"not":"#.repeat(depth - 1), "}".repeat(depth - 1));
    let alls =
        |depth: usize| format!(r#"{}{{"segment": "s"}}{}"#, r#"{"all":["#.repeat(depth - 1), "]}".repeat(depth - 1));
    assert!(read(&nots(RULE_DEPTH_MAX)).is_ok());
    assert!(read(&alls(RULE_DEPTH_MAX)).is_ok());
    for depth in [RULE_DEPTH_MAX + 1, 200, 1_000, 1_000_000] {
        let path = format!("audience{}: rules may be nested at most 16 deep", ".not".repeat(RULE_DEPTH_MAX));
        refused(&nots(depth), &path);
        let path = format!("audience{}: rules may be nested at most 16 deep", ".all[0]".repeat(RULE_DEPTH_MAX));
        refused(&alls(depth), &path);
    }
    let lists = format!("{}{}", "[".repeat(1_000_000), "]".repeat(1_000_000));
    refused(&lists, "audience: must be an object");
    refused(&format!(r#"{{"attribute": "a", "op": "in", "value": {lists}}}"#), "audience.value[0]: must be a number");
    refused(&format!(r#"{{"attribute": "a", "op": "eq", "value": {lists}}}"#), "audience.value: must be");
}

#[test]
fn valid_rules_are_parsed() {
    let percent =
        |from: &str, to: &str| read(&format!(r#"{{"percent": {{"salt": "s", "from": {from}, "to": {to}}}}}"#));
    let expected = |from, to| Rule::Percent { salt: "s".to_owned(), from, to };
    assert_eq!(percent("0", "100").unwrap(), expected(0, 10_000));
    assert_eq!(percent("0.00", "1e1").unwrap(), expected(0, 1_000));
    for hundredths in 0..10_000u32 {
        let from = format!("{}.{:02}", hundredths / 100, hundredths % 100);
        assert_eq!(percent(&from, "100").unwrap(), expected(hundredths, 10_000), "{from}");
    }
    let rule = read(
        r#" { "all" : [ {"segment": "b"}, {"not": {"segment": "a"}}, {"any": [{"segment": "\u0062"}, {"segment": "c"}]} ] } "#,
    );
    assert_eq!(rule.unwrap().segments(), ["a", "b", "c"]);
}

#[test]
fn attributes_are_parsed_without_copying() {
    let text = r#"{"text": "plain", "escaped": "a\nb", "number": 7, "less": -1.5, "yes": true, "list": ["a", "\u0062"],
                   "none": null, "twice": 1, "twice": "2", "gone": 1, "gone": null, "back": null, "back": 1}"#;
    let attributes: Attributes = serde_json::from_str(text).unwrap();
    let is_text = |name: &str, expected: &str, copied: bool| match attributes.get(name) {
        Some(Value::Text(text)) => {
            assert_eq!((text.as_ref(), matches!(text, std::borrow::Cow::Owned(_))), (expected, copied), "{name}")
        }
        other => panic!("{name}: {other:?}"),
    };
    is_text("text", "plain", false);
    is_text("escaped", "a\nb", true);
    is_text("twice", "2", false);
    assert_eq!(attributes.get("number"), Some(&Value::Number(7.0)));
    assert_eq!(attributes.get("less"), Some(&Value::Number(-1.5)));
    assert_eq!(attributes.get("yes"), Some(&Value::Bool(true)));
    assert_eq!(attributes.get("list"), Some(&Value::List(vec!["a".into(), "b".into()])));
    assert_eq!(attributes.get("back"), Some(&Value::Number(1.0)));
    assert_eq!([attributes.get("none"), attributes.get("gone"), attributes.get("other")], [None; 3]);
}

#[test]
fn attributes_of_a_wrong_type_are_refused_by_name() {
    let long = "x".repeat(ATTRIBUTE_VALUE_BYTES_MAX + 1);
    let items = |count: usize| format!(r#"{{"a": [{}]}}"#, vec![r#""x""#; count].join(","));
    let cases = [
        (r#"{"b": 1, "a": {}}"#.to_owned(), "an attribute is a string"),
        (r#"{"a": {"b": 1}}"#.to_owned(), "an attribute is a string"),
        (r#"{"a": [1]}"#.to_owned(), "a list may hold strings only"),
        (r#"{"a": ["x", null]}"#.to_owned(), "a list may hold strings only"),
        (r#"{"a": [["x"]]}"#.to_owned(), "a list may hold strings only"),
        (r#"{"a": [{"x": 1}]}"#.to_owned(), "a list may hold strings only"),
        (format!(r#"{{"a": "{long}"}}"#), "a string may have at most 1024 bytes, this has 1025"),
        (format!(r#"{{"a": ["{long}"]}}"#), "a string may have at most 1024 bytes, this has 1025"),
        (items(ATTRIBUTE_LIST_MAX + 1), "a list may hold at most 1000 strings"),
    ];
    for (json, why) in cases {
        let error = serde_json::from_str::<Attributes>(&json).unwrap_err();
        assert!(error.is_data() && error.to_string().starts_with(&format!(r#"attribute "a": {why}"#)), "{error}");
        let map = serde_json::from_str(&json).unwrap();
        let refusal = Attributes::from_json("attributes", &map).unwrap_err();
        assert!(refusal.detail.starts_with(&format!("attributes.a: {why}")), "{refusal}");
        // A user's profile may hold such a value: the attribute exists, but compares with nothing.
        assert_eq!(Attributes::of_profile(&json).get("a"), Some(&Value::Other));
    }
    assert!(serde_json::from_str::<Attributes>(&items(ATTRIBUTE_LIST_MAX)).is_ok());

    let many = |count: usize| {
        let pairs: Vec<String> = (0..count).map(|n| format!(r#""n{n}": {n}"#)).collect();
        format!("{{{}}}", pairs.join(","))
    };
    assert!(serde_json::from_str::<Attributes>(&many(DECIDE_ATTRIBUTES_MAX)).is_ok());
    let error = serde_json::from_str::<Attributes>(&many(DECIDE_ATTRIBUTES_MAX + 1)).unwrap_err();
    assert!(error.to_string().starts_with("there may be at most 200 attributes"), "{error}");
    let map = serde_json::from_str(&many(DECIDE_ATTRIBUTES_MAX + 1)).unwrap();
    let refusal = Attributes::from_json("event.properties", &map).unwrap_err();
    assert_eq!(refusal.detail, "event.properties: there may be at most 200 attributes, got 201");
    // Invalid JSON is refused as such, without naming an attribute.
    assert!(serde_json::from_str::<Attributes>(r#"{"a": "#).unwrap_err().is_eof());
    assert!(serde_json::from_str::<Attributes>(r#"{"a": tru}"#).unwrap_err().is_syntax());
    // 1e999 is beyond the range of numbers that can be compared.
    assert!(serde_json::from_str::<Attributes>(r#"{"a": 1e999}"#).is_err());
}
