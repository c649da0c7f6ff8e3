//! The users of a run: their attributes follow from their number, so that a million users take no memory in the client.

use crate::client_engine::http::put_number;

/// The number of different sets of attributes; each user always has the same one.
const PROFILES: usize = 4096;

pub(crate) const COUNTRIES: [&str; 12] = ["DE", "AT", "CH", "FR", "ES", "IT", "PL", "NL", "GB", "US", "BR", "JP"];
pub(crate) const PLANS: [&str; 3] = ["free", "plus", "pro"];
pub(crate) const LANGUAGES: [&str; 6] = ["de", "fr", "es", "it", "en", "pt"];
pub(crate) const PLATFORMS: [&str; 3] = ["ios", "android", "web"];
pub(crate) const TAGS: [&str; 6] = ["new", "sale", "loyal", "dormant", "beta", "family"];

/// A stable hash of a number.
pub(crate) fn hash(number: u64) -> u64 {
    // The finalizer of SplitMix64.
    let mut hash = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    hash ^ (hash >> 31)
}

#[derive(Debug)]
pub(crate) struct UserProfiles {
    /// The prefix of user ids, before the number.
    tag: String,
    /// The ends of requests: `,"attributes":{…}}`.
    profiles: Vec<Vec<u8>>,
}

impl UserProfiles {
    pub(crate) fn new(tag: &str) -> Self {
        UserProfiles { tag: tag.to_owned(), profiles: (0..PROFILES as u64).map(profile).collect() }
    }

    pub(crate) fn id(&self, user: u32) -> String {
        format!("{}{user}", self.tag)
    }

    /// Appends the body of a request for a decision: which popup to show this user at this placement.
    pub(crate) fn put_decide_request(&self, out: &mut Vec<u8>, user: u32, placement: &str) {
        self.put_decide_request_in_session(out, user, placement, u64::from(user));
    }

    pub(crate) fn put_decide_request_in_session(&self, out: &mut Vec<u8>, user: u32, placement: &str, session: u64) {
        out.extend_from_slice(br#"{"user":""#);
        out.extend_from_slice(self.tag.as_bytes());
        put_number(out, u64::from(user));
        out.extend_from_slice(br#"","placement":""#);
        out.extend_from_slice(placement.as_bytes());
        out.extend_from_slice(br#"","session":"s"#);
        put_number(out, session);
        out.push(b'"');
        out.extend_from_slice(&self.profiles[hash(u64::from(user)) as usize % PROFILES]);
    }
}

fn profile(number: u64) -> Vec<u8> {
    let seed = hash(number ^ 0x5eed);
    let pick = |shift: u32, of: usize| (hash(seed >> shift) as usize) % of;
    // Half of the users are from the first three countries, and most have the free plan.
    let country = if pick(1, 2) == 0 { pick(2, 3) } else { pick(3, COUNTRIES.len()) };
    let plan = [0, 0, 0, 0, 0, 0, 0, 1, 1, 2][pick(4, 10)];
    let text = serde_json::json!({
        "country": COUNTRIES[country], "plan": PLANS[plan], "language": LANGUAGES[pick(5, LANGUAGES.len())],
        "platform": PLATFORMS[pick(6, PLATFORMS.len())], "age": 18 + pick(7, 60), "orders": pick(8, 20),
        "app_version": format!("{}.{}.{}", 3 + pick(9, 3), pick(10, 12), pick(11, 5)),
        "tags": [TAGS[pick(12, TAGS.len())], TAGS[pick(13, TAGS.len())]],
    });
    format!(r#","attributes":{text}}}"#).into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidings_protocol::http::DecideRequest;

    #[test]
    fn a_decide_request_is_valid_by_the_protocol() {
        let profiles = UserProfiles::new("u");
        for user in [0, 1, 77, 999_999] {
            let mut body = Vec::new();
            profiles.put_decide_request(&mut body, user, "home");
            let request: DecideRequest = serde_json::from_slice(&body).unwrap();
            assert_eq!(request.user.as_deref(), Some(profiles.id(user).as_str()));
            assert_eq!((request.placement.as_str(), request.attributes.len()), ("home", 8));
            assert!((180..320).contains(&body.len()), "{}", body.len());
        }
    }
}
