//! `--junit FILE` leaves a document that servers that run builds read: as Jenkins and GitLab do, test suites with test cases, of which
//! each is well, or has one failure or error with its sentence.

use crate::support::{
    lab::{Bench, FAILED, INVALID, PASSED, THRESHOLD_MISSED, USAGE, command},
    message_server::{Fault, serve},
    trials::trial,
};
use libtest_mimic::Trial;
use roxmltree::{Document, Node};
use std::collections::HashSet;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial!(a_run_that_passes_has_no_failure),
        trial!(what_the_server_failed_is_a_failure_with_its_sentence),
        trial!(a_threshold_that_was_missed_is_a_failure),
        trial!(what_the_lab_missed_is_an_error),
        trial!(each_round_is_a_suite),
        trial!(a_run_that_broke_off_is_an_error),
        trial!(wrong_usage_leaves_no_document),
    ]
}

/// Runs a bench with the fault; returns its exit code and the document.
fn run(fault: Fault, options: &str) -> (i32, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("junit.xml");
    let url = &serve(fault)[0];
    let line = format!(
        "group --url {url} --api-key secret-key --token-key t --members 3 --senders 2 --rate 200 {options} --junit"
    );
    let mut bench = command(&line.replace("FOLDER", &folder.path().display().to_string()));
    bench.arg(&file);
    let ended = Bench::spawn(bench).end();
    (ended.code, std::fs::read_to_string(file).unwrap_or_default())
}

fn children<'a>(node: Node<'a, 'a>, name: &'static str) -> Vec<Node<'a, 'a>> {
    node.children().filter(|child| child.has_tag_name(name)).collect()
}

fn number(node: Node<'_, '_>, name: &str) -> usize {
    node.attribute(name).unwrap_or_else(|| panic!("no {name}")).parse().unwrap()
}

/// A case's name, and the type and text of its failure.
type Case = (String, Option<(String, String)>);

/// Reads the document as Jenkins and GitLab do, and answers for each suite its cases, with what is wrong with each.
fn read(text: &str) -> Vec<Vec<Case>> {
    let document = Document::parse(text).unwrap();
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "testsuites");
    let suites = children(root, "testsuite");
    let all: usize = suites.iter().map(|suite| number(*suite, "tests")).sum();
    assert_eq!(number(root, "tests"), all);
    let read_suite = |suite: Node<'_, '_>| {
        for name in ["name", "timestamp", "time"] {
            assert!(suite.attribute(name).is_some_and(|value| !value.is_empty()), "a suite has no {name}");
        }
        let cases = children(suite, "testcase");
        let (mut names, mut told) = (HashSet::new(), Vec::new());
        for case in &cases {
            let (class, name) = (case.attribute("classname").unwrap(), case.attribute("name").unwrap());
            assert!(names.insert((class.to_owned(), name.to_owned())), "{name} is there twice");
            case.attribute("time").unwrap().parse::<f64>().unwrap();
            let faults: Vec<_> = case.children().filter(Node::is_element).collect();
            let fault = faults.first().map(|fault| {
                let message = fault.attribute("message").unwrap();
                assert_eq!(fault.text(), Some(message), "GitLab shows the text, Jenkins the message");
                assert!(fault.attribute("type").is_some());
                (fault.tag_name().name().to_owned(), message.to_owned())
            });
            assert!(faults.len() < 2, "a case has one fault");
            told.push((name.to_owned(), fault));
        }
        let of =
            |kind: &str| told.iter().filter(|(_, fault)| fault.as_ref().is_some_and(|(name, _)| name == kind)).count();
        let counted =
            (number(suite, "tests"), number(suite, "failures"), number(suite, "errors"), number(suite, "skipped"));
        assert_eq!(counted, (cases.len(), of("failure"), of("error"), 0));
        told
    };
    suites.into_iter().map(read_suite).collect()
}

/// What is wrong in the only suite.
fn faults(text: &str) -> Vec<(String, String)> {
    let suites = read(text);
    assert_eq!(suites.len(), 1);
    suites.into_iter().flatten().filter_map(|(_, fault)| fault).collect()
}

fn a_run_that_passes_has_no_failure() {
    let (code, text) = run(Fault::None, "--duration 250ms --patience 60s --lag-max 60s --threshold max<60000");
    assert_eq!((code, faults(&text)), (PASSED, Vec::new()));
    let names: Vec<String> = read(&text).remove(0).into_iter().map(|(name, _)| name).collect();
    for expected in
        ["the run comes to its end", "deliveries, every receiver", "the lab's own lag", "threshold, max < 60000 ms"]
    {
        assert!(names.iter().any(|name| name.contains(expected)), "{expected} is not among {names:?}");
    }
    assert!(!text.contains("secret-key"), "{text}");
}

fn what_the_server_failed_is_a_failure_with_its_sentence() {
    let (code, text) = run(Fault::DuplicateEntry, "--duration 250ms --patience 60s --lag-max 60s");
    assert_eq!(code, FAILED);
    let faults = faults(&text);
    assert_eq!((faults.len(), &*faults[0].0), (1, "failure"), "{faults:?}");
    assert!(faults[0].1.starts_with("deliveries of group of 3") && faults[0].1.contains("doubled 1"), "{faults:?}");
}

fn a_threshold_that_was_missed_is_a_failure() {
    let (code, text) = run(Fault::None, "--duration 250ms --patience 60s --lag-max 60s --threshold p50<0");
    assert_eq!(code, THRESHOLD_MISSED);
    let faults = faults(&text);
    assert_eq!((faults.len(), &*faults[0].0), (1, "failure"), "{faults:?}");
    assert!(faults[0].1.contains("p50 < 0 ms; measured: "), "{faults:?}");
}

fn what_the_lab_missed_is_an_error() {
    let (code, text) = run(Fault::None, "--duration 250ms --patience 60s --lag-max 0ms");
    assert_eq!(code, INVALID);
    let faults = faults(&text);
    assert_eq!((faults.len(), &*faults[0].0), (1, "error"), "{faults:?}");
    assert!(faults[0].1.contains("say nothing about the server"), "{faults:?}");
}

fn each_round_is_a_suite() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("junit.xml");
    let url = &serve(Fault::None)[0];
    let mut bench = command(&format!(
        "group --url {url} --api-key k --token-key t --members 3 --senders 2 --rate 200 --duration 250ms --patience 60s --lag-max 60s \
         --repeat 2"
    ));
    bench.arg("--report").arg(folder.path().join("rounds")).arg("--junit").arg(&file);
    assert_eq!(Bench::spawn(bench).end().code, PASSED);
    assert_eq!(read(&std::fs::read_to_string(file).unwrap()).len(), 2);
}

fn a_run_that_broke_off_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("junit.xml");
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let mut bench =
        command(&format!("group --url http://127.0.0.1:{port} --api-key k --token-key t --members 3 --junit"));
    bench.arg(&file);
    let ended = Bench::spawn(bench).end();
    assert_eq!(ended.code, FAILED);
    let faults = faults(&std::fs::read_to_string(file).unwrap());
    assert_eq!((faults.len(), &*faults[0].0), (1, "error"), "{faults:?}");
}

fn wrong_usage_leaves_no_document() {
    let (code, text) = run(Fault::None, "--batch 0");
    assert_eq!((code, text.as_str()), (USAGE, ""));
}
