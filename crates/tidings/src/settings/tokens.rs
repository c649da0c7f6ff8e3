//! The settings of user tokens, and of how often users may do things.

use super::{Settings, macros::settings};
use anyhow::{Context, Result, bail};
use ipnet::IpNet;
use tidings_api::auth::TokenRules;
use tidings_domain::user_limiter::PerMinute;
use tidings_engine::{
    access::{Scope, Scopes},
    config::LimitsConfig,
};
use tidings_listen::throttle::ThrottleConfig;
use tidings_popups::PopupsConfig;
use tidings_push::PushConfig;

settings! {
    /// What user tokens must claim, beside `sub` and `exp`. The keys that they are signed with are `token_key`, `jwks_file` and
    /// `jwks_url`.
    TokenSettings {
        /// `aud` of a token must name one of these. Empty: `aud` is not checked.
        audience: Vec<String> = Vec::new(),
        /// `iss` of a token must be one of these. Empty: `iss` is not checked.
        issuer: Vec<String> = Vec::new(),
        /// A token whose `exp` lies further ahead than this many seconds is refused. The default is a year.
        lifetime_s_max: u64 = TokenRules::default().lifetime_s_max,
        /// The scopes of a token without `scope`, or with words of other services alone: of read, send, open_direct, open_group, presence, popups, push.
        default_scopes: Vec<String> = Scope::ALL.iter().map(Scope::to_string).collect(),
        /// An address with the public keys of user tokens (a JWKS with RS256, ES256, EdDSA keys), fetched now and again.
        jwks_url: Option<String> = None,
        /// How often the keys are fetched, in seconds. A token with an unknown key has them fetched at once, but no more than every 10 s.
        jwks_refresh_s: u64 = 300,
    }
}

settings! {
    /// How often users may do things by token. App servers are not limited. A count of 0: no limit.
    Limits {
        /// Failed authentications of one address in a minute (IPv6: of one /64). Above: refused with `rate_limited`.
        failures_per_minute: u32 = ThrottleConfig::default().per_minute,
        /// Failed authentications of one address at once, after a quiet time.
        failures_burst: u32 = ThrottleConfig::default().burst,
        /// Networks whose failures are not counted, such as `127.0.0.0/8`: of proxies that do not pass on their clients' addresses.
        failures_exempt: Vec<IpNet> = Vec::new(),
        /// Conversations that one user may open in a minute.
        openings_per_minute: u32 = LimitsConfig::default().openings.count,
        /// Conversations that one user may open at once, after a quiet time.
        openings_burst: u32 = LimitsConfig::default().openings.burst,
        /// Members that one user may add in a minute.
        additions_per_minute: u32 = LimitsConfig::default().additions.count,
        /// Members that one user may add at once, after a quiet time.
        additions_burst: u32 = LimitsConfig::default().additions.burst,
        /// Times that strangers may draw one user into conversations in a minute. A stranger is a user who has no direct
        /// conversation with that user.
        strangers_per_minute: u32 = LimitsConfig::default().strangers.count,
        /// Times that strangers may draw one user into conversations at once, after a quiet time.
        strangers_burst: u32 = LimitsConfig::default().strangers.burst,
        /// Groups of one user. Above: other users cannot add the user to further groups.
        groups_per_user_max: usize = LimitsConfig::default().groups_per_user,
        /// New devices that one user may bind for pushes in a minute.
        devices_per_minute: u32 = PushConfig::default().new_devices.count,
        /// New devices that one user may bind for pushes at once, after a quiet time.
        devices_burst: u32 = PushConfig::default().new_devices.burst,
        /// Popup events that one user may report in a minute. One with properties counts once more for each whole KiB of them.
        popup_events_per_minute: u32 = PopupsConfig::default().events_per_user.count,
        /// Popup events that one user may report at once, after a quiet time.
        popup_events_burst: u32 = PopupsConfig::default().events_per_user.burst,
    }
}

impl Settings {
    pub(crate) fn token_rules(&self) -> Result<TokenRules> {
        let tokens = &self.tokens;
        let scopes = tokens.default_scopes.iter().map(|word| word.parse());
        let scopes: Result<Vec<Scope>, _> = scopes.collect();
        Ok(TokenRules {
            audience: tokens.audience.clone(),
            issuer: tokens.issuer.clone(),
            lifetime_s_max: tokens.lifetime_s_max,
            default_scopes: scopes.context("[tokens] default_scopes")?.into_iter().fold(Scopes::NONE, Scopes::with),
        })
    }

    pub(crate) fn check_tokens(&self) -> Result<()> {
        self.token_rules()?;
        if self.tokens.lifetime_s_max == 0 {
            bail!("[tokens] lifetime_s_max is 0: no token could be valid");
        }
        match &self.tokens.jwks_url {
            Some(url) if !url.starts_with("https://") && !url.starts_with("http://") => {
                bail!("[tokens] jwks_url is neither an http nor an https address")
            }
            _ => Ok(()),
        }
    }

    pub(crate) fn throttle_config(&self) -> ThrottleConfig {
        let Limits { failures_per_minute, failures_burst, failures_exempt, .. } = &self.limits;
        ThrottleConfig { per_minute: *failures_per_minute, burst: *failures_burst, exempt: failures_exempt.clone() }
    }

    pub(crate) fn new_devices(&self) -> PerMinute {
        PerMinute { count: self.limits.devices_per_minute, burst: self.limits.devices_burst }
    }

    pub(crate) fn popup_events(&self) -> PerMinute {
        PerMinute { count: self.limits.popup_events_per_minute, burst: self.limits.popup_events_burst }
    }

    pub(crate) fn limits_config(&self) -> LimitsConfig {
        let limits = &self.limits;
        let per_minute = |count, burst| PerMinute { count, burst };
        LimitsConfig {
            openings: per_minute(limits.openings_per_minute, limits.openings_burst),
            additions: per_minute(limits.additions_per_minute, limits.additions_burst),
            strangers: per_minute(limits.strangers_per_minute, limits.strangers_burst),
            groups_per_user: limits.groups_per_user_max,
        }
    }
}
