//! The range of each number. With a limit of zero the server would run and refuse everybody; too large a number overflows a
//! timer or takes the machine's memory at the start. Both are refused before anything is opened.

use super::{Settings, macros::SettingDescription};
use anyhow::{Result, bail};
use tidings_domain::store::Orders;
use tidings_protocol::limits::HTTP_BODY_BYTES_MAX;

/// The most that a number with this word in its name may be: `lease_ms`, `age_days_max`.
const BY_UNIT: [(&str, f64); 6] = [
    ("us", 60e6),
    // One and a half times as many milliseconds still fit into 32 bits.
    ("ms", 31.0 * 24.0 * 60.0 * 60e3),
    ("s", 10.0 * 365.0 * 24.0 * 60.0 * 60.0),
    ("minutes", 31.0 * 24.0 * 60.0),
    ("days", 36_500.0),
    ("bytes", (1_u64 << 50) as f64),
];
/// The most of anything that is counted.
const COUNT_MAX: f64 = 1e9;

/// (table, name, least, most) of settings that the rules of [`bounds`] do not fit.
const CUSTOM_RANGES: [(&str, &str, f64, f64); 23] = [
    ("", "unread_bytes_per_user_max", 1.0, (1_u64 << 50) as f64),
    // Long bodies may take three quarters of it, and the longest batch must fit into that.
    ("", "http_body_bytes_max", (HTTP_BODY_BYTES_MAX / 3 * 4 + 4) as f64, (1_u64 << 50) as f64),
    ("", "otlp_sample_ratio", 0.0, 1.0),
    ("", "http_threads", 0.0, 1_024.0),
    ("engine", "shards", 0.0, 1_024.0),
    // The queues' memory is allocated at the start.
    ("engine", "commit_queue", 1.0, 1_048_576.0),
    ("engine", "shard_queue", 1.0, 65_536.0),
    // The server works with zero of these, too.
    ("", "drain_deadline_ms", 0.0, 86_400_000.0),
    ("admission", "descriptors_reserved", 0.0, COUNT_MAX),
    ("session", "flush_interval_us", 0.0, 1e6),
    ("presence", "grace_ms", 0.0, 86_400_000.0),
    ("presence", "watches_max", 0.0, COUNT_MAX),
    ("store", "disk_reserve_bytes", 0.0, (1_u64 << 50) as f64),
    ("store", "orders", 1.0, Orders::MAX as f64),
    ("cluster", "redis_connect_per_second", 1.0, COUNT_MAX),
    ("cluster", "recent_bytes_max", 0.0, (1_u64 << 50) as f64),
    // A burst of so many, refilled at one a minute, is counted in nanoseconds: it fits into 64 bits many times over.
    ("limits", "failures_burst", 1.0, 1e6),
    ("limits", "openings_burst", 1.0, 1e6),
    ("limits", "additions_burst", 1.0, 1e6),
    ("limits", "strangers_burst", 1.0, 1e6),
    ("limits", "devices_burst", 1.0, 1e6),
    ("popups", "durable_within_ms", 10.0, 10_000.0),
    ("popups", "users_max", 1.0, (u32::MAX / 2) as f64),
];

impl Settings {
    /// Refuses numbers that are out of their range.
    pub(super) fn check_ranges(&self) -> Result<()> {
        for setting in self.described().iter().filter(|setting| setting.is_set) {
            let Ok(value) = setting.value.parse::<f64>() else { continue };
            let (least, most) = bounds(setting);
            // Also false for NaN.
            if !(least..=most).contains(&value) {
                bail!("{} is {}: it must be from {least} to {most}", setting.full_name(), setting.value);
            }
        }
        let pairs = [
            ("session.heartbeat_s_min", self.session.heartbeat_s_min, "heartbeat_s_max", self.session.heartbeat_s_max),
            ("webhook.backoff_min_ms", self.webhook.backoff_min_ms, "backoff_max_ms", self.webhook.backoff_max_ms),
            (
                "notifications.backoff_min_ms",
                self.notifications.backoff_min_ms,
                "backoff_max_ms",
                self.notifications.backoff_max_ms,
            ),
        ];
        for (name, least, of_most, most) in pairs {
            if least > most {
                bail!("{name} is {least}, which is above {of_most} ({most})");
            }
        }
        Ok(())
    }
}

/// The range of a setting: from 1 to the maximum of its unit. From 0 if the setting's documentation says what 0 means, and for
/// rates such as `sends_per_second`, where 0 means no limit.
fn bounds(setting: &SettingDescription) -> (f64, f64) {
    if let Some((_, _, least, most)) = CUSTOM_RANGES.iter().find(|own| (own.0, own.1) == (setting.table, setting.name))
    {
        return (*least, *most);
    }
    let says_nought = |line: &&str| line.split(|c: char| !c.is_alphanumeric()).any(|word| word == "0");
    let is_rate = setting.name.split('_').any(|word| word == "per");
    let least = if is_rate || setting.doc.iter().any(says_nought) { 0.0 } else { 1.0 };
    let unit = setting.name.split('_').find_map(|word| BY_UNIT.iter().find(|(unit, _)| *unit == word));
    (least, unit.map_or(COUNT_MAX, |(_, most)| *most))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(table: &str, name: &str, text: &str) -> Option<String> {
        let mut settings = Settings::default();
        settings.set_any(table, name, text).expect("a number");
        settings.check_ranges().err().map(|why| why.to_string())
    }

    #[test]
    fn the_defaults_are_within_their_bounds() {
        assert!(Settings::default().check_ranges().is_ok());
    }

    #[test]
    fn every_custom_range_names_a_setting() {
        let all = Settings::describe();
        for (table, name, least, most) in CUSTOM_RANGES {
            assert!(all.iter().any(|setting| (setting.table, setting.name) == (table, name)), "{table}.{name}");
            assert!(least < most, "{table}.{name}");
        }
    }

    #[test]
    fn a_limit_of_zero_is_refused() {
        let names = [("", "http_reads_max"), ("engine", "lane_queue"), ("session", "heartbeat_ms")];
        for (table, name) in names.into_iter().chain([("webhook", "timeout_ms"), ("retention", "age_days_max")]) {
            let why = refusal(table, name, "0").expect(name);
            assert!(why.contains(name) && why.contains("is 0: it must be from 1 to "), "{why}");
        }
    }

    #[test]
    fn zero_is_accepted_where_it_has_a_meaning() {
        let names = [("", "http_threads"), ("admission", "rate"), ("engine", "sends_per_second")];
        for (table, name) in names.into_iter().chain([("", "otlp_sample_ratio"), ("", "drain_deadline_ms")]) {
            assert_eq!(refusal(table, name, "0"), None);
        }
    }

    #[test]
    fn the_largest_number_of_any_setting_is_refused() {
        for setting in Settings::describe() {
            if setting.value.parse::<f64>().is_err() {
                continue;
            }
            let most = u64::MAX.to_string();
            let mut settings = Settings::default();
            // A setting of a narrower type refuses the number when it is read.
            if settings.set_any(setting.table, setting.name, &most).is_ok() {
                let why = settings.check_ranges().expect_err(&setting.full_name()).to_string();
                assert!(why.contains(&setting.full_name()), "{why}");
            }
        }
        assert!(refusal("", "otlp_sample_ratio", "1.1").is_some() && refusal("", "otlp_sample_ratio", "nan").is_some());
    }

    #[test]
    fn a_minimum_above_its_maximum_is_refused() {
        let why = refusal("webhook", "backoff_min_ms", "300001").expect("above the longest wait");
        assert!(why.contains("backoff_max_ms"), "{why}");
        assert!(refusal("session", "heartbeat_s_max", "9").is_some_and(|why| why.contains("heartbeat_s_min")));
    }
}
