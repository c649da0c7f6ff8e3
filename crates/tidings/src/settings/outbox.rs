//! The settings of outboxes: any number of them, each a table `[[outbox_source]]` of the file.

use super::{
    Settings,
    macros::{SettingDescription, settings},
};
use anyhow::{Context, Result, anyhow, bail};
use std::{collections::BTreeSet, path::PathBuf, time::Duration};
use tidings_outbox::{Database, SourceConfig, sql};

/// The table's name in the file.
const TABLE: &str = "outbox_source";
const DAY_S: u64 = 24 * 60 * 60;

settings! {
    /// An outbox in the app's own database.
    OutboxSourceSettings {
        /// Small letters, digits and `_`. What follows is also `TIDINGS_OUTBOX_SOURCE_<NAME>_URL` and so on: the place for passwords and keys.
        name: String = String::new(),
        /// `postgres://user:password@host:5432/database` or `mysql://user:password@host:3306/database`, of MariaDB as well. Encrypted, and the
        /// server's name proven, with `?sslmode=require` or `?require_ssl=true`.
        url: Option<String> = None,
        /// The authorities that sign the database's certificate (PEM). Unset: those that are trusted in general.
        tls_ca_file: Option<PathBuf> = None,
        /// The table, as `tidings outbox-sql` was asked for it.
        table: String = sql::TABLE.into(),
        /// The API key whose scopes rows are held to. Unset: `api_key`, which allows everything.
        api_key: Option<String> = None,
        /// How often MariaDB and MySQL are asked for rows, in milliseconds. PostgreSQL tells of them by itself.
        poll_ms: u64 = 50,
        /// How long rows are kept that were stored or skipped, in days. 0: for ever.
        keep_days: u64 = 7,
    }
}

impl OutboxSourceSettings {
    fn described(&self) -> Vec<SettingDescription> {
        let mut all = Vec::new();
        self.describe_into(TABLE, &mut all);
        all
    }

    /// The part of the sample file, where there is no outbox.
    pub(super) fn sample() -> String {
        let about =
            "An outbox in the app's own database, and another in each further table of this name: docs/outbox.md.";
        // Without a space behind the mark: not to be taken for settings of the table above.
        let mut text = format!("\n# {about}\n#[[{TABLE}]]\n");
        for setting in OutboxSourceSettings::default().described() {
            for line in &setting.doc {
                text.push_str(&format!("## {line}\n"));
            }
            text.push_str(&format!("#{} = {}\n", setting.name, setting.value));
        }
        text
    }

    fn variable(&self, setting: &str) -> String {
        format!("TIDINGS_{TABLE}_{}_{setting}", self.name).to_uppercase()
    }
}

impl Settings {
    /// The variables that set something of the outboxes of the file.
    pub(super) fn outbox_variables(&self) -> Vec<String> {
        let of_source = |source: &OutboxSourceSettings| -> Vec<String> {
            source.described().iter().map(|setting| source.variable(setting.name)).collect()
        };
        self.outbox_source.iter().flat_map(of_source).collect()
    }

    pub(super) fn gather_outbox_sources(&mut self, variable: impl Fn(&str) -> Option<String>) -> Result<()> {
        for source in &mut self.outbox_source {
            for setting in source.described() {
                let name = source.variable(setting.name);
                let Some(text) = variable(&name).filter(|_| setting.name != "name") else { continue };
                let set = source.set(setting.name, &text);
                set.unwrap_or(Ok(())).map_err(|why| anyhow!(why)).context(name)?;
            }
        }
        Ok(())
    }

    pub(super) fn check_outbox_sources(&self) -> Result<()> {
        let mut names = BTreeSet::new();
        for source in &self.outbox_source {
            let name = &source.name;
            if !sql::is_table_name(name) || !names.insert(name) {
                bail!("[[{TABLE}]] name {name:?} must be of small letters, digits and _, and another in each table");
            }
            let url = source.url.as_deref().unwrap_or_default();
            if Database::of_url(url).is_none() {
                bail!(
                    "[[{TABLE}]] {name}: url must begin with postgres:// or mysql:// (or set {})",
                    source.variable("url")
                );
            }
            if !sql::is_table_name(&source.table) {
                bail!("[[{TABLE}]] {name}: table {:?} must be of small letters, digits and _", source.table);
            }
            if source.poll_ms == 0 {
                bail!("[[{TABLE}]] {name}: poll_ms must be at least 1");
            }
        }
        Ok(())
    }

    /// The outboxes to follow. Call after [`Settings::check`].
    pub(crate) fn outbox_sources(&self) -> Vec<SourceConfig> {
        let default_key = self.all_api_keys().next().unwrap_or_default();
        let source = |source: &OutboxSourceSettings| SourceConfig {
            name: source.name.clone(),
            url: source.url.clone().unwrap_or_default(),
            table: source.table.clone(),
            tls_ca_file: source.tls_ca_file.clone(),
            api_key: source.api_key.clone().filter(|key| !key.is_empty()).unwrap_or_else(|| default_key.clone()),
            poll: Duration::from_millis(source.poll_ms),
            keep: Duration::from_secs(source.keep_days.saturating_mul(DAY_S)),
        };
        self.outbox_source.iter().map(source).collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn gathered(file: &str, variables: &[(&str, &str)]) -> Settings {
        let variable = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, text)| (*text).into());
        Settings::gather(Some(file), variable, &[]).unwrap()
    }

    #[test]
    fn each_outbox_takes_its_secrets_from_variables_of_its_name() {
        let file = "[[outbox_source]]\nname = \"shop\"\nkeep_days = 1\n[[outbox_source]]\nname = \"crm\"\nurl = \"mysql://h/d\"";
        let settings = gathered(file, &[("TIDINGS_OUTBOX_SOURCE_SHOP_URL", "postgres://u:p@h/d")]);
        let [shop, crm] = &settings.outbox_sources()[..] else { panic!("two") };
        assert_eq!((&*shop.url, shop.keep.as_secs()), ("postgres://u:p@h/d", DAY_S));
        assert_eq!((&*crm.url, &*crm.table, crm.keep.as_secs()), ("mysql://h/d", "tidings_outbox", 7 * DAY_S));
        settings.check_outbox_sources().unwrap();
    }

    #[test]
    fn a_wrong_outbox_is_refused_and_its_url_is_not_shown() {
        for (file, why) in [
            ("name = \"Shop\"", "small letters"),
            ("name = \"shop\"", "TIDINGS_OUTBOX_SOURCE_SHOP_URL"),
            ("name = \"shop\"\nurl = \"redis://:hush@h\"", "must begin with"),
            ("name = \"shop\"\nurl = \"mysql://:hush@h/d\"\ntable = \"a-b\"", "small letters"),
        ] {
            let told =
                gathered(&format!("[[outbox_source]]\n{file}"), &[]).check_outbox_sources().unwrap_err().to_string();
            assert!(told.contains(why) && !told.contains("hush"), "{told}");
        }
    }

    #[test]
    fn the_sample_has_an_outbox_that_is_none() {
        let settings = gathered(&Settings::sample(), &[]);
        assert!(settings.outbox_source.is_empty());
        let uncommented = OutboxSourceSettings::sample().replace("\n#", "\n");
        let (_, table) = uncommented.split_once("[[").unwrap();
        assert_eq!(gathered(&format!("[[{table}"), &[]).outbox_source.len(), 1);
    }
}
