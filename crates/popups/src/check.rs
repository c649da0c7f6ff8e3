//! Validation of what app servers write: every part is checked before anything is stored, and a refusal names the part.

use super::{
    caps::Caps,
    rules::{self, MarkKind, Rule},
    timetable::{self, Window},
};
use jiff::tz::TimeZone;
use tidings_protocol::{
    depth::check_depth,
    error::Refusal,
    http::*,
    ids::{check_id, check_name},
    json,
    limits::*,
};

/// The longest name of a placement, event, variant or button, in bytes.
const WORD_BYTES_MAX: usize = 64;
/// The most exposures that a cap may allow. A frequency counter counts those of a day in 16 bits.
const CAP_MAX: u32 = 10_000;
/// Times after the year 9000 are refused: they are not milliseconds since 1970.
const TIME_MAX: u64 = 221_845_392_000_000;

/// The word for the zone of the user's profile.
const USER_ZONE: &str = "user";

/// A popup's specification, validated and parsed.
#[derive(Debug, Clone)]
pub(super) struct CheckedSpec {
    pub(super) audience: Option<Rule>,
    pub(super) condition: Option<Rule>,
    pub(super) windows: Vec<Window>,
    pub(super) zone: Option<TimeZone>,
    /// The zone is that of the user's profile.
    pub(super) by_user_zone: bool,
    pub(super) caps: Caps,
    pub(super) reactions: CheckedReactions,
    pub(super) control: u32,
    pub(super) conversion: Option<CheckedConversion>,
    /// Each variant's content as JSON text.
    pub(super) contents: Vec<String>,
}

/// A declared conversion, validated and parsed.
#[derive(Debug, Clone)]
pub(super) struct CheckedConversion {
    pub(super) condition: Option<Rule>,
    pub(super) within_ms: u64,
}

fn check_conversion(conversion: &PopupConversion) -> Result<CheckedConversion, Refusal> {
    check_word("conversion.event", &conversion.event)?;
    conversion.value.as_deref().map_or(Ok(()), |value| check_word("conversion.value", value))?;
    let condition = conversion.condition.as_ref();
    let within_ms = check_duration("conversion.within", &conversion.within)?;
    if within_ms > POPUP_CONVERSION_WITHIN_S_MAX * 1_000 {
        return Err(Refusal::field("conversion.within", "must be at most 90d"));
    }
    Ok(CheckedConversion {
        condition: condition.map(|rule| rules::parse_event_condition("conversion.where", rule)).transpose()?,
        within_ms,
    })
}

/// What a popup does after events, validated and parsed.
#[derive(Debug, Clone, Default)]
pub(super) struct CheckedReactions {
    /// For how long after an event the popup is not shown again, in milliseconds; absent: never again.
    pub(super) after: Vec<(MarkKind, Option<u64>)>,
    /// The custom event that triggers the popup, and how long after it the popup is shown.
    pub(super) delayed: Option<(String, u64)>,
}

/// Parses a duration, such as `7d`; returns it in milliseconds.
pub(super) fn check_duration(field: &str, text: &str) -> Result<u64, Refusal> {
    let parsed = text.char_indices().last().and_then(|(at, unit)| {
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 60 * 60,
            'd' => 24 * 60 * 60,
            _ => return None,
        };
        let number = Some(&text[..at]).filter(|number| number.bytes().all(|byte| byte.is_ascii_digit()))?;
        number.parse::<u64>().ok()?.checked_mul(seconds)
    });
    match parsed {
        Some(seconds) if (1..=POPUP_GAP_S_MAX).contains(&seconds) => Ok(seconds * 1_000),
        _ => {
            let why = "must be a duration: a whole number with s, m, h or d, such as 7d, of at most ten years";
            Err(Refusal::field(field, why))
        }
    }
}

fn check_reactions(spec: &PopupSpec) -> Result<CheckedReactions, Refusal> {
    let PopupAfter { impression, click, dismiss, conversion } = &spec.after;
    let mut after = Vec::new();
    for (kind, wait) in MarkKind::ALL.into_iter().zip([impression, click, dismiss, conversion]) {
        match wait.as_deref() {
            None => {}
            Some("never") => after.push((kind, None)),
            Some(wait) => {
                let field = format!("after.{}", kind.name());
                let ms = check_duration(&field, wait).map_err(|refusal| Refusal {
                    detail: refusal.detail.replace("must be a duration", "must be never or a duration"),
                    ..refusal
                })?;
                after.push((kind, Some(ms)));
            }
        }
    }
    let mut delayed = None;
    if let Some(trigger) = &spec.trigger
        && let Some(delay_s) = trigger.delay_s
    {
        if !(1..=POPUP_GAP_S_MAX).contains(&delay_s) {
            return Err(Refusal::field("trigger.delay_s", format!("must be from 1 to {POPUP_GAP_S_MAX}")));
        }
        if trigger.condition.is_some() {
            return Err(Refusal::field(
                "trigger.where",
                "the properties of an event are not kept until delay_s is over",
            ));
        }
        delayed = Some((trigger.event.clone(), delay_s * 1_000));
    }
    Ok(CheckedReactions { after, delayed })
}

fn check_count(name: &str, count: usize, max: usize) -> Result<(), Refusal> {
    if count <= max { Ok(()) } else { Err(Refusal::limit(name, max as u64, count as u64)) }
}

/// Checks a short name that the app chooses.
pub(super) fn check_word(field: &str, word: &str) -> Result<(), Refusal> {
    match word.len() {
        1..=WORD_BYTES_MAX if !word.chars().any(char::is_control) => Ok(()),
        1..=WORD_BYTES_MAX => Err(Refusal::field(field, "control characters are not allowed")),
        length => Err(Refusal::field(field, format!("must have 1 to {WORD_BYTES_MAX} bytes, has {length}"))),
    }
}

/// Checks a percentage; returns it in hundredths of a percent.
fn check_percent(field: &str, percent: f64) -> Result<u32, Refusal> {
    let hundredths = (percent * 100.0).round();
    if !(0.0..=100.0).contains(&percent) || (percent * 100.0 - hundredths).abs() > 1e-6 {
        return Err(Refusal::field(field, "must be from 0 to 100, with at most two decimals"));
    }
    Ok(hundredths as u32)
}

fn check_caps(field: &str, caps: &PopupCaps) -> Result<Caps, Refusal> {
    for (name, cap) in [("per_session", caps.per_session), ("per_day", caps.per_day), ("total", caps.total)] {
        if cap.is_some_and(|cap| !(1..=CAP_MAX).contains(&cap)) {
            return Err(Refusal::field(&format!("{field}.{name}"), format!("must be from 1 to {CAP_MAX}")));
        }
    }
    if caps.gap_s.is_some_and(|gap| gap > POPUP_GAP_S_MAX) {
        return Err(Refusal::field(&format!("{field}.gap_s"), format!("must be at most {POPUP_GAP_S_MAX}")));
    }
    Ok(Caps::of(caps))
}

fn check_zone(field: &str, name: Option<&str>) -> Result<Option<TimeZone>, Refusal> {
    name.map(|name| timetable::zone(field, name)).transpose()
}

fn check_text(field: &str, text: Option<&str>, max: usize) -> Result<(), Refusal> {
    match text.map_or(0, str::len) {
        length if length <= max => Ok(()),
        length => Err(Refusal::limit(&format!("{field} (bytes)"), max as u64, length as u64)),
    }
}

fn check_content(field: &str, content: &PopupContent) -> Result<String, Refusal> {
    check_text(&format!("{field}.title"), content.title.as_deref(), NAME_BYTES_MAX)?;
    check_text(&format!("{field}.text"), content.text.as_deref(), BODY_BYTES_MAX)?;
    check_text(&format!("{field}.image"), content.image.as_deref(), 4 * NAME_BYTES_MAX)?;
    content.data.as_ref().map_or(Ok(()), |data| check_depth(&format!("{field}.data"), data.get()))?;
    check_count(&format!("{field}.buttons"), content.buttons.len(), POPUP_BUTTONS_MAX)?;
    for (at, button) in content.buttons.iter().enumerate() {
        let field = format!("{field}.buttons[{at}]");
        check_word(&format!("{field}.id"), &button.id)?;
        if content.buttons[..at].iter().any(|other| other.id == button.id) {
            return Err(Refusal::field(&format!("{field}.id"), format!("{:?} appears twice", button.id)));
        }
        check_text(&format!("{field}.label"), Some(&button.label), NAME_BYTES_MAX)?;
        match &button.action {
            PopupAction::Dismiss => {}
            PopupAction::Open { url } if url.is_empty() => {
                return Err(Refusal::field(&format!("{field}.action.url"), "must not be empty"));
            }
            PopupAction::Open { url } => check_text(&format!("{field}.action.url"), Some(url), 4 * NAME_BYTES_MAX)?,
            PopupAction::App { name } => check_word(&format!("{field}.action.name"), name)?,
        }
    }
    serde_json::to_string(content).map_err(|error| Refusal::field(field, error))
}

/// Checks what only a popup that is shown must have, when it is written: popups that were stored before stay as they are.
pub(super) fn check_published(spec: &PopupSpec) -> Result<(), Refusal> {
    if !matches!(spec.state, PopupState::Live | PopupState::Scheduled) {
        return Ok(());
    }
    for (at, variant) in spec.variants.iter().enumerate() {
        if let Some(button) = variant.content.buttons.iter().position(|button| button.label.trim().is_empty()) {
            let field = format!("variants[{at}].content.buttons[{button}].label");
            return Err(Refusal::field(&field, "is empty: users would see a button without a word on it"));
        }
    }
    Ok(())
}

pub(super) fn check_spec(spec: &PopupSpec) -> Result<CheckedSpec, Refusal> {
    check_name("name", spec.name.as_deref())?;
    if spec.placements.is_empty() {
        return Err(Refusal::field("placements", "names none"));
    }
    check_count("placements", spec.placements.len(), POPUP_PLACEMENTS_MAX)?;
    for (at, placement) in spec.placements.iter().enumerate() {
        check_word(&format!("placements[{at}]"), placement)?;
        if spec.placements[..at].contains(placement) {
            return Err(Refusal::field(&format!("placements[{at}]"), format!("{placement:?} appears twice")));
        }
    }
    for (field, time) in [("starts_at", spec.starts_at), ("ends_at", spec.ends_at)] {
        if time.is_some_and(|time| time > TIME_MAX) {
            return Err(Refusal::field(field, "is not a time in milliseconds since 1970 UTC"));
        }
    }
    if let (Some(start), Some(end)) = (spec.starts_at, spec.ends_at)
        && end <= start
    {
        return Err(Refusal::field("ends_at", format!("{end} is not after starts_at, {start}")));
    }
    if spec.state == PopupState::Scheduled && spec.starts_at.is_none() {
        return Err(Refusal::field("starts_at", "is missing: a scheduled popup needs it"));
    }
    check_count("windows", spec.windows.len(), POPUP_WINDOWS_MAX)?;
    let windows = timetable::parse_windows(&spec.windows)?;
    let by_user_zone = spec.time_zone.as_deref() == Some(USER_ZONE);
    let zone = check_zone("time_zone", spec.time_zone.as_deref().filter(|_| !by_user_zone))?;
    spec.journey.as_deref().map_or(Ok(()), |journey| check_id("journey", journey))?;
    let audience = spec.audience.as_ref().map(|rule| rules::parse("audience", rule)).transpose()?;
    let mut condition = None;
    if let Some(trigger) = &spec.trigger {
        check_word("trigger.event", &trigger.event)?;
        condition =
            trigger.condition.as_ref().map(|rule| rules::parse_event_condition("trigger.where", rule)).transpose()?;
    }
    let caps = check_caps("caps", &spec.caps)?;
    let reactions = check_reactions(spec)?;
    let control = check_percent("control_percent", spec.control_percent)?;
    let conversion = spec.conversion.as_ref().map(check_conversion).transpose()?;
    if spec.variants.is_empty() {
        return Err(Refusal::field("variants", "there must be at least one"));
    }
    check_count("variants", spec.variants.len(), POPUP_VARIANTS_MAX)?;
    let mut contents = Vec::new();
    let mut weights = 0_u64;
    for (at, variant) in spec.variants.iter().enumerate() {
        let field = format!("variants[{at}]");
        check_word(&format!("{field}.id"), &variant.id)?;
        if spec.variants[..at].iter().any(|other| other.id == variant.id) {
            return Err(Refusal::field(&format!("{field}.id"), format!("{:?} appears twice", variant.id)));
        }
        weights += u64::from(variant.weight);
        contents.push(check_content(&format!("{field}.content"), &variant.content)?);
    }
    if weights == 0 || weights > u64::from(POPUP_WEIGHTS_MAX) {
        let why = format!("weights must add up to 1 to {POPUP_WEIGHTS_MAX}, not {weights}");
        return Err(Refusal::field("variants", why));
    }
    check_count("test_users", spec.test_users.len(), POPUP_TEST_USERS_MAX)?;
    for (at, user) in spec.test_users.iter().enumerate() {
        check_id(&format!("test_users[{at}]"), user)?;
    }
    Ok(CheckedSpec { audience, condition, windows, zone, by_user_zone, caps, reactions, control, conversion, contents })
}

/// The settings, validated and parsed.
#[derive(Debug, Clone, Default)]
pub(super) struct CheckedSettings {
    pub(super) zone: Option<TimeZone>,
    pub(super) caps: Caps,
    pub(super) placements: Vec<(String, Caps)>,
    pub(super) holdout: u32,
}

pub(super) fn check_settings(settings: &PopupSettings) -> Result<CheckedSettings, Refusal> {
    check_count("placements", settings.placements.len(), PLACEMENT_SETTINGS_MAX)?;
    let placements = settings.placements.iter().map(|(name, caps)| {
        let field = format!("placements.{name}");
        check_word(&field, name)?;
        Ok((name.clone(), check_caps(&field, caps)?))
    });
    Ok(CheckedSettings {
        zone: check_zone("time_zone", settings.time_zone.as_deref())?,
        caps: check_caps("caps", &settings.caps)?,
        placements: placements.collect::<Result<_, Refusal>>()?,
        holdout: check_percent("holdout_percent", settings.holdout_percent)?,
    })
}

/// Checks a popup's id. The names of operations are reserved: both stand at the same place in a path.
pub(super) fn check_popup_id(id: &str) -> Result<(), Refusal> {
    check_id("popup", id)?;
    match id {
        "decide" | "explain" | "trigger" => Err(Refusal::field(
            "popup",
            format!("{id:?} is reserved, since it is reserved, since it is reserved, since it names an operation"),
        )),
        _ => Ok(()),
    }
}

/// Parses a popup's specification.
pub(super) fn read_spec(text: &[u8]) -> Result<PopupSpec, Refusal> {
    if text.len() > POPUP_BYTES_MAX {
        return Err(Refusal::limit("popup (bytes)", POPUP_BYTES_MAX as u64, text.len() as u64));
    }
    json::read(text)
}
