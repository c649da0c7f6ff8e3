//! Fingerprints of what all nodes of a cluster must have alike.

use super::Settings;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use tidings_domain::{installation::InstallationId, node_settings::*};

impl Settings {
    /// By the setting's name. No value can be read from them.
    pub(crate) fn fingerprints(&self, installation: InstallationId) -> Result<BTreeMap<String, String>> {
        // The order of keys and rules does not matter.
        let sorted = |values: &mut dyn Iterator<Item = String>| {
            let mut values: Vec<String> = values.collect();
            values.sort();
            values.dedup();
            values
        };
        let tokens = &self.tokens;
        let key_set = self
            .jwks_file
            .as_ref()
            .map(|file| std::fs::read_to_string(file).with_context(|| format!("reading {}", file.display())));
        let token_keys = (self.token_key.as_deref(), key_set.transpose()?, tokens.jwks_url.as_deref());
        let [audience, issuer, scopes] = [&tokens.audience, &tokens.issuer, &tokens.default_scopes]
            .map(|values| sorted(&mut values.iter().cloned()));
        let values = [
            (INSTALLATION, serde_json::json!(installation.to_string())),
            (REDIS_PREFIX, serde_json::json!(self.cluster.redis_prefix)),
            (CLUSTER_SECRET, serde_json::json!(self.cluster.secret)),
            (API_KEYS, serde_json::json!(sorted(&mut self.all_api_keys()))),
            (TOKEN_KEYS, serde_json::json!(token_keys)),
            (TOKEN_RULES, serde_json::json!([audience, issuer, scopes, [tokens.lifetime_s_max.to_string()]])),
        ];
        let fingerprint = |(setting, value): (SharedSetting, serde_json::Value)| {
            (setting.name.to_owned(), installation.fingerprint(setting.name, value.to_string().as_bytes()))
        };
        Ok(values.map(fingerprint).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_with_the_same_keys_in_another_order_have_one_fingerprint() {
        let keys = |keys: &[&str]| {
            let api_keys = keys.iter().map(|key| (*key).to_owned()).collect();
            let settings = Settings { api_keys, ..Settings::default() };
            settings.fingerprints(InstallationId(1)).unwrap()
        };
        let both = keys(&["the-first-key-of-16-bytes", "the-second-key-of-16-bytes"]);
        assert_eq!(both, keys(&["the-second-key-of-16-bytes", "the-first-key-of-16-bytes"]));
        let one = keys(&["the-first-key-of-16-bytes"]);
        let differ: Vec<&String> = both.keys().filter(|name| both[*name] != one[*name]).collect();
        assert_eq!(differ, [API_KEYS.name]);
        assert!(both.values().all(|fingerprint| fingerprint.len() == 4));
    }
}
