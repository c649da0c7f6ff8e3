//! The users of a run: who they are follows from their number, so that a million of them take no memory here.

use super::wire::put_number;

/// Different sets of attributes; a user has one of them for good.
const PROFILES: usize = 4096;

pub(crate) const COUNTRIES: [&str; 12] = ["DE", "AT", "CH", "FR", "ES", "IT", "PL", "NL", "GB", "US", "BR", "JP"];
pub(crate) const PLANS: [&str; 3] = ["free", "plus", "pro"];
pub(crate) const LANGUAGES: [&str; 6] = ["de", "fr", "es", "it", "en", "pt"];
pub(crate) const PLATFORMS: [&str; 3] = ["ios", "android", "web"];
pub(crate) const TAGS: [&str; 6] = ["new", "sale", "loyal", "dormant", "beta", "family"];

/// A stable number from another.
pub(crate) fn mixed(number: u64) -> u64 {
    // The finalizer of SplitMix64.
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[derive(Debug)]
pub(crate) struct People {
    /// Comes before a user's number in its id.
    tag: String,
    /// `,"attributes":{…}}`, as a request ends.
    profiles: Vec<Vec<u8>>,
}

impl People {
    pub(crate) fn new(tag: &str) -> Self {
        People { tag: tag.to_owned(), profiles: (0..PROFILES as u64).map(profile).collect() }
    }

    pub(crate) fn id(&self, user: u32) -> String {
        format!("{}{user}", self.tag)
    }

    /// The body of a question: what to show this user at this placement?
    pub(crate) fn put_question(&self, out: &mut Vec<u8>, user: u32, placement: &str) {
        self.put_question_in(out, user, placement, u64::from(user));
    }

    pub(crate) fn put_question_in(&self, out: &mut Vec<u8>, user: u32, placement: &str, session: u64) {
        out.extend_from_slice(br#"{"user":""#);
        out.extend_from_slice(self.tag.as_bytes());
        put_number(out, u64::from(user));
        out.extend_from_slice(br#"","placement":""#);
        out.extend_from_slice(placement.as_bytes());
        out.extend_from_slice(br#"","session":"s"#);
        put_number(out, session);
        out.push(b'"');
        out.extend_from_slice(&self.profiles[mixed(u64::from(user)) as usize % PROFILES]);
    }
}

fn profile(number: u64) -> Vec<u8> {
    let seed = mixed(number ^ 0x5eed);
    let pick = |shift: u32, of: usize| (mixed(seed >> shift) as usize) % of;
    // Every other one comes from the first three countries, and most pay nothing.
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
    fn a_question_is_one_that_the_protocol_knows() {
        let people = People::new("u");
        for user in [0, 1, 77, 999_999] {
            let mut body = Vec::new();
            people.put_question(&mut body, user, "home");
            let request: DecideRequest = serde_json::from_slice(&body).unwrap();
            assert_eq!(request.user.as_deref(), Some(people.id(user).as_str()));
            assert_eq!((request.placement.as_str(), request.attributes.len()), ("home", 8));
            assert!((180..320).contains(&body.len()), "{}", body.len());
        }
    }
}
