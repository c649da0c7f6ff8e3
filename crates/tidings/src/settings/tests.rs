//! The sources of settings and their precedence, and combinations that are refused.
#![allow(clippy::unwrap_used)]
use super::*;

fn gather(file: &str, variables: &[(&str, &str)], flags: &[(&str, &str, &str)]) -> Result<Settings> {
    let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into());
    let flags: Vec<_> = flags.iter().map(|(t, n, v)| ((*t).into(), (*n).into(), (*v).into())).collect();
    Settings::gather(Some(file), variable, &flags)
}

#[test]
fn the_sample_file_has_the_defaults() {
    assert!(toml::from_str::<Settings>(&Settings::sample()).unwrap() == Settings::default());
    let all: String = Settings::sample()
        .lines()
        .map(|line| line.strip_prefix("# ").filter(|l| l.contains(" = ")).unwrap_or(line).to_owned() + "\n")
        .collect();
    let all = all.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n");
    toml::from_str::<Settings>(&all).unwrap_or_else(|error| panic!("with every setting set: {error}\n{all}"));
}

#[test]
fn flags_override_variables_override_the_file_overrides_defaults() {
    let file = "http_threads = 1\n[session]\nheartbeat_ms = 1";
    let variables = [("TIDINGS_SESSION_HEARTBEAT_MS", "2"), ("TIDINGS_HTTP_THREADS", "2")];
    let settings = gather(file, &variables, &[("session", "heartbeat_ms", "3")]).unwrap();
    assert_eq!((settings.session.heartbeat_ms, settings.http_threads), (3, 2));
    assert_eq!(gather(file, &[], &[]).unwrap().session.heartbeat_ms, 1);
    assert_eq!(gather("", &[], &[]).unwrap().session.heartbeat_ms, 30_000);
}

#[test]
fn every_variable_reaches_its_setting() {
    for setting in Settings::describe() {
        let mut settings = Settings::default();
        // A list is shown with brackets and quotes, which a variable does not have.
        let text = setting.value.trim_matches(['"', '[', ']']).to_owned();
        settings.set_any(setting.table, setting.name, &text).unwrap_or_else(|e| panic!("{setting:?}: {e}"));
    }
    let settings = gather("", &[("TIDINGS_API_KEYS", "a, b"), ("TIDINGS_API_KEY", "c")], &[]).unwrap();
    assert_eq!(settings.all_api_keys().collect::<Vec<_>>(), ["c", "a", "b"]);
}

#[test]
fn misspelt_settings_and_wrong_types_are_refused() {
    assert!(gather("http_lisen = \"127.0.0.1:1\"", &[], &[]).is_err());
    assert!(gather("[sessions]\nheartbeat_ms = 1", &[], &[]).is_err());
    assert!(gather("http_threads = \"many\"", &[], &[]).is_err());
    assert!(gather("", &[("TIDINGS_HTTP_LISTEN", "here")], &[]).is_err());
    assert!(gather("", &[], &[("", "http_lisen", "127.0.0.1:1")]).is_err());
}

#[test]
fn a_wrong_value_is_refused_with_what_is_expected_from_any_source() {
    let check = |line: &str, wanted: &str| {
        let (name, text) = line.split_once(" = ").unwrap();
        let (table, name) = name.split_once('.').unwrap_or(("", name));
        let file = if table.is_empty() { line.into() } else { format!("[{table}]\n{name} = {text}") };
        let told = gather(&file, &[], &[]).err().unwrap().to_string();
        assert!(told.contains(wanted) && told.contains("line "), "in the file: {told}");
        let text = text.trim_matches(['"', '[', ']']);
        let flag = gather("", &[], &[(table, name, text)]);
        // A value in the file has a type, a flag is only text: some values are wrong in the file alone.
        if let Err(told) = flag {
            assert!(format!("{told:#}").contains(wanted), "by a flag: {told:#}");
        }
    };
    check("http_listen = \"localhost\"", "\"localhost\" is not an IP address and a port, such as 127.0.0.1:8080");
    check("miop_listen = [\"8081\"]", "\"8081\" is not an IP address and a port, such as 127.0.0.1:8080");
    check("miop_listen = \"127.0.0.1:8081\"", "is not a list: write [\"127.0.0.1:8081\"]");
    check("proxy_protocol_from = [\"10.0.0.0/33\"]", "\"10.0.0.0/33\" is not a network, such as 10.0.0.0/8");
    check("role = \"node\"", "\"node\" is not one of all, api, worker, gateway");
    check("log.format = \"xml\"", "\"xml\" is not one of text, json");
    check("http_threads = -1", "is not a whole number of at least 0");
    check("session.requests_max = 256", "is not a whole number from 0 to 255");
    check("proxy_protocol = \"yes\"", "is not true or false");
    check("api_key = 7", "7 is not a text");
}

#[test]
fn connection_limits_are_lowered_to_the_descriptor_limit() {
    let fitted = |descriptors| {
        let mut settings = Settings::default();
        settings.fit_connections(descriptors);
        (settings.http_connections_max, settings.session.connections_max)
    };
    assert_eq!(fitted(u64::MAX), (20_000, 100_000));
    assert_eq!(fitted(20_000), (1_234, 18_510));
    assert_eq!(fitted(1_256), (250, 750));
    assert_eq!(fitted(10), (1, 1));
}

#[test]
fn a_server_without_keys_does_not_start() {
    let start = |variables: &[(&str, &str)]| gather("", variables, &[]).unwrap().check().is_ok();
    let (api, token) = (("TIDINGS_API_KEY", "k"), ("TIDINGS_TOKEN_KEY", "t"));
    assert!(start(&[api, token]));
    assert!(!start(&[]) && !start(&[api]) && !start(&[token]));
    assert!(!start(&[("TIDINGS_API_KEY", ""), token]));
    assert!(!start(&[api, token, ("TIDINGS_WEBHOOK_URL", "http://127.0.0.1:1")]));
}
