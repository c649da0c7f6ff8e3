//! Mistakes in settings that each look well-formed: those that are refused, and those that are warned of.

use super::Settings;
use anyhow::{Result, bail};
use std::ffi::OsString;

/// RFC 7518, section 3.2: a key of HS256 is as long as its hash at least.
const TOKEN_KEY_BYTES_MIN: usize = 32;
/// Whoever guesses an API key may do everything.
const API_KEY_BYTES_MIN: usize = 16;

impl Settings {
    /// Refuses a bound that leaves room for nothing: the server would run and refuse everybody.
    pub(super) fn check_zeros(&self) -> Result<()> {
        let bounds = [
            ("http_reads_max", self.http_reads_max),
            ("admission.unbound_max", self.admission.unbound_max),
            ("engine.commit_queue", self.engine.commit_queue),
            ("engine.lane_queue", self.engine.lane_queue),
            ("session.buffer_bytes", self.session.buffer_bytes),
            ("session.requests_max", self.session.requests_max.into()),
            ("session.reads_max", self.session.reads_max),
        ];
        match bounds.iter().find(|(_, bound)| *bound == 0) {
            Some((name, _)) => bail!("{name} is 0: there would be room for nothing"),
            None if self.session.heartbeat_ms == 0 => {
                bail!("session.heartbeat_ms is 0: every session would end at once")
            }
            None => Ok(()),
        }
    }

    /// What to warn of, one sentence each. They never hold a value: it may be a secret.
    pub(crate) fn doubts(&self, variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
        let mut doubts = unknown_variables(variables);
        if self.all_api_keys().any(|key| key.len() < API_KEY_BYTES_MIN) {
            doubts.push(format!("an API key is shorter than {API_KEY_BYTES_MIN} bytes: it can be guessed"));
        }
        let token_key = self.token_key.as_deref().unwrap_or_default();
        if !token_key.is_empty() && token_key.len() < TOKEN_KEY_BYTES_MIN {
            doubts.push(format!(
                "token_key is shorter than {TOKEN_KEY_BYTES_MIN} bytes: who has a token can search for it"
            ));
        }
        doubts
    }
}

/// A variable that is misspelt sets nothing. It is no reason to refuse: others may have set it for their own use.
fn unknown_variables(variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
    let known: Vec<String> = Settings::describe().iter().map(|setting| setting.variable()).collect();
    let mut unknown: Vec<String> = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, value)| name.starts_with("TIDINGS_") && !is_of_kubernetes(name, &value.to_string_lossy()))
        .map(|(name, _)| name)
        .filter(|name| name != "TIDINGS_CONFIG" && !known.contains(name))
        .map(|name| format!("the variable {name} is of no setting; `tidings serve --help` lists them all"))
        .collect();
    unknown.sort();
    unknown
}

/// Kubernetes tells every container of the services around it: of one named `tidings` by `TIDINGS_SERVICE_HOST`,
/// `TIDINGS_PORT=tcp://…`, `TIDINGS_PORT_8080_TCP` and the like.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    name.contains("_SERVICE_") || name.contains("_PORT_") || name.ends_with("_PORT") && value.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn doubts(settings: &Settings, variables: &[(&str, &str)]) -> String {
        settings.doubts(variables.iter().map(|(name, value)| (name.into(), value.into()))).join("\n")
    }

    #[test]
    fn a_bound_without_room_is_refused() {
        assert!(Settings::default().check_zeros().is_ok());
        for (table, name) in [("", "http_reads_max"), ("engine", "lane_queue"), ("session", "heartbeat_ms")] {
            let mut settings = Settings::default();
            settings.set_any(table, name, "0").expect("a number");
            let why = settings.check_zeros().expect_err(name).to_string();
            assert!(why.contains(name) && why.contains("is 0"), "{why}");
        }
    }

    #[test]
    fn a_misspelt_variable_is_named_without_its_value() {
        let told =
            doubts(&Settings::default(), &[("TIDINGS_API_KYE", "hush"), ("TIDINGS_HTTP_PORT", "80"), ("HOME", "/")]);
        assert!(told.contains("TIDINGS_API_KYE") && told.contains("TIDINGS_HTTP_PORT"), "{told}");
        assert!(!told.contains("hush") && !told.contains("HOME"), "{told}");
    }

    #[test]
    fn variables_of_settings_and_of_kubernetes_are_no_mistake() {
        let known: Vec<String> = Settings::describe().iter().map(|setting| setting.variable()).collect();
        let mut variables: Vec<(&str, &str)> = known.iter().map(|name| (name.as_str(), "1")).collect();
        variables.extend([
            ("TIDINGS_CONFIG", "/etc/tidings.toml"),
            ("TIDINGS_SERVICE_HOST", "10.0.0.1"),
            ("TIDINGS_SERVICE_PORT_HTTP", "8080"),
            ("TIDINGS_PORT", "tcp://10.0.0.1:8080"),
            ("TIDINGS_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ]);
        assert_eq!(doubts(&Settings::default(), &variables), "");
    }

    #[test]
    fn short_keys_are_doubted() {
        let key = |length| Some("k".repeat(length));
        let short = Settings { api_key: key(15), token_key: key(31), ..Settings::default() };
        assert_eq!(doubts(&short, &[]).lines().count(), 2);
        let long = Settings { api_key: key(16), token_key: key(32), ..Settings::default() };
        assert_eq!(doubts(&long, &[]), "");
    }
}
