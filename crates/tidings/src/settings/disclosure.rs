//! The settings as operators may see them: each with its source, and no secret.

use super::{Settings, macros::SettingDescription};
use std::collections::HashMap;
use tidings_api::routes::{SettingSource, SettingView};

/// Settings of free text that are no secret. Any other is hidden: a new one is shown once it stands here.
const SHOWN: [&str; 26] = [
    "public_attributes",
    "log.level",
    "cors.origins",
    "tokens.audience",
    "tokens.issuer",
    "tokens.default_scopes",
    "hook.on",
    "hook.closed",
    "link.to",
    "link.name",
    "cluster.name",
    "cluster.redis_prefix",
    "notifications.no_text",
    "notifications.recalled_text",
    "notifications.direct_title",
    "notifications.direct_body",
    "notifications.group_title",
    "notifications.group_body",
    "notifications.official_title",
    "notifications.official_body",
    "apns.topic",
    "huawei.app_id",
    "huawei.category",
    "huawei.badge_class",
    "web_push.public_key",
    "web_push.services",
];
/// Addresses, which may hold a password, or a path that nobody should guess: only scheme and host are shown.
const ADDRESSES: [&str; 12] = [
    "otlp_endpoint",
    "tokens.jwks_url",
    "store.url",
    "store.read_url",
    "cluster.redis",
    "cluster.advertise",
    "webhook.url",
    "hook.url",
    "apns.url",
    "fcm.url",
    "huawei.url",
    "huawei.token_url",
];

/// Where each setting comes from, and what the sources said.
pub(crate) struct Sources {
    by_name: HashMap<String, SettingSource>,
    /// The values before the server changed any, by name.
    loaded: HashMap<String, String>,
}

impl Sources {
    /// The arguments are those of [`Settings::gather`], which has read `settings` from them.
    pub(super) fn find(
        settings: &Settings,
        file: Option<&str>,
        variable: impl Fn(&str) -> Option<String>,
        flags: &[(String, String, String)],
    ) -> Self {
        let file: toml::Table = file.and_then(|text| text.parse().ok()).unwrap_or_default();
        let in_file = |setting: &SettingDescription| match setting.table {
            "" => file.contains_key(setting.name),
            table => {
                file.get(table).and_then(toml::Value::as_table).is_some_and(|table| table.contains_key(setting.name))
            }
        };
        let is_flag = |setting: &SettingDescription| {
            flags.iter().any(|(table, name, _)| table == setting.table && name == setting.name)
        };
        let source = |setting: &SettingDescription| match () {
            () if is_flag(setting) => SettingSource::Flag,
            () if variable(&setting.variable()).is_some() => SettingSource::Environment,
            () if in_file(setting) => SettingSource::File,
            () => SettingSource::Default,
        };
        let all = settings.described();
        Sources {
            by_name: all.iter().map(|setting| (setting.full_name(), source(setting))).collect(),
            loaded: all.iter().map(|setting| (setting.full_name(), setting.value.clone())).collect(),
        }
    }
}

impl Settings {
    /// Every setting as operators may see it. `made_up`: the names of those that development mode has made up.
    pub(crate) fn disclosed(&self, sources: &Sources, made_up: &[&str]) -> Vec<SettingView> {
        let defaults = Settings::describe();
        let view = |(setting, default): (SettingDescription, &SettingDescription)| {
            let name = setting.full_name();
            let is_made_up = made_up.contains(&name.as_str());
            let source = sources.by_name.get(&name).copied().unwrap_or(SettingSource::Default);
            let is_changed = sources.loaded.get(&name).is_some_and(|loaded| *loaded != setting.value);
            let (value, secret) = shown_value(&name, &setting);
            SettingView {
                value,
                secret,
                default: default.is_set.then(|| default.value.clone()),
                source: if is_made_up { SettingSource::Development } else { source },
                adjusted: is_changed && !is_made_up,
                description: setting.doc.join(" "),
                name,
            }
        };
        self.described().into_iter().zip(&defaults).map(view).collect()
    }
}

/// The value that is shown, and whether it is kept back as a secret.
fn shown_value(name: &str, setting: &SettingDescription) -> (Option<String>, bool) {
    let is_empty = ["\"\"", "[]"].contains(&setting.value.as_str());
    if !setting.is_set {
        return (None, false);
    }
    if !setting.is_free_text || is_empty || SHOWN.contains(&name) {
        return (Some(setting.value.clone()), false);
    }
    if ADDRESSES.contains(&name) { (Some(without_credentials(&setting.value)), false) } else { (None, true) }
}

/// The address of a TOML value, or the addresses of a list, each with its scheme and host alone.
fn without_credentials(value: &str) -> String {
    let value = format!("value = {value}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("value"));
    match value {
        Some(toml::Value::String(address)) => format!("{:?}", scheme_and_host(&address)),
        Some(toml::Value::Array(addresses)) => {
            let addresses = addresses.iter().map(|address| scheme_and_host(address.as_str().unwrap_or_default()));
            format!("{:?}", addresses.collect::<Vec<_>>())
        }
        _ => "\"***\"".into(),
    }
}

fn scheme_and_host(address: &str) -> String {
    let Some((scheme, rest)) = address.split_once("://") else { return "***".into() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    // An @ behind a slash may end a password with a slash in it: then nothing tells where the host begins.
    if path.contains('@') {
        return format!("{scheme}://***");
    }
    let (credentials, host) = authority.rsplit_once('@').map_or(("", authority), |(_, host)| ("***@", host));
    let path = if path.len() > 1 { "/***" } else { path };
    format!("{scheme}://{credentials}{host}{path}")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn disclosed(file: &str, variables: &[(&str, &str)], flags: &[(&str, &str, &str)]) -> Vec<SettingView> {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into());
        let flags: Vec<_> = flags.iter().map(|(t, n, v)| ((*t).into(), (*n).into(), (*v).into())).collect();
        let settings = Settings::gather(Some(file), variable, &flags).unwrap();
        settings.disclosed(&Sources::find(&settings, Some(file), variable, &flags), &[])
    }

    fn find<'a>(all: &'a [SettingView], name: &str) -> &'a SettingView {
        all.iter().find(|setting| setting.name == name).unwrap()
    }

    #[test]
    fn each_setting_names_the_source_that_won() {
        let file = "http_threads = 1\n[session]\nheartbeat_ms = 1\nheartbeat_s_min = 7";
        let variables = [("TIDINGS_SESSION_HEARTBEAT_MS", "2"), ("TIDINGS_HTTP_THREADS", "2")];
        let all = disclosed(file, &variables, &[("session", "heartbeat_ms", "3")]);
        let check = |name: &str, value: &str, source: SettingSource| {
            let setting = find(&all, name);
            assert_eq!((setting.value.as_deref(), setting.source), (Some(value), source), "{name}");
        };
        check("session.heartbeat_ms", "3", SettingSource::Flag);
        check("http_threads", "2", SettingSource::Environment);
        check("session.heartbeat_s_min", "7", SettingSource::File);
        check(
            "session.requests_max",
            &find(&all, "session.requests_max").default.clone().unwrap(),
            SettingSource::Default,
        );
    }

    /// Each setting that takes any text is given a text that nobody else has; no answer may hold it but of those that are named as plain.
    #[test]
    fn no_setting_of_free_text_is_shown_unless_it_is_named() {
        let marker = "s3cr3t";
        let mut settings = Settings::default();
        let texts: Vec<SettingDescription> =
            Settings::describe().into_iter().filter(|setting| setting.is_free_text).collect();
        for setting in &texts {
            settings.set_any(setting.table, setting.name, marker).unwrap();
        }
        let sources = Sources::find(&settings, None, |_| None, &[]);
        let shown: Vec<String> = settings
            .disclosed(&sources, &[])
            .into_iter()
            .filter(|view| serde_json::to_string(view).unwrap().contains(marker))
            .map(|view| view.name)
            .collect();
        assert!(shown.iter().all(|name| SHOWN.contains(&name.as_str())), "{shown:?}");
        for name in
            ["api_key", "api_keys", "token_key", "webhook.secret", "hook.secret", "cluster.secret", "link.secret"]
        {
            assert!(texts.iter().any(|setting| setting.full_name() == name) && !SHOWN.contains(&name), "{name}");
        }
    }

    #[test]
    fn every_name_on_the_lists_is_a_setting_of_free_text() {
        let texts: Vec<String> = Settings::describe()
            .iter()
            .filter(|setting| setting.is_free_text)
            .map(SettingDescription::full_name)
            .collect();
        let unknown: Vec<&str> =
            SHOWN.into_iter().chain(ADDRESSES).filter(|name| !texts.contains(&(*name).to_owned())).collect();
        assert!(unknown.is_empty(), "{unknown:?} of {texts:?}");
    }

    #[test]
    fn addresses_are_shown_without_their_credentials_and_paths() {
        for (address, shown) in [
            ("https://hooks.example.com/services/T0/B0/xyz", "https://hooks.example.com/***"),
            ("https://hooks.example.com/", "https://hooks.example.com/"),
            ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
            ("postgres://tidings:pass@a:5432,b:5432/chat?sslmode=require", "postgres://***@a:5432,b:5432/***"),
            ("redis://:pa@ss@10.0.0.1:6379", "redis://***@10.0.0.1:6379"),
            ("redis://:pa/ss@10.0.0.1:6379", "redis://***"),
            ("redis://:pa?ss@10.0.0.1:6379", "redis://***"),
            ("password", "***"),
        ] {
            assert_eq!(scheme_and_host(address), shown, "{address}");
        }
        let all = disclosed("", &[("TIDINGS_CLUSTER_REDIS", "redis://u:p@a:1, redis://b:2")], &[]);
        assert_eq!(find(&all, "cluster.redis").value.as_deref(), Some(r#"["redis://***@a:1", "redis://b:2"]"#));
    }
}
