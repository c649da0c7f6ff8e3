//! Mistakes in settings that are well-formed each by itself: some are refused, others cause a warning.

use super::{Settings, component_configs::FAST_PATH_VARIABLE};
use anyhow::{Result, bail};
use std::ffi::OsString;
use tidings_api::auth::{API_KEY_BYTES_MIN, is_unguessable};

/// RFC 7518, section 3.2: a key of HS256 is as long as its hash at least.
const TOKEN_KEY_BYTES_MIN: usize = 32;

/// What `log.level` may hold.
const LEVELS: &str =
    "off, error, warn, info, debug, trace, and parts with a level of their own, such as \"info,tidings_api=debug\"";

impl Settings {
    /// Refuses a filter that would log something else than was meant. `EnvFilter` takes an unknown word for the name of a
    /// module: it would log everything of that module, and nothing of the rest.
    pub(super) fn check_log(&self) -> Result<()> {
        let level = &self.log.level;
        // A filter with span fields has commas and signs of its own and is not checked.
        let is_plain = !level.contains('[');
        let mut directives = level.split(',').map(str::trim).filter(|directive| !directive.is_empty()).peekable();
        if directives.peek().is_none() {
            bail!("log.level is empty: it must be {LEVELS}");
        }
        if let Some(unknown) = directives.find(|directive| is_plain && !is_level(directive)) {
            bail!("log.level: {unknown:?} is not a level; it must be {LEVELS}");
        }
        Ok(())
    }

    /// Refuses addresses that could never be reached, and keys that no caller could send.
    pub(super) fn check_addresses(&self) -> Result<()> {
        let urls = [
            ("webhook.url", &self.webhook.url, "https://app.example.com/offline"),
            ("hook.url", &self.hook.url, "https://app.example.com/hook"),
            ("otlp_endpoint", &self.otlp_endpoint, "http://127.0.0.1:4318"),
        ];
        for (name, url, example) in urls {
            let Some(url) = url else { continue };
            let read = reqwest::Url::parse(url).ok();
            if !read.is_some_and(|url| matches!(url.scheme(), "http" | "https") && url.has_host()) {
                bail!("{name} is not an http:// or https:// address, such as {example}");
            }
        }
        if self.all_api_keys().any(|key| !key.bytes().all(|byte| byte.is_ascii_graphic())) {
            bail!(
                "an API key holds white space, a line end or another character that an Authorization header cannot carry: \
                 letters, digits and signs alone"
            );
        }
        if self.data_dir.as_os_str().is_empty() {
            bail!("data_dir is empty: it must be a folder, such as /var/lib/tidings");
        }
        Ok(())
    }

    /// Refuses variables that name no setting, and values that their setting cannot have. For lists of variables that a user
    /// wrote one by one, such as the lab's `--set`.
    #[cfg(any(feature = "lab", test))]
    pub(crate) fn check_variables(variables: &[(String, String)]) -> Result<()> {
        use anyhow::Context;
        let all = Settings::describe();
        for (name, value) in variables {
            let setting = all.iter().find(|setting| setting.variable() == *name).with_context(|| {
                format!("--set {name}: unknown setting; `tidings serve --help-settings` lists them all")
            })?;
            let set = Settings::default().set_any(setting.table, setting.name, value);
            set.with_context(|| format!("--set {name}"))?;
        }
        Ok(())
    }

    /// The warnings about these settings, one sentence each. None holds a value: it may be a secret.
    pub(crate) fn warnings(&self, variables: impl Iterator<Item = (OsString, OsString)>) -> Vec<String> {
        let mut warnings = unknown_variables(variables, &self.outbox_variables());
        if self.all_api_keys().any(|key| !is_unguessable(&key)) {
            warnings.push(format!(
                "an API key is shorter than {API_KEY_BYTES_MIN} bytes or has few different characters: it can be guessed, and is \
                 refused as well while its caller's address is"
            ));
        }
        let token_key = self.token_key.as_deref().unwrap_or_default();
        if !token_key.is_empty() && token_key.len() < TOKEN_KEY_BYTES_MIN {
            warnings.push(format!(
                "token_key is shorter than {TOKEN_KEY_BYTES_MIN} bytes: anybody who has a token can search for the key"
            ));
        }
        if token_key.trim() != token_key {
            warnings.push(
                "token_key begins or ends with white space: your servers must sign with the white space, too".into(),
            );
        }
        warnings
    }
}

/// `info`, or `tidings_api=debug`.
fn is_level(directive: &str) -> bool {
    let level = directive.rsplit_once('=').map_or(directive, |(_, level)| level).trim();
    !level.is_empty() && level.parse::<tracing::level_filters::LevelFilter>().is_ok()
}

/// Warns of variables that name no setting: most likely misspelt ones, which set nothing. They are not refused, since other
/// programs may use variables with our prefix.
fn unknown_variables(variables: impl Iterator<Item = (OsString, OsString)>, of_outboxes: &[String]) -> Vec<String> {
    let mut known: Vec<String> = Settings::describe().iter().map(|setting| setting.variable()).collect();
    known.extend_from_slice(of_outboxes);
    let mut unknown: Vec<String> = variables
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, value)| name.starts_with("TIDINGS_") && !is_of_kubernetes(name, &value.to_string_lossy()))
        .map(|(name, _)| name)
        .filter(|name| !["TIDINGS_CONFIG", FAST_PATH_VARIABLE].contains(&name.as_str()) && !known.contains(name))
        .map(|name| format!("the variable {name} names no setting; `tidings serve --help-settings` lists them all"))
        .collect();
    unknown.sort();
    unknown
}

/// Kubernetes sets variables in every container for each service: for one named `tidings`, `TIDINGS_SERVICE_HOST`,
/// `TIDINGS_PORT=tcp://…`, `TIDINGS_PORT_8080_TCP` and the like.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    name.contains("_SERVICE_") || name.contains("_PORT_") || name.ends_with("_PORT") && value.contains("://")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warnings(settings: &Settings, variables: &[(&str, &str)]) -> String {
        settings.warnings(variables.iter().map(|(name, value)| (name.into(), value.into()))).join("\n")
    }

    fn refusal(table: &str, name: &str, text: &str) -> Option<String> {
        let mut settings = Settings { api_key: Some("k".into()), token_key: Some("t".into()), ..Settings::default() };
        settings.set_any(table, name, text).expect("a text");
        settings.check().err().map(|why| why.to_string())
    }

    #[test]
    fn an_unknown_log_level_is_refused_with_the_known_ones() {
        for level in ["verbose", "infp", "", " , ", "info,tidings_api", "tidings_api=loud", "tidings_api="] {
            let why = refusal("log", "level", level).expect(level);
            assert!(why.contains("log.level") && why.contains("off, error, warn, info, debug, trace"), "{why}");
        }
        for level in
            ["info", "WARN", "off", "info,tidings_api=debug", "error, hyper=trace", "[request{path=a,b}]=debug"]
        {
            assert_eq!(refusal("log", "level", level), None);
        }
    }

    #[test]
    fn unusable_addresses_and_keys_are_refused() {
        let check = |name: &str, text: &str| {
            refusal(name.split_once('.').map_or("", |(t, _)| t), name.rsplit('.').next().unwrap_or(name), text)
        };
        for url in ["app.example.com/offline", "ftp://app.example.com", "localhost:9000"] {
            assert!(
                check("otlp_endpoint", url).is_some_and(|why| why.contains("such as http://127.0.0.1:4318")),
                "{url}"
            );
            assert!(check("webhook.url", url).is_some_and(|why| why.contains("webhook.url")), "{url}");
        }
        assert!(check("api_key", "the key\n").is_some_and(|why| why.contains("line end") && !why.contains("the key")));
        assert!(check("api_keys", "one,t wo").is_some());
        for core in ["10.0.0.1", "core:port", ":8090", "a:1,b"] {
            assert!(check("link.to", core).is_some_and(|why| why.contains("such as 10.0.0.1:8090")), "{core}");
        }
        assert_eq!(check("link.to", "10.0.0.1:8090, core.internal:8090,[::1]:8090"), None);
        let redis = |url: &str| {
            let mut settings =
                Settings { api_key: Some("k".into()), token_key: Some("t".into()), ..Settings::default() };
            settings.store.url = Some("postgres://db/t".into());
            settings.cluster.secret = Some("s".repeat(16));
            (settings.cluster.name, settings.cluster.redis) = (Some("a".into()), vec![url.into()]);
            settings.check().err().map(|why| why.to_string())
        };
        for url in ["10.0.0.31:6379", "http://:hush@10.0.0.31", "redis://"] {
            assert!(redis(url).is_some_and(|why| why.contains("[cluster] redis") && !why.contains("hush")), "{url}");
        }
        assert_eq!(redis("rediss://user:hush@10.0.0.31:6379"), None);
        for url in ["redis://10.0.0.31/1", "rediss://user:hush@10.0.0.31:6379/0"] {
            assert!(redis(url).is_some_and(|why| why.contains("names a database") && !why.contains("hush")), "{url}");
        }
        let standbys = |url: Option<&str>, standbys: &str| {
            let mut settings =
                Settings { api_key: Some("k".into()), token_key: Some("t".into()), ..Settings::default() };
            settings.store.url = url.map(Into::into);
            settings.set_any("store", "read_url", standbys).unwrap();
            settings.check().err().map(|why| why.to_string())
        };
        let database = Some("postgres://db-1/t");
        assert_eq!(standbys(database, "postgres://u:hush@db-2/t, postgres://u:hush@db-3:5433/t?sslmode=require"), None);
        assert!(standbys(None, "postgres://db-2/t").is_some_and(|why| why.contains("set url")));
        for url in ["db-2", "http://u:hush@db-2/t", "postgres://u:hush@db-2,db-3/t"] {
            let told = standbys(database, url);
            assert!(told.is_some_and(|why| why.contains("[store] read_url") && !why.contains("hush")), "{url}");
        }
        assert!(check("data_dir", "").is_some_and(|why| why.contains("data_dir")));
    }

    #[test]
    fn a_listed_variable_must_name_a_setting_with_a_valid_value() {
        let check = |name: &str, value: &str| Settings::check_variables(&[(name.to_owned(), value.to_owned())]);
        assert!(check("TIDINGS_LOG_LEVEL", "debug").is_ok());
        let told = |name, value| format!("{:#}", check(name, value).expect_err(name));
        assert!(told("TIDINGS_LOG_LEVL", "debug").contains("TIDINGS_LOG_LEVL: unknown setting"));
        assert!(told("TIDINGS_ENGINE_LANE_QUEUE", "many").contains("\"many\" is not a whole number"));
    }

    #[test]
    fn a_misspelt_variable_is_warned_of_without_its_value() {
        let told =
            warnings(&Settings::default(), &[("TIDINGS_API_KYE", "hush"), ("TIDINGS_HTTP_PORT", "80"), ("HOME", "/")]);
        assert!(told.contains("TIDINGS_API_KYE") && told.contains("TIDINGS_HTTP_PORT"), "{told}");
        assert!(!told.contains("hush") && !told.contains("HOME"), "{told}");
    }

    #[test]
    fn known_and_kubernetes_variables_cause_no_warning() {
        let known: Vec<String> = Settings::describe().iter().map(|setting| setting.variable()).collect();
        let mut variables: Vec<(&str, &str)> = known.iter().map(|name| (name.as_str(), "1")).collect();
        variables.extend([
            ("TIDINGS_CONFIG", "/etc/tidings.toml"),
            ("TIDINGS_LAB_FAST_PATH", "off"),
            ("TIDINGS_SERVICE_HOST", "10.0.0.1"),
            ("TIDINGS_SERVICE_PORT_HTTP", "8080"),
            ("TIDINGS_PORT", "tcp://10.0.0.1:8080"),
            ("TIDINGS_PORT_8080_TCP_ADDR", "10.0.0.1"),
        ]);
        assert_eq!(warnings(&Settings::default(), &variables), "");
    }

    #[test]
    fn short_keys_cause_a_warning() {
        let key = |length| Some("0123456789abcdef".repeat(3)[..length].to_owned());
        let short = Settings { api_key: key(15), token_key: key(31), ..Settings::default() };
        assert_eq!(warnings(&short, &[]).lines().count(), 2);
        let long = Settings { api_key: key(16), token_key: key(32), ..Settings::default() };
        assert_eq!(warnings(&long, &[]), "");
        let dull = Settings { api_key: Some("k".repeat(40)), ..long };
        assert_eq!(warnings(&dull, &[]).lines().count(), 1);
    }
}
