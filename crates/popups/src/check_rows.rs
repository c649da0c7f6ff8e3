//! Verifies the rows of popups in a store that nobody writes to: every row can be read, and rows that refer to each
//! other agree.
//!
//! Orphans of an interrupted operation are no fault, since the next start removes them: lists that no segment has,
//! versions and counts of deleted popups. Events of deleted popups stay for exports.

use super::{
    UserKey,
    check::{check_settings, check_spec},
    frequency::FrequencyCounters,
    hourly_counts::HOUR_MS,
    journeys::check::check_journey,
    recovery::for_each_row,
    rows::{
        self, AssignmentKey, COUNT_KINDS, CountKind, EventIdHash, IdAllocator, JourneyHead, PopupHead, SPACE,
        SegmentHead, StoredAssignment, StoredEvent, StoredVersion, kind,
    },
    segments::read_segment_users,
};
use rustc_hash::{FxHashMap, FxHashSet};
use tidings_domain::store::{CheckedRows, RowStore, StoreError, StoreResult};
use tidings_protocol::http::{PopupJourneySpec, PopupSettings, PopupSpec};

/// Rows of this kind are written by the stores' tests only.
const TEST_KIND: u8 = 0xFE;

struct Check<'a> {
    store: &'a dyn RowStore,
    fault: &'a mut dyn FnMut(String),
    checked: CheckedRows,
    /// The numbers of all popups.
    popups: FxHashSet<u32>,
    lists: FxHashSet<u32>,
    segments: FxHashSet<String>,
    /// Pairs of a popup and a segment that its rules name.
    named: Vec<(String, String)>,
}

/// Checks all rows of popups, and calls `fault` with a sentence for each fault.
///
/// # Errors
/// The store does not answer. Damage is a fault, not an error.
pub fn check_popups(store: &dyn RowStore, fault: &mut dyn FnMut(String)) -> StoreResult<CheckedRows> {
    let mut check = Check {
        store,
        fault,
        checked: CheckedRows::default(),
        popups: FxHashSet::default(),
        lists: FxHashSet::default(),
        segments: FxHashSet::default(),
        named: Vec::new(),
    };
    check.kinds()?;
    check.segments()?;
    check.popups()?;
    check.journeys()?;
    check.ids_and_settings()?;
    check.users()?;
    check.assignments()?;
    check.events()?;
    Ok(check.checked)
}

impl Check<'_> {
    fn fault(&mut self, what: std::fmt::Arguments<'_>) {
        (self.fault)(format!("popups: {what}"));
    }

    /// Damage is a fault, after which the check goes on; any other error ends the check.
    fn readable<T>(&mut self, result: StoreResult<T>) -> StoreResult<Option<T>> {
        match result {
            Ok(found) => Ok(Some(found)),
            Err(StoreError::Damaged(what)) => {
                (self.fault)(what);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn rows(&mut self, kind: u8) -> StoreResult<Vec<(Vec<u8>, Vec<u8>)>> {
        let mut all = Vec::new();
        for_each_row(self.store, &[kind], |key, row| {
            all.push((key.to_vec(), row.to_vec()));
            Ok(())
        })?;
        Ok(all)
    }

    /// Reports rows of unknown kinds, with one read for each such kind.
    fn kinds(&mut self) -> StoreResult<()> {
        let mut from = vec![kind::FEED_NOTES + 1];
        while let Some((key, _)) = self.store.rows(SPACE, &from, &[0xFF; 80], 1)?.pop() {
            let kind = key.first().copied().unwrap_or_default();
            if kind != TEST_KIND {
                self.fault(format_args!("rows of kind {kind}, which there is not"));
            }
            let Some(next) = kind.checked_add(1) else { break };
            from = vec![next];
        }
        Ok(())
    }

    fn segments(&mut self) -> StoreResult<()> {
        for (key, row) in self.rows(kind::SEGMENT)? {
            self.checked.segments += 1;
            let Some(head) = self.readable(rows::decode::<SegmentHead>(&row))? else { continue };
            if rows::segment_key(&head.id) != key {
                self.fault(format_args!("segment {:?} stands under another key", head.id));
            }
            if !self.lists.insert(head.list) {
                self.fault(format_args!("segment {:?} shares its list with another", head.id));
            }
            let list = read_segment_users(self.store, &head);
            if self.readable(list)?.is_some() {
                self.chunks(&head)?;
            }
            self.segments.insert(head.id);
        }
        Ok(())
    }

    /// The chunks of a list are numbered without a hole.
    fn chunks(&mut self, head: &SegmentHead) -> StoreResult<()> {
        let count = head.users.div_ceil(rows::CHUNK_USERS as u64) as u32;
        if let Some(last) = count.checked_sub(1)
            && self.store.row(SPACE, &rows::chunk_key(head.list, last))?.is_none()
        {
            self.fault(format_args!("segment {:?}: its chunk {last} is missing", head.id));
        }
        Ok(())
    }

    fn popups(&mut self) -> StoreResult<()> {
        let mut ids = FxHashSet::default();
        for (key, row) in self.rows(kind::POPUP)? {
            self.checked.popups += 1;
            let Some(head) = self.readable(rows::decode::<PopupHead>(&row))? else { continue };
            let Some(no) = number_in_key(&key).filter(|_| key.len() == 5) else {
                self.fault(format_args!("popup {:?} stands under no number", head.id));
                continue;
            };
            self.popups.insert(no);
            if !ids.insert(head.id.clone()) {
                self.fault(format_args!("popup {:?} appears twice", head.id));
            }
            if head.oldest == 0 || head.oldest > head.version {
                self.fault(format_args!(
                    "popup {:?}: version {} and {} as the oldest",
                    head.id, head.version, head.oldest
                ));
                continue;
            }
            for version in head.oldest..=head.version {
                self.version(no, &head, version)?;
            }
        }
        for (popup, segment) in std::mem::take(&mut self.named) {
            if !self.segments.contains(&segment) {
                self.fault(format_args!("popup {popup:?} names the segment {segment:?}, which does not exist"));
            }
        }
        Ok(())
    }

    /// Each journey has its versions, and each timer names its user.
    fn journeys(&mut self) -> StoreResult<()> {
        for (key, row) in self.rows(kind::JOURNEY)? {
            let Some(head) = self.readable(rows::decode::<JourneyHead>(&row))? else { continue };
            let Some(no) = number_in_key(&key).filter(|no| key.len() == 5 && !self.popups.contains(no)) else {
                self.fault(format_args!("journey {:?} stands under no number of its own", head.id));
                continue;
            };
            for version in head.oldest..=head.version {
                let named = format!("journey {:?} version {version}", head.id);
                let bytes = rows::read_long(self.store, &rows::journey_version_key(no, version));
                let Some(bytes) = self.readable(bytes)? else { continue };
                let Some(bytes) = bytes else {
                    self.fault(format_args!("{named} is missing"));
                    continue;
                };
                let Some(stored) = self.readable(rows::decode::<StoredVersion>(&bytes))? else { continue };
                let spec = serde_json::from_str::<PopupJourneySpec>(&stored.spec).map_err(|error| error.to_string());
                if let Err(why) = spec.and_then(|spec| check_journey(&spec).map_err(|refusal| refusal.detail)) {
                    self.fault(format_args!("{named}: {why}"));
                }
            }
        }
        let user_of = |id: &[u8]| std::str::from_utf8(id).map(UserKey::of).ok();
        for (key, id) in self.rows(kind::WAKE)? {
            let wake = self.readable(rows::read_wake(&key))?;
            if wake.is_some_and(|wake| user_of(&id) != Some(wake.user)) {
                self.fault(format_args!("a journey's timer names another user than its key"));
            }
        }
        for (key, id) in self.rows(kind::STANDING)? {
            if user_of(&id).is_none_or(|user| rows::standing_key(user) != key) {
                self.fault(format_args!("a user who stands in a journey is kept under another key"));
            }
        }
        Ok(())
    }

    fn version(&mut self, no: u32, head: &PopupHead, version: u32) -> StoreResult<()> {
        let bytes = rows::read_long(self.store, &rows::version_key(no, version));
        let Some(bytes) = self.readable(bytes)? else { return Ok(()) };
        let named = format!("popup {:?} version {version}", head.id);
        let Some(bytes) = bytes else {
            self.fault(format_args!("{named} is missing"));
            return Ok(());
        };
        let Some(stored) = self.readable(rows::decode::<StoredVersion>(&bytes))? else { return Ok(()) };
        if stored.version != version {
            self.fault(format_args!("{named} says that it is {}", stored.version));
        }
        let spec: PopupSpec = match serde_json::from_str(&stored.spec) {
            Ok(spec) => spec,
            Err(error) => {
                self.fault(format_args!("{named}: {error}"));
                return Ok(());
            }
        };
        // Older versions were validated by the rules of their time.
        if version == head.version {
            match check_spec(&spec) {
                Ok(checked) => {
                    let conversion = checked.conversion.as_ref().and_then(|conversion| conversion.condition.as_ref());
                    let rules = [checked.audience.as_ref(), checked.condition.as_ref(), conversion];
                    let segments = rules.into_iter().flatten().flat_map(|rule| rule.segments());
                    self.named.extend(segments.map(|segment| (head.id.clone(), segment.to_owned())));
                }
                Err(refusal) => self.fault(format_args!("{named}: {}", refusal.detail)),
            }
        }
        Ok(())
    }

    fn ids_and_settings(&mut self) -> StoreResult<()> {
        match self.store.row(SPACE, &rows::id_allocator_key())? {
            Some(row) => {
                if let Some(ids) = self.readable(rows::decode::<IdAllocator>(&row))? {
                    if self.popups.iter().any(|no| *no > ids.last_popup) {
                        self.fault(format_args!("a popup's number was not given out"));
                    }
                    if self.lists.iter().any(|list| *list > ids.last_list) {
                        self.fault(format_args!("a list's number was not given out"));
                    }
                }
            }
            None if !self
                .store
                .rows(SPACE, &[kind::ID_ALLOCATOR], &rows::end_of(vec![kind::EVENT_ID]), 1)?
                .is_empty() =>
            {
                self.fault(format_args!("the numbers that were given out are missing"));
            }
            None => {}
        }
        let last_taken = self.store.row(SPACE, &rows::last_taken_key())?;
        self.readable(last_taken.map(|row| rows::decode::<u64>(&row)).transpose())?;
        let text = rows::read_long(self.store, &rows::settings_key());
        if let Some(Some(text)) = self.readable(text)? {
            let settings = serde_json::from_slice::<PopupSettings>(&text).map_err(|error| error.to_string());
            if let Err(why) = settings.and_then(|settings| check_settings(&settings).map_err(|refusal| refusal.detail))
            {
                self.fault(format_args!("settings: {why}"));
            }
        }
        Ok(())
    }

    fn users(&mut self) -> StoreResult<()> {
        let store = self.store;
        let mut faults = Vec::new();
        let mut users = 0;
        for_each_row(store, &[kind::USER], |key, _| {
            let (user, part) = match key.split_last_chunk::<2>() {
                Some((user, part)) if user.len() == 17 => (user, u16::from_be_bytes(*part)),
                _ => {
                    faults.push("popups: a user's marks stand under another key".to_owned());
                    return Ok(());
                }
            };
            // Later parts are read together with the first. Parts beyond its count are left over from a longer list.
            if part > 0 {
                return Ok(());
            }
            users += 1;
            match rows::read_long(store, user)
                .and_then(|bytes| FrequencyCounters::from_bytes(&bytes.unwrap_or_default()))
            {
                Ok(_) => {}
                Err(StoreError::Damaged(what)) => faults.push(what),
                Err(error) => return Err(error),
            }
            Ok(())
        })?;
        self.checked.users = users;
        faults.into_iter().for_each(|what| (self.fault)(what));
        Ok(())
    }

    /// Each assignment is kept under its user.
    fn assignments(&mut self) -> StoreResult<()> {
        let (store, mut faults) = (self.store, Vec::new());
        let popups = &self.popups;
        for_each_row(store, &[kind::ASSIGNMENT], |key, row| {
            let read = AssignmentKey::read(key).and_then(|key| Ok((key, rows::decode::<StoredAssignment>(row)?)));
            match read {
                Err(StoreError::Damaged(what)) => faults.push(what),
                Err(error) => return Err(error),
                Ok((key, row)) if !row.user.is_empty() && UserKey::of(&row.user) != key.user => {
                    faults.push(format!("popups: an assignment of {:?} stands under another user", row.user));
                }
                // What a removed popup has left behind goes at the next start.
                Ok((key, row)) if popups.contains(&key.popup) && (row.conversions == 0) != (row.converted_at == 0) => {
                    faults.push(format!("popups: an assignment of {:?} counts no conversion of its time", row.user));
                }
                Ok(_) => {}
            }
            Ok(())
        })?;
        faults.into_iter().for_each(|what| (self.fault)(what));
        Ok(())
    }

    /// Each event has its id row and each id row its event, and no hour has more events than its counts say.
    fn events(&mut self) -> StoreResult<()> {
        let store = self.store;
        let mut faults = Vec::new();
        let mut found_counts: FxHashMap<(u32, u32, String), [u64; COUNT_KINDS]> = FxHashMap::default();
        let mut events = 0;
        for_each_row(store, &[kind::EVENT], |key, row| {
            events += 1;
            let event: StoredEvent = match rows::decode_event(row) {
                Ok((event, _)) => event,
                Err(error) => {
                    faults.push(error.to_string());
                    return Ok(());
                }
            };
            let hash = rows::event_id_hash(&event.user, &event.id);
            let taken_at = key.get(1..).and_then(|key| key.first_chunk()).copied().map(u64::from_be_bytes);
            let Some(taken_at) = taken_at.filter(|at| rows::event_key(*at, hash) == key) else {
                faults.push(format!("popups: event {:?} stands under another key", event.id));
                return Ok(());
            };
            match store.row(SPACE, &rows::event_id_key(hash))? {
                Some(at) if at == taken_at.to_be_bytes() => {}
                Some(_) => faults.push(format!("popups: event {:?} is known from another time", event.id)),
                None => faults.push(format!("popups: event {:?} is not known by its id", event.id)),
            }
            let Some(kind) = rows::event_kind_of(event.kind) else {
                faults.push(format!("popups: event {:?} is of no kind", event.id));
                return Ok(());
            };
            let Some(kind) = CountKind::of(kind) else { return Ok(()) };
            let hour = (taken_at / HOUR_MS) as u32;
            found_counts.entry((event.popup, hour, event.variant)).or_default()[kind as usize] += 1;
            Ok(())
        })?;
        let mut known = 0;
        for_each_row(store, &[kind::EVENT_ID], |key, row| {
            known += 1;
            let hash = key.get(1..).and_then(|hash| <[u8; 16]>::try_from(hash).ok()).map(u128::from_be_bytes);
            let at = <[u8; 8]>::try_from(row).ok().map(u64::from_be_bytes);
            let named = hash.zip(at).map(|(hash, at)| rows::event_key(at, EventIdHash(hash)));
            match named {
                Some(event) if store.row(SPACE, &event)?.is_some() => {}
                Some(_) => faults.push("popups: an id is known of an event that is not there".to_owned()),
                None => faults.push("popups: an event's id is not readable".to_owned()),
            }
            Ok(())
        })?;
        // The oldest hour of each popup that has counts.
        let mut first: FxHashMap<u32, u32> = FxHashMap::default();
        for_each_row(store, &[kind::COUNTS], |key, row| {
            let hour = key.get(5..9).and_then(read_u32);
            let (Some(popup), Some(hour)) = (number_in_key(key), hour) else {
                faults.push("popups: counts stand under another key".to_owned());
                return Ok(());
            };
            let counted = match rows::decode::<[u64; COUNT_KINDS]>(row) {
                Ok(counted) => counted,
                Err(error) => {
                    faults.push(error.to_string());
                    return Ok(());
                }
            };
            first.entry(popup).or_insert(hour);
            let variant = String::from_utf8_lossy(&key[9..]).into_owned();
            if let Some(found) = found_counts.remove(&(popup, hour, variant))
                && found.iter().zip(counted).any(|(found, counted)| *found > counted)
            {
                faults.push(format!("popups: more events of popup {popup} in hour {hour} than are counted"));
            }
            Ok(())
        })?;
        for (popup, hour, _) in found_counts.into_keys() {
            // Missing counts are no fault if the popup was deleted, or if all its counts up to that hour are missing:
            // the retention removes the oldest first.
            if self.popups.contains(&popup) && first.get(&popup).is_some_and(|first| *first <= hour) {
                faults.push(format!("popups: events of popup {popup} in hour {hour} are not counted"));
            }
        }
        self.checked.events = events;
        if known != events {
            faults.push(format!("popups: {events} events, and {known} ids of events"));
        }
        faults.into_iter().for_each(|what| (self.fault)(what));
        Ok(())
    }
}

fn read_u32(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_be_bytes)
}

/// The number that follows the kind in a key.
fn number_in_key(key: &[u8]) -> Option<u32> {
    key.get(1..).and_then(read_u32)
}
