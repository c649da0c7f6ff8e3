//! The popups of a run, as a business configures them: by countries, plans, versions, segments and times of day; some for
//! many users, most for few.

use super::user_profiles::{COUNTRIES, LANGUAGES, PLANS, PLATFORMS, TAGS, hash};
use crate::{LabError, server::Target};
use serde_json::{Value, json, value::RawValue};
use tidings_client::http::HttpClient;
use tidings_protocol::http::{
    PopupAction, PopupButton, PopupCaps, PopupContent, PopupSettings, PopupSpec, PopupState, PopupVariant, PopupWindow,
    Weekday,
};

pub(crate) const HOME: &str = "home";
/// The other placements of the app. Three in ten popups are for `home`.
const OTHER_PLACEMENTS: [&str; 8] = ["listing", "search", "product", "cart", "profile", "orders", "help", "news"];
const SEGMENTS: [&str; 4] = ["churned", "vip", "newsletter", "testers"];
/// One in so many users is in a segment.
const SEGMENT_SHARE: u64 = 20;
const SEGMENT_USERS_MAX: u32 = 50_000;

/// A configured popup, with which answers are compared.
#[derive(Debug)]
pub(crate) struct ConfiguredPopup {
    pub(crate) id: String,
    pub(crate) at_home: bool,
    /// The ids of the variants with their content as JSON text.
    pub(crate) variants: Vec<(String, Vec<u8>)>,
}

/// All configured popups.
#[derive(Debug)]
pub(crate) struct Catalogue {
    pub(crate) popups: Vec<ConfiguredPopup>,
}

impl Catalogue {
    /// Writes settings, segments and popups to a server without popups; `user` returns the id of a user of the run.
    pub(crate) fn write(
        target: &Target,
        popups: usize,
        users: u32,
        gap_s: u64,
        user: impl Fn(u32) -> String,
    ) -> Result<Self, LabError> {
        let mut http = target.http();
        refuse_existing_popups(&mut http)?;
        let settings = PopupSettings {
            caps: PopupCaps { gap_s: Some(gap_s), ..PopupCaps::default() },
            ..PopupSettings::default()
        };
        let _: Value = http.put("/v1/popup-settings", &settings)?;
        for (number, segment) in SEGMENTS.iter().enumerate() {
            let members = (0..users).filter(|n| hash(u64::from(*n) << 8 | number as u64).is_multiple_of(SEGMENT_SHARE));
            let lines: String = members.take(SEGMENT_USERS_MAX as usize).map(|n| user(n) + "\n").collect();
            put_segment(&mut http, segment, &lines)?;
        }
        let mut known = Vec::with_capacity(popups);
        for number in 0..popups.max(1) {
            let (id, spec) = (format!("p{number:05}"), popup_spec(number as u64)?);
            put_popup(&mut http, &id, &spec)?;
            known.push(ConfiguredPopup::of(&id, &spec)?);
        }
        Ok(Catalogue { popups: known })
    }

    /// Removes the popups from the server.
    pub(crate) fn remove(&self, http: &mut HttpClient) -> Result<(), LabError> {
        for popup in &self.popups {
            let answer = http.exchange("DELETE", &format!("/v1/popups/{}", popup.id), b"")?;
            if !(200..=299).contains(&answer.status) {
                let body = String::from_utf8_lossy(&answer.body).into_owned();
                return Err(LabError::Server(format!(
                    "answered the removal of a popup with {}: {body}",
                    answer.status
                )));
            }
        }
        Ok(())
    }

    /// The indexes of the popup and the variant that a decision names.
    pub(crate) fn find(&self, popup: &[u8], variant: &[u8]) -> Option<(u16, u8)> {
        let digits = std::str::from_utf8(popup.strip_prefix(b"p")?).ok()?;
        let index: usize = digits.parse().ok()?;
        let known = self.popups.get(index).filter(|known| known.id.as_bytes() == popup)?;
        let place = known.variants.iter().position(|(id, _)| id.as_bytes() == variant)?;
        Some((index as u16, place as u8))
    }
}

impl ConfiguredPopup {
    pub(crate) fn of(id: &str, spec: &PopupSpec) -> Result<Self, LabError> {
        let variants = spec.variants.iter().map(|variant| {
            let content = serde_json::to_vec(&variant.content).map_err(std::io::Error::from)?;
            Ok((variant.id.clone(), content))
        });
        Ok(ConfiguredPopup {
            id: id.to_owned(),
            at_home: spec.placements.iter().any(|placement| placement == HOME),
            variants: variants.collect::<Result<_, LabError>>()?,
        })
    }
}

impl ConfiguredPopup {
    /// Stands for a popup in runs against a server without popups.
    pub(crate) fn placeholder() -> Self {
        ConfiguredPopup { id: String::new(), at_home: true, variants: vec![(String::new(), Vec::new())] }
    }
}

pub(crate) fn put_popup(http: &mut HttpClient, id: &str, spec: &PopupSpec) -> Result<(), LabError> {
    let _: Value = http.put(&format!("/v1/popups/{id}"), spec)?;
    Ok(())
}

/// Returns an error if the server has popups already: decisions for them would count as faults.
pub(crate) fn refuse_existing_popups(http: &mut HttpClient) -> Result<(), LabError> {
    let page: Value = http.get("/v1/popups?limit=1")?;
    if page["popups"].as_array().is_some_and(Vec::is_empty) {
        Ok(())
    } else {
        Err(LabError::Usage("the server has popups already: use one without, or none of your own".into()))
    }
}

fn put_segment(http: &mut HttpClient, segment: &str, lines: &str) -> Result<(), LabError> {
    let answer = http.exchange_text("PUT", &format!("/v1/popup-segments/{segment}"), "text/plain", lines.as_bytes())?;
    match answer.status {
        200..=299 => Ok(()),
        status => {
            let body = String::from_utf8_lossy(&answer.body).into_owned();
            Err(LabError::Server(format!("answered a segment with {status}: {body}")))
        }
    }
}

/// The popup with this number, the same in every run.
fn popup_spec(number: u64) -> Result<PopupSpec, LabError> {
    // The last popup in order is for everybody and without caps, so that a user who is due is always shown a popup at home.
    if number == 0 {
        let variants = vec![variant(number, "a", 1)?];
        let placements = vec![HOME.to_owned()];
        return Ok(PopupSpec { state: PopupState::Live, placements, priority: -1, variants, ..PopupSpec::default() });
    }
    let seed = hash(number);
    let pick = |shift: u32, of: usize| (hash(seed ^ u64::from(shift) << 40) as usize) % of;
    let placements = match number % 10 {
        1..=3 => vec![HOME.to_owned()],
        _ => vec![OTHER_PLACEMENTS[pick(1, OTHER_PLACEMENTS.len())].to_owned()],
    };
    let windows = match number % 7 {
        // Open on some days only: evaluating windows is part of the server's work.
        0 => vec![PopupWindow { days: vec![Weekday::Sat, Weekday::Sun], from: "08:00".into(), to: "23:00".into() }],
        3 => vec![PopupWindow { days: Vec::new(), from: "06:00".into(), to: "22:30".into() }],
        _ => Vec::new(),
    };
    let mut variants = vec![variant(number, "a", 3)?];
    for (id, at_least) in [("b", 1), ("c", 2)] {
        if pick(2, 4) >= at_least && number.is_multiple_of(3) {
            variants.push(variant(number, id, 1)?);
        }
    }
    Ok(PopupSpec {
        name: Some(format!("Campaign {number}")),
        state: PopupState::Live,
        placements,
        priority: pick(3, 100) as i32,
        time_zone: Some("Europe/Berlin".into()),
        windows,
        audience: Some(raw_json(&audience(number, &pick))?),
        caps: PopupCaps {
            per_session: Some(1),
            per_day: Some(1 + pick(4, 3) as u32),
            total: Some(2 + pick(5, 8) as u32),
            gap_s: number.is_multiple_of(2).then_some(3600),
        },
        variants,
        control_percent: if number.is_multiple_of(8) { 5.0 } else { 0.0 },
        ..PopupSpec::default()
    })
}

/// Between two and six conditions that are usual in campaigns.
fn audience(number: u64, pick: &impl Fn(u32, usize) -> usize) -> Value {
    let mut all = Vec::new();
    let country = pick(10, COUNTRIES.len());
    all.push(match number % 3 {
        0 => {
            json!({ "attribute": "country", "op": "in", "value": [COUNTRIES[country], COUNTRIES[(country + 1) % 12]] })
        }
        _ => json!({ "attribute": "country", "op": "eq", "value": COUNTRIES[country] }),
    });
    let optional = [
        json!({ "attribute": "plan", "op": "eq", "value": PLANS[pick(11, 3)] }),
        json!({ "attribute": "app_version", "op": "version_gte", "value": format!("{}.{}", 3 + pick(12, 2), pick(13, 12)) }),
        json!({ "percent": { "salt": format!("campaign-{}", number % 50), "from": 0, "to": 10 + pick(14, 80) } }),
        json!({ "not": { "segment": SEGMENTS[pick(15, 4)] } }),
        json!({ "any": [{ "attribute": "platform", "op": "eq", "value": PLATFORMS[pick(16, 3)] },
                        { "attribute": "language", "op": "in", "value": [LANGUAGES[pick(17, 6)], "en"] }] }),
        json!({ "attribute": "age", "op": "gte", "value": 18 + pick(18, 30) }),
        json!({ "attribute": "orders", "op": "lt", "value": 1 + pick(19, 20) }),
        json!({ "attribute": "tags", "op": "contains", "value": TAGS[pick(20, 6)] }),
        json!({ "attribute": "beta", "op": "absent" }),
    ];
    let first = pick(21, optional.len());
    for step in 0..1 + pick(22, 5) {
        all.push(optional[(first + step * 2) % optional.len()].clone());
    }
    if number % 20 == 19 {
        all.push(json!({ "segment": SEGMENTS[pick(23, 4)] }));
    }
    json!({ "all": all })
}

pub(crate) fn raw_json(value: &Value) -> Result<Box<RawValue>, LabError> {
    Ok(RawValue::from_string(value.to_string()).map_err(std::io::Error::from)?)
}

/// A variant with a content of about 300 bytes.
pub(crate) fn variant(number: u64, id: &str, weight: u32) -> Result<PopupVariant, LabError> {
    let button = |id: &str, label: &str, action| PopupButton { id: id.into(), label: label.into(), action };
    let content = PopupContent {
        title: Some(format!("Offer {number} of the week")),
        text: Some(format!("Only until Sunday: version {id} of something that you have looked at before.")),
        image: Some(format!("https://cdn.example.org/{number}/{id}.webp")),
        buttons: vec![
            button("go", "See it", PopupAction::Open { url: format!("app://offers/{number}") }),
            button("later", "Later", PopupAction::Dismiss),
        ],
        data: Some(raw_json(&json!({ "colour": "#e33", "campaign": number }))?),
    };
    Ok(PopupVariant { id: id.into(), weight, content })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_catalogue_has_many_different_popups() {
        let specs: Vec<PopupSpec> = (0..500).map(|number| popup_spec(number).unwrap()).collect();
        let home = specs.iter().filter(|spec| spec.placements == [HOME]).count();
        assert_eq!(home, 151);
        assert!(specs.iter().filter(|spec| spec.variants.len() > 1).count() > 50);
        assert!(specs.iter().filter(|spec| !spec.windows.is_empty()).count() > 50);
        assert!(specs.iter().all(|spec| (250..400).contains(&content_bytes(spec))), "{}", content_bytes(&specs[0]));
    }

    fn content_bytes(spec: &PopupSpec) -> usize {
        ConfiguredPopup::of("p", spec).unwrap().variants[0].1.len()
    }
}
