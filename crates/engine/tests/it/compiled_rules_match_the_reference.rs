//! CompiledRule rules and their index agree with a slow and obvious evaluation of the rule as it was written.
// Slow: left out by `make test-quick`.

use proptest::prelude::*;
use serde_json::{json, value::RawValue};
use std::{borrow::Cow, sync::Arc};
use tidings_popups::{
    UserKey,
    rules::{
        AttributeSlots, Attributes, CompiledRule, Predicate, Rule, RuleIndex, Scalar, Segment, Value, Values, bucket,
        compile, parse,
    },
};

/// The input of a rule, in plain terms.
#[derive(Debug, Clone)]
struct Case {
    user: u128,
    request: Vec<(String, Value<'static>)>,
    card: Vec<(String, Value<'static>)>,
    unread_since: Option<u64>,
    now_ms: u64,
}

fn attributes<'a>(pairs: &'a [(String, Value<'static>)]) -> Attributes<'a> {
    pairs.iter().map(|(name, value)| (name.as_str(), value.clone())).collect()
}

/// Segment `s0` has the users with an even key below 50, `s1` the users with a key below 20; there is no other segment.
fn segment(name: &str) -> Option<Arc<Segment>> {
    match name {
        "s0" => Some(Arc::new(Segment::from_unsorted((0..50).rev().filter(|key| key % 2 == 0).collect()))),
        "s1" => Some(Arc::new(Segment::from_unsorted((0..20).collect()))),
        _ => None,
    }
}

// ---- the reference evaluation

impl Case {
    fn value(&self, name: &str) -> Option<&Value<'static>> {
        let (pairs, name) = match name.strip_prefix("user.") {
            Some(name) => (&self.card, name),
            None => (&self.request, name),
        };
        pairs.iter().rev().find(|(own, _)| own == name).map(|(_, value)| value)
    }

    fn holds(&self, rule: &Rule) -> bool {
        match rule {
            Rule::All(rules) => rules.iter().all(|rule| self.holds(rule)),
            Rule::Any(rules) => rules.iter().any(|rule| self.holds(rule)),
            Rule::Not(rule) => !self.holds(rule),
            Rule::Attribute { name, predicate } => self.passes(self.value(name), predicate),
            Rule::Percent { salt, from, to } => {
                let bucket = bucket(UserKey(self.user), salt);
                *from <= bucket && bucket < *to
            }
            Rule::Segment(name) => match name.as_str() {
                "s0" => self.user.is_multiple_of(2) && self.user < 50,
                "s1" => self.user < 20,
                _ => false,
            },
            Rule::UnreadDirect { older_than_s } => match self.unread_since {
                Some(since) => since + older_than_s * 1_000 <= self.now_ms,
                None => false,
            },
            Rule::TimeOfDay { .. } => unreachable!("the time of day is for messages"),
            // Conditions on events are compared in `decisions_match_a_reference_evaluator`.
            Rule::Event { .. } | Rule::PopupEvent { .. } => unreachable!("no rule of this test names events"),
        }
    }

    fn passes(&self, value: Option<&Value>, predicate: &Predicate) -> bool {
        let Some(value) = value else { return *predicate == Predicate::Absent };
        match (predicate, value) {
            (Predicate::Exists, _) => true,
            (Predicate::Absent, _) => false,
            (Predicate::Equals(Scalar::Text(wanted)), Value::Text(text)) => text == wanted,
            (Predicate::NotEquals(Scalar::Text(wanted)), Value::Text(text)) => text != wanted,
            (Predicate::Equals(Scalar::Number(wanted)), Value::Number(number)) => number == wanted,
            (Predicate::NotEquals(Scalar::Number(wanted)), Value::Number(number)) => number != wanted,
            (Predicate::Equals(Scalar::Bool(wanted)), Value::Bool(truth)) => truth == wanted,
            (Predicate::NotEquals(Scalar::Bool(wanted)), Value::Bool(truth)) => truth != wanted,
            (Predicate::Number(comparison, wanted), Value::Number(number)) => {
                comparison.admits(number.partial_cmp(wanted).unwrap())
            }
            (Predicate::In(Values::Texts(wanted)), Value::Text(text)) => wanted.iter().any(|own| own == text),
            (Predicate::NotIn(Values::Texts(wanted)), Value::Text(text)) => wanted.iter().all(|own| own != text),
            (Predicate::In(Values::Numbers(wanted)), Value::Number(number)) => wanted.iter().any(|own| own == number),
            (Predicate::NotIn(Values::Numbers(wanted)), Value::Number(number)) => {
                wanted.iter().all(|own| own != number)
            }
            (Predicate::Contains(part), Value::Text(text)) => text.contains(part.as_str()),
            (Predicate::NotContains(part), Value::Text(text)) => !text.contains(part.as_str()),
            (Predicate::Contains(part), Value::List(items)) => items.iter().any(|item| item == part),
            (Predicate::NotContains(part), Value::List(items)) => items.iter().all(|item| item != part),
            (Predicate::StartsWith(part), Value::Text(text)) => text.starts_with(part.as_str()),
            (Predicate::EndsWith(part), Value::Text(text)) => text.ends_with(part.as_str()),
            (Predicate::Version(comparison, wanted), Value::Text(text)) => tidings_popups::rules::Version::parse(text)
                .is_some_and(|version| comparison.admits(version.precedence(wanted))),
            _ => false,
        }
    }
}

/// Follows a path such as `all[1].not` from a rule; returns the part reached and the rest of the path.
fn follow<'r>(mut rule: &'r Rule, path: &str) -> (&'r Rule, Option<String>) {
    for part in path.split('.').filter(|part| !part.is_empty()) {
        match rule {
            Rule::All(rules) => {
                let index = part.strip_prefix("all[").unwrap().strip_suffix(']').unwrap();
                rule = &rules[index.parse::<usize>().unwrap()];
            }
            _ => return (rule, Some(part.to_owned())),
        }
    }
    (rule, None)
}

// ---- random rules and profiles, of so few values that they often match

const NAMES: [&str; 6] = ["a", "b", "c", "user.a", "user.b", "user.c"];
const TEXTS: [&str; 8] = ["", "x", "xy", "yx", "1", "1.0.0", "1.2", "2.0.0-rc.1"];

fn name() -> impl Strategy<Value = String> {
    prop::sample::select(&NAMES[..]).prop_map(str::to_owned)
}

fn text() -> impl Strategy<Value = String> {
    prop::sample::select(&TEXTS[..]).prop_map(str::to_owned)
}

fn number() -> impl Strategy<Value = f64> {
    prop::sample::select(vec![-1.0, -0.0, 0.0, 1.0, 1.5, 2.0, 1e300])
}

fn test() -> impl Strategy<Value = serde_json::Value> {
    let scalar = prop_oneof![
        text().prop_map(|text| json!(text)),
        number().prop_map(|number| json!(number)),
        any::<bool>().prop_map(|truth| json!(truth)),
    ];
    let values = prop_oneof![
        prop::collection::vec(text(), 1..12).prop_map(|texts| json!(texts)),
        prop::collection::vec(number(), 1..12).prop_map(|numbers| json!(numbers)),
    ];
    let version = prop::sample::select(vec!["0", "1", "1.0.0", "1.2.0", "2.0.0-rc.1", "2.0.0"]);
    let versions = vec!["version_eq", "version_lt", "version_lte", "version_gt", "version_gte"];
    let with = |ops: Vec<&'static str>| prop::sample::select(ops);
    prop_oneof![
        4 => (with(vec!["eq", "ne"]), scalar).prop_map(|(op, value)| json!({"op": op, "value": value})),
        2 => (with(vec!["lt", "lte", "gt", "gte"]), number()).prop_map(|(op, value)| json!({"op": op, "value": value})),
        4 => (with(vec!["in", "not_in"]), values).prop_map(|(op, value)| json!({"op": op, "value": value})),
        2 => (with(vec!["contains", "not_contains", "starts_with", "ends_with"]), text())
            .prop_map(|(op, value)| json!({"op": op, "value": value})),
        2 => (with(versions), version).prop_map(|(op, value)| json!({"op": op, "value": value})),
        1 => with(vec!["exists", "absent"]).prop_map(|op| json!({"op": op})),
    ]
}

/// A rule as JSON, so that the parser is tested too.
fn rule() -> impl Strategy<Value = serde_json::Value> {
    let leaf = prop_oneof![
        6 => (name(), test()).prop_map(|(name, mut test)| {
            test["attribute"] = json!(name);
            test
        }),
        1 => (0u32..10_000, 1u32..10_000).prop_map(|(from, length)| {
            let to = (from + length).min(10_000);
            json!({"percent": {"salt": "s", "from": f64::from(from) / 100.0, "to": f64::from(to) / 100.0}})
        }),
        1 => prop::sample::select(vec!["s0", "s1", "gone"]).prop_map(|name| json!({"segment": name})),
        1 => (0u64..5).prop_map(|age| json!({"unread_direct": {"older_than_s": age}})),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        prop_oneof![
            3 => prop::collection::vec(inner.clone(), 0..6).prop_map(|rules| json!({"all": rules})),
            2 => prop::collection::vec(inner.clone(), 0..6).prop_map(|rules| json!({"any": rules})),
            1 => inner.prop_map(|rule| json!({"not": rule})),
        ]
    })
}

fn case() -> impl Strategy<Value = Case> {
    let value = prop_oneof![
        4 => text().prop_map(|text| Value::Text(Cow::Owned(text))),
        2 => number().prop_map(Value::Number),
        1 => any::<bool>().prop_map(Value::Bool),
        1 => prop::collection::vec(text().prop_map(Cow::Owned), 0..3).prop_map(Value::List),
        1 => Just(Value::Other),
    ];
    // A request that names an attribute of the card does not set that attribute.
    let name = prop::sample::select(vec!["a", "b", "c", "user.a", "other"]).prop_map(str::to_owned);
    let pairs = prop::collection::vec((name, value), 0..6);
    (0..60u128, pairs.clone(), pairs, prop::option::of(0..6_000u64), 0..8_000u64)
        .prop_map(|(user, request, card, unread_since, now_ms)| Case { user, request, card, unread_since, now_ms })
}

fn read(json: &serde_json::Value) -> Rule {
    parse("audience", &RawValue::from_string(json.to_string()).unwrap()).unwrap()
}

/// Calls `question` with the profile of a case.
fn with_profile<T>(
    slots: &AttributeSlots,
    case: &Case,
    question: impl FnOnce(&tidings_popups::rules::Profile) -> T,
) -> T {
    let (request, card) = (attributes(&case.request), attributes(&case.card));
    question(&slots.profile(UserKey(case.user), &request, Some(&card), case.unread_since, case.now_ms))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_compiled_rule_holds_exactly_when_the_reference_does(json in rule(), cases in prop::collection::vec(case(), 1..8)) {
        let rule = read(&json);
        let mut slots = AttributeSlots::default();
        let compiled = compile(&rule, &mut slots, &segment);
        for case in cases {
            let expected = case.holds(&rule);
            prop_assert_eq!(with_profile(&slots, &case, |profile| compiled.holds(profile)), expected, "{:?}", case);

            let why_not = with_profile(&slots, &case, |profile| compiled.why_not(profile));
            prop_assert_eq!(why_not.is_none(), expected);
            if let Some(path) = why_not {
                let (part, rest) = follow(&rule, &path);
                prop_assert!(!case.holds(part), "{} holds: {:?}", path, case);
                match (part, rest.as_deref()) {
                    (Rule::Any(_), Some("any")) | (Rule::Not(_), Some("not")) => {}
                    (Rule::All(_) | Rule::Any(_) | Rule::Not(_), _) => prop_assert!(false, "{} names no condition", path),
                    (_, rest) => prop_assert_eq!(rest, None),
                }
            }
        }
    }

    #[test]
    fn holds_from_is_the_first_time_at_which_the_rule_holds(json in rule(), case in case()) {
        let rule = read(&json);
        let mut slots = AttributeSlots::default();
        let compiled = compile(&rule, &mut slots, &segment);
        let holds_from = with_profile(&slots, &case, |profile| compiled.holds_from(profile, profile.now_ms));
        // Ages are below 5 s and begin before 6 s, so nothing changes after 12 s.
        let first = (case.now_ms..12_000).find(|now_ms| Case { now_ms: *now_ms, ..case.clone() }.holds(&rule));
        prop_assert_eq!(holds_from, first);
    }

    #[test]
    fn candidates_are_an_ascending_superset_of_the_rules_that_hold(
        jsons in prop::collection::vec(prop::option::weighted(0.9, rule()), 0..40),
        cases in prop::collection::vec(case(), 1..6),
    ) {
        let mut slots = AttributeSlots::default();
        let rules: Vec<Option<Rule>> = jsons.iter().map(|json| json.as_ref().map(read)).collect();
        let compiled: Vec<Option<CompiledRule>> =
            rules.iter().map(|rule| rule.as_ref().map(|rule| compile(rule, &mut slots, &segment))).collect();
        let index = RuleIndex::build(compiled.iter().map(Option::as_ref));
        let mut out = vec![7];
        for case in cases {
            with_profile(&slots, &case, |profile| index.candidates(profile, &mut out));
            prop_assert!(out.is_sorted_by(|left, right| left < right), "{:?}", out);
            for (rank, rule) in rules.iter().enumerate() {
                if rule.as_ref().is_none_or(|rule| case.holds(rule)) {
                    prop_assert!(out.contains(&(rank as u32)), "{} of {:?}", rank, out);
                }
            }
        }
    }
}

#[test]
fn every_operator_accepts_matching_values_and_no_other_type_or_absence() {
    // An operator with its value; attributes that pass; attributes of the right type that fail; attributes of other types.
    let cases = [
        (json!({"op": "eq", "value": "DE"}), json!(["DE"]), json!(["de", "", "DE "]), json!([1, true, ["DE"]])),
        (json!({"op": "eq", "value": 1}), json!([1, 1.0]), json!([2, -1]), json!(["1", true, ["1"]])),
        (json!({"op": "eq", "value": 0}), json!([0, -0.0]), json!([1e-9]), json!(["", false])),
        (json!({"op": "eq", "value": true}), json!([true]), json!([false]), json!(["true", 1])),
        (json!({"op": "ne", "value": "DE"}), json!(["de", ""]), json!(["DE"]), json!([1, true, ["x"]])),
        (json!({"op": "ne", "value": 1}), json!([2]), json!([1, 1.0]), json!(["2", true])),
        (json!({"op": "ne", "value": true}), json!([false]), json!([true]), json!(["false", 0])),
        (json!({"op": "lt", "value": 2}), json!([1.9, -5]), json!([2, 3]), json!(["1", false])),
        (json!({"op": "lte", "value": 2}), json!([1.9, 2]), json!([2.1]), json!(["1", false])),
        (json!({"op": "gt", "value": 2}), json!([2.1, 1e300]), json!([2, 1]), json!(["3", true])),
        (json!({"op": "gte", "value": 2}), json!([2, 3]), json!([1.9]), json!(["3", true])),
        (json!({"op": "in", "value": ["a", "b"]}), json!(["a", "b"]), json!(["c", ""]), json!([1, true, ["a"]])),
        (json!({"op": "in", "value": [1, 2]}), json!([1, 2.0]), json!([3]), json!(["1", true])),
        (json!({"op": "not_in", "value": ["a", "b"]}), json!(["c", ""]), json!(["a", "b"]), json!([1, true, ["c"]])),
        (json!({"op": "not_in", "value": [1, 2]}), json!([3]), json!([1, 2.0]), json!(["3", true])),
        (
            json!({"op": "contains", "value": "b"}),
            json!(["abc", ["a", "b"]]),
            json!(["ac", ["abc"], []]),
            json!([1, true]),
        ),
        (
            json!({"op": "not_contains", "value": "b"}),
            json!(["ac", ["abc"], []]),
            json!(["abc", ["b"]]),
            json!([1, true]),
        ),
        (json!({"op": "starts_with", "value": "ab"}), json!(["ab", "abc"]), json!(["a", "cab"]), json!([1, ["ab"]])),
        (json!({"op": "ends_with", "value": "ab"}), json!(["ab", "cab"]), json!(["b", "abc"]), json!([1, ["ab"]])),
        (
            json!({"op": "version_eq", "value": "4.2"}),
            json!(["4.2", "4.2.0+7", "v4.2", "4.2.0.0"]),
            json!(["4.2.1", "4.2.0-rc", "4.2.0.1"]),
            json!([4.2, "x4.2", "4.2.0.0.0"]),
        ),
        (
            json!({"op": "version_lt", "value": "4.2"}),
            json!(["4.1.9", "4.2.0-rc"]),
            json!(["4.2", "4.10"]),
            json!([4.1, "x", [""]]),
        ),
        (
            json!({"op": "version_lte", "value": "4.2"}),
            json!(["4.2.0", "4"]),
            json!(["4.2.1", "4.10"]),
            json!([4.1, ""]),
        ),
        (
            json!({"op": "version_gt", "value": "4.2"}),
            json!(["4.2.1", "4.10", "v4.2.1.9", "4.2.0.1"]),
            json!(["4.2", "4"]),
            json!([5, "latest"]),
        ),
        (
            json!({"op": "version_gte", "value": "4.2"}),
            json!(["4.2", "10"]),
            json!(["4.2.0-rc", "4"]),
            json!([5, "01.0.0"]),
        ),
    ];
    let holds = |test: &serde_json::Value, of_request: &serde_json::Value| {
        let mut test = test.clone();
        test["attribute"] = json!("a");
        let mut slots = AttributeSlots::default();
        let compiled = compile(&read(&test), &mut slots, &segment);
        let text = of_request.to_string();
        let request: Attributes = serde_json::from_str(&text).unwrap();
        compiled.holds(&slots.profile(UserKey(1), &request, None, None, 0))
    };
    for (test, passing, failing, others) in cases {
        for (values, expected) in [(&passing, true), (&failing, false), (&others, false)] {
            for value in values.as_array().unwrap() {
                assert_eq!(holds(&test, &json!({"a": value})), expected, "{test} of {value}");
            }
        }
        for absent in [json!({}), json!({"a": null}), json!({"b": "DE"})] {
            assert!(!holds(&test, &absent), "{test} of {absent}");
        }
    }
    for (attributes, exists) in
        [(json!({"a": 0}), true), (json!({"a": []}), true), (json!({"a": null}), false), (json!({}), false)]
    {
        assert_eq!(holds(&json!({"op": "exists"}), &attributes), exists, "{attributes}");
        assert_eq!(holds(&json!({"op": "absent"}), &attributes), !exists, "{attributes}");
    }
}

#[test]
fn a_request_cannot_set_attributes_of_the_card() {
    let mut slots = AttributeSlots::default();
    let rule = read(&json!({"attribute": "user.plan", "op": "eq", "value": "gold"}));
    let compiled = compile(&rule, &mut slots, &segment);
    assert!(compiled.needs_profile() && !compiled.needs_unread());
    let says_gold: Attributes = serde_json::from_str(r#"{"user.plan": "gold", "plan": "gold"}"#).unwrap();
    let holds =
        |card: Option<Attributes>| compiled.holds(&slots.profile(UserKey(1), &says_gold, card.as_ref(), None, 0));
    assert!(!holds(None));
    assert!(!holds(Some(Attributes::of_profile(r#"{"user.plan": "gold"}"#))));
    assert!(holds(Some(Attributes::of_profile(r#"{"plan": "gold", "nested": {"any": [{"json": null}]}}"#))));
}

#[test]
fn why_not_names_the_first_failing_condition_in_text_order() {
    let dear = json!({"segment": "s1"});
    let cheap = json!({"attribute": "a", "op": "eq", "value": 1});
    let why_not = |rule: serde_json::Value| {
        let mut slots = AttributeSlots::default();
        let compiled = compile(&read(&rule), &mut slots, &segment);
        compiled.why_not(&slots.profile(UserKey(33), &Attributes::default(), None, None, 0))
    };
    assert_eq!(why_not(json!({"all": []})), None);
    assert_eq!(why_not(dear.clone()).as_deref(), Some(""));
    assert_eq!(why_not(json!({"any": [cheap, dear]})).as_deref(), Some("any"));
    assert_eq!(why_not(json!({"not": {"not": dear}})).as_deref(), Some("not"));
    assert_eq!(why_not(json!({"all": [{"all": []}, dear, cheap]})).as_deref(), Some("all[1]"));
    assert_eq!(
        why_not(json!({"all": [{"all": [{"not": cheap}, {"any": [dear]}]}, cheap]})).as_deref(),
        Some("all[0].all[1].any")
    );
}

#[test]
fn an_index_returns_few_candidates_beyond_the_rules_that_hold() {
    let mut slots = AttributeSlots::default();
    let mut compiled = |rule| compile(&read(&rule), &mut slots, &segment);
    let eq = |name: &str, value: serde_json::Value| json!({"attribute": name, "op": "eq", "value": value});
    let rules: Vec<CompiledRule> = vec![
        compiled(json!({"segment": "s0"})),
        compiled(json!({"all": [eq("country", json!("DE")), eq("vip", json!(true))]})),
        compiled(json!({"all": [{"attribute": "country", "op": "in", "value": ["AT", "DE"]}, {"segment": "s0"}]})),
        compiled(json!({"any": [eq("country", json!("FR")), {"all": [eq("vip", json!(true))]}]})),
        compiled(json!({"any": [eq("country", json!("FR")), {"segment": "s0"}]})),
        compiled(json!({"any": []})),
        compiled(json!({"not": eq("country", json!("DE"))})),
        compiled(eq("age", json!(30))),
    ];
    // The sixth rule can never hold; the last popup has no rule and is for everybody.
    let index = RuleIndex::build(rules.iter().map(Some).chain([None]));
    let candidates = |attributes: &str| {
        let request: Attributes = serde_json::from_str(attributes).unwrap();
        let mut out = Vec::new();
        index.candidates(&slots.profile(UserKey(1), &request, None, None, 0), &mut out);
        out
    };
    assert_eq!(candidates("{}"), [0, 4, 6, 8]);
    assert_eq!(candidates(r#"{"country": "DE"}"#), [0, 1, 2, 4, 6, 8]);
    assert_eq!(candidates(r#"{"country": "AT", "vip": true}"#), [0, 2, 3, 4, 6, 8]);
    assert_eq!(candidates(r#"{"country": "FR", "vip": true, "age": 30}"#), [0, 3, 4, 6, 7, 8]);
}
