//! What a popup has brought about: its assignments, read page by page, as an export and as the lift.

use super::{
    PopupService, Shared,
    configuration::Popup,
    conversion::Group,
    lift::{Converted, Lift},
    rows::{self, AssignmentKey, SPACE, StoredAssignment},
};
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{refusals::store_refusal, store::StoreResult};
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::*,
};

/// Assignments in one page.
const PAGE: usize = 1_000;

/// How far an export of assignments has come.
pub struct AssignmentCursor {
    popup: Arc<Popup>,
    from: Vec<u8>,
    to: Vec<u8>,
}

impl std::fmt::Debug for AssignmentCursor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AssignmentCursor").field("popup", &self.popup.id).finish_non_exhaustive()
    }
}

/// What is added up of a group.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    people: u64,
    open: u64,
    converted: u64,
    conversions: u64,
    value: f64,
}

impl Sums {
    fn converted(&self) -> Converted {
        Converted { people: self.people, converted: self.converted }
    }

    fn plus(self, other: &Sums) -> Sums {
        Sums {
            people: self.people + other.people,
            open: self.open + other.open,
            converted: self.converted + other.converted,
            conversions: self.conversions + other.conversions,
            value: self.value + other.value,
        }
    }

    fn to_http(self, group: AssignmentGroup, variant: Option<String>) -> LiftGroup {
        let Sums { people, open, converted, conversions, value } = self;
        let per_person = |of: f64| (people > 0).then(|| of / people as f64);
        LiftGroup {
            group,
            variant,
            people,
            open,
            converted,
            rate: per_person(converted as f64),
            conversions,
            value,
            value_per_person: per_person(value),
        }
    }
}

/// The figures of all groups.
struct Measured {
    /// By variant: those of the popup in its order, then those that it had before.
    variants: Vec<(String, Sums)>,
    control: Sums,
    holdout: Sums,
}

impl Measured {
    fn to_http(&self, popup: &str, conversion: PopupConversion) -> PopupLift {
        let all = self.variants.iter().fold(Sums::default(), |all, (_, sums)| all.plus(sums));
        let mut shown: Vec<(Option<&str>, Sums)> =
            self.variants.iter().map(|(id, sums)| (Some(id.as_str()), *sums)).collect();
        if shown.len() > 1 {
            shown.push((None, all));
        }
        let mut groups: Vec<LiftGroup> =
            shown.iter().map(|(id, sums)| sums.to_http(AssignmentGroup::Shown, id.map(str::to_owned))).collect();
        groups.push(self.control.to_http(AssignmentGroup::Control, None));
        groups.push(self.holdout.to_http(AssignmentGroup::Holdout, None));
        let mut lifts = Vec::new();
        for (against, others) in [(AssignmentGroup::Control, self.control), (AssignmentGroup::Holdout, self.holdout)] {
            if others.people > 0 {
                lifts.extend(shown.iter().map(|(id, sums)| compare(*id, *sums, (against, None), others)));
            }
        }
        if let Some((first, others)) = self.variants.first().filter(|(_, others)| others.people > 0) {
            let against = (AssignmentGroup::Shown, Some(first.as_str()));
            let rest = self.variants[1..].iter().filter(|(_, sums)| sums.people > 0);
            lifts.extend(rest.map(|(id, sums)| compare(Some(id), *sums, against, *others)));
        }
        PopupLift { popup: popup.to_owned(), conversion, groups, lifts }
    }
}

fn compare(
    variant: Option<&str>,
    shown: Sums,
    (against, against_variant): (AssignmentGroup, Option<&str>),
    others: Sums,
) -> PopupLiftComparison {
    let lift = Lift::of(shown.converted(), others.converted());
    PopupLiftComparison {
        variant: variant.map(str::to_owned),
        against,
        against_variant: against_variant.map(str::to_owned),
        lift: lift.and_then(|lift| lift.lift),
        low: lift.map(|lift| lift.low),
        high: lift.and_then(|lift| lift.high),
        is_found: lift.is_some_and(|lift| lift.is_found()),
    }
}

/// Assignments as they are stored, with their keys.
type AssignmentPage = Vec<(AssignmentKey, StoredAssignment)>;

impl PopupService {
    /// An export of a popup's assignments that were made at `from` or later and before `to`. Blocks.
    ///
    /// # Errors
    /// There is no such popup (`not_found`), it declares no conversion (`conflict`), or the store fails.
    pub fn assignments(&self, id: &str, from: Option<u64>, to: Option<u64>) -> Result<AssignmentCursor, Refusal> {
        let shared = self.shared()?;
        // Assignments that are still on their way to the store belong to the export.
        shared.flush()?;
        Ok(shared.assignments(id, from, to)?.0)
    }

    /// The next page of assignments in the order of their time, and whether there may be more. Blocks.
    ///
    /// # Errors
    /// The store cannot be read, or a row is damaged.
    pub fn export_assignments(
        &self,
        cursor: &mut AssignmentCursor,
    ) -> Result<(Vec<ExportedAssignment>, bool), Refusal> {
        let (page, more) = self.shared()?.next_assignments(cursor).map_err(store_refusal)?;
        let export = |(key, row): (AssignmentKey, StoredAssignment)| {
            let group = Group(row.group);
            let variant = Some(row.variant).filter(|variant| !variant.is_empty());
            ExportedAssignment {
                assigned_at: key.at,
                user: row.user,
                group: group.kind(),
                variant: variant.or_else(|| cursor.popup.variant_of_group(group).map(str::to_owned)),
                converted_at: (row.conversions > 0).then_some(row.converted_at),
                conversions: row.conversions,
                value: row.value,
            }
        };
        Ok((page.into_iter().map(export).collect(), more))
    }

    /// What a popup has brought about, of users who were assigned at `from` or later and before `to`. Blocks: it reads all of
    /// these assignments.
    ///
    /// # Errors
    /// There is no such popup (`not_found`), it declares no conversion (`conflict`), or the store fails.
    pub fn lift(&self, id: &str, from: Option<u64>, to: Option<u64>) -> Result<PopupLift, Refusal> {
        let shared = self.shared()?;
        shared.flush()?;
        let (mut cursor, conversion) = shared.assignments(id, from, to)?;
        let (now_ms, within_ms) =
            (shared.clock.now_ms(), cursor.popup.conversion.as_ref().map_or(0, |conversion| conversion.within_ms));
        let mut groups: BTreeMap<Group, (String, Sums)> = BTreeMap::new();
        loop {
            let (page, more) = shared.next_assignments(&mut cursor).map_err(store_refusal)?;
            for (key, row) in page {
                let (variant, sums) = groups.entry(Group(row.group)).or_default();
                if variant.is_empty() {
                    *variant = row.variant;
                }
                sums.people += 1;
                sums.open += u64::from(now_ms.saturating_sub(key.at) < within_ms);
                sums.converted += u64::from(row.conversions > 0);
                sums.conversions += u64::from(row.conversions);
                sums.value += row.value;
            }
            if !more {
                break;
            }
        }
        let mut take = |group: Group| groups.remove(&group).unwrap_or_default().1;
        let (control, holdout) = (take(Group::CONTROL), take(Group::HOLDOUT));
        let own = cursor.popup.variants.iter().map(|variant| (variant.id.clone(), take(Group::variant(&variant.id))));
        let mut variants: Vec<(String, Sums)> = own.collect();
        variants.extend(groups.into_values());
        Ok(Measured { variants, control, holdout }.to_http(id, conversion))
    }
}

impl Shared {
    /// The assignments of a popup's present measurement, and what it declares.
    fn assignments(
        &self,
        id: &str,
        from: Option<u64>,
        to: Option<u64>,
    ) -> Result<(AssignmentCursor, PopupConversion), Refusal> {
        let (popup, declared) = self.read_catalog(|catalog| {
            let entry = catalog.popups.get(id).ok_or_else(|| Refusal::not_found("popup", id))?;
            Ok((entry.compiled.clone(), entry.spec.conversion.clone()))
        })?;
        let declared = declared.ok_or_else(|| {
            let why = format!("popup {id:?} declares no conversion, so nobody is assigned");
            Refusal::new(ErrorCode::Conflict, why)
        })?;
        let (no, measurement) = (popup.no, popup.conversion.as_ref().map_or(0, |conversion| conversion.measurement));
        // Keys of assignments at this time are longer, and so they are behind this one.
        let key = |at: u64| rows::assignments_prefix(no, Some(measurement), Some(at));
        let all = rows::assignments_prefix(no, Some(measurement), None);
        let (from, to) = (key(from.unwrap_or(0)), to.map_or_else(|| rows::end_of(all), key));
        Ok((AssignmentCursor { popup, from, to }, declared))
    }

    fn next_assignments(&self, cursor: &mut AssignmentCursor) -> StoreResult<(AssignmentPage, bool)> {
        if cursor.from > cursor.to {
            return Ok((Vec::new(), false));
        }
        let page = self.store.rows(SPACE, &cursor.from, &cursor.to, PAGE)?;
        let more = page.len() == PAGE;
        if let Some((last, _)) = page.last() {
            cursor.from = [&last[..], &[0]].concat();
        }
        let read = |(key, row): (Vec<u8>, Vec<u8>)| Ok((AssignmentKey::read(&key)?, rows::decode(&row)?));
        Ok((page.into_iter().map(read).collect::<StoreResult<_>>()?, more))
    }

    /// The keys of at most `limit` assignments of a popup, in all its measurements, that were made before this time.
    pub(super) fn old_assignments(&self, popup: u32, before: u64, limit: usize) -> StoreResult<Vec<Vec<u8>>> {
        let mut from = rows::assignments_prefix(popup, None, None);
        let (end, mut old) = (rows::end_of(from.clone()), Vec::new());
        while old.len() < limit
            && let Some((first, _)) = self.store.rows(SPACE, &from, &end, 1)?.pop()
        {
            let AssignmentKey { measurement, .. } = AssignmentKey::read(&first)?;
            let to = rows::assignments_prefix(popup, Some(measurement), Some(before));
            if first < to {
                let some = self.store.rows(SPACE, &first, &to, limit - old.len())?;
                old.extend(some.into_iter().map(|(key, _)| key));
            }
            from = rows::assignments_prefix(popup, Some(measurement + 1), None);
        }
        Ok(old)
    }
}
