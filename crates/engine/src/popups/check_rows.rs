//! Verifies what popups keep in a store that nobody writes to: every row reads, and those that belong together agree.
//!
//! What a stop may leave behind is no fault, since the next start drops it: lists that no segment has, versions and
//! counts of popups that are gone. Events of such popups stay for exports.

use super::{
    check::{check_settings, check_spec},
    counts::HOUR_MS,
    marks::Marks,
    recovery::each,
    rows::{self, COUNTED, Counted, EVENT_KINDS, EventName, Head, Numbers, SPACE, SegmentHead, StoredEvent, Version},
    segments::read_list,
};
use crate::store::{RowStore, StoreError, StoreResult};
use rustc_hash::{FxHashMap, FxHashSet};
use tidings_protocol::http::{PopupSettings, PopupSpec};

/// Rows of this kind are nobody's: tests of stores write them.
const NOBODYS: u8 = 0xFE;

/// How much was looked at.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CheckedRows {
    pub popups: u64,
    pub segments: u64,
    /// Users who were shown something.
    pub users: u64,
    pub events: u64,
}

struct Check<'a> {
    store: &'a dyn RowStore,
    fault: &'a mut dyn FnMut(String),
    checked: CheckedRows,
    /// The popups there are, by their numbers.
    popups: FxHashSet<u32>,
    lists: FxHashSet<u32>,
    segments: FxHashSet<String>,
    named: Vec<(String, String)>,
}

/// Checks all rows of popups; tells each fault in words.
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
    check.numbers_and_settings()?;
    check.users()?;
    check.events()?;
    Ok(check.checked)
}

impl Check<'_> {
    fn fault(&mut self, what: std::fmt::Arguments<'_>) {
        (self.fault)(format!("popups: {what}"));
    }

    /// What a part of the check could not read is a fault; a store that does not answer ends the check.
    fn found<T>(&mut self, result: StoreResult<T>) -> StoreResult<Option<T>> {
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
        each(self.store, &[kind], |key, row| {
            all.push((key.to_vec(), row.to_vec()));
            Ok(())
        })?;
        Ok(all)
    }

    /// No rows but those of the known kinds, one look each.
    fn kinds(&mut self) -> StoreResult<()> {
        let mut from = vec![11];
        while let Some((key, _)) = self.store.rows(SPACE, &from, &[0xFF; 80], 1)?.pop() {
            let kind = key.first().copied().unwrap_or_default();
            if kind != NOBODYS {
                self.fault(format_args!("rows of kind {kind}, which there is not"));
            }
            let Some(next) = kind.checked_add(1) else { break };
            from = vec![next];
        }
        Ok(())
    }

    fn segments(&mut self) -> StoreResult<()> {
        for (key, row) in self.rows(4)? {
            self.checked.segments += 1;
            let Some(head) = self.found(rows::decode::<SegmentHead>(&row))? else { continue };
            if rows::segment_key(&head.id) != key {
                self.fault(format_args!("segment {:?} stands under another key", head.id));
            }
            if !self.lists.insert(head.list) {
                self.fault(format_args!("segment {:?} shares its list with another", head.id));
            }
            let list = read_list(self.store, &head);
            if self.found(list)?.is_some() {
                self.chunks(&head)?;
            }
            self.segments.insert(head.id);
        }
        Ok(())
    }

    /// A list's chunks are numbered without a hole.
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
        for (key, row) in self.rows(1)? {
            self.checked.popups += 1;
            let Some(head) = self.found(rows::decode::<Head>(&row))? else { continue };
            let Some(no) = number(&key).filter(|_| key.len() == 5) else {
                self.fault(format_args!("popup {:?} stands under no number", head.id));
                continue;
            };
            self.popups.insert(no);
            if !ids.insert(head.id.clone()) {
                self.fault(format_args!("popup {:?} is there twice", head.id));
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

    fn version(&mut self, no: u32, head: &Head, version: u32) -> StoreResult<()> {
        let bytes = rows::read_long(self.store, &rows::version_key(no, version));
        let Some(bytes) = self.found(bytes)? else { return Ok(()) };
        let named = format!("popup {:?} version {version}", head.id);
        let Some(bytes) = bytes else {
            self.fault(format_args!("{named} is missing"));
            return Ok(());
        };
        let Some(stored) = self.found(rows::decode::<Version>(&bytes))? else { return Ok(()) };
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
        // Older ones were checked by what held then.
        if version == head.version {
            match check_spec(&spec) {
                Ok(checked) => {
                    let rules = [&checked.audience, &checked.condition];
                    let segments = rules.into_iter().flatten().flat_map(|rule| rule.segments());
                    self.named.extend(segments.map(|segment| (head.id.clone(), segment.to_owned())));
                }
                Err(refusal) => self.fault(format_args!("{named}: {}", refusal.detail)),
            }
        }
        Ok(())
    }

    fn numbers_and_settings(&mut self) -> StoreResult<()> {
        match self.store.row(SPACE, &rows::numbers_key())? {
            Some(row) => {
                if let Some(numbers) = self.found(rows::decode::<Numbers>(&row))? {
                    if self.popups.iter().any(|no| *no > numbers.popup) {
                        self.fault(format_args!("a popup's number was not given out"));
                    }
                    if self.lists.iter().any(|list| *list > numbers.list) {
                        self.fault(format_args!("a list's number was not given out"));
                    }
                }
            }
            None if !self.store.rows(SPACE, &[0], &rows::end_of(vec![9]), 1)?.is_empty() => {
                self.fault(format_args!("the numbers that were given out are missing"));
            }
            None => {}
        }
        let last_taken = self.store.row(SPACE, &rows::last_taken_key())?;
        self.found(last_taken.map(|row| rows::decode::<u64>(&row)).transpose())?;
        let text = rows::read_long(self.store, &rows::settings_key());
        if let Some(Some(text)) = self.found(text)? {
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
        each(store, &[6], |key, _| {
            let (user, part) = match key.split_last_chunk::<2>() {
                Some((user, part)) if user.len() == 17 => (user, u16::from_be_bytes(*part)),
                _ => {
                    faults.push("popups: a user's marks stand under another key".to_owned());
                    return Ok(());
                }
            };
            // Later parts are read with the first; those beyond its count are of a longer list that was.
            if part > 0 {
                return Ok(());
            }
            users += 1;
            match rows::read_long(store, user).and_then(|bytes| Marks::of_bytes(&bytes.unwrap_or_default())) {
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

    /// Each event has its id, each id its event, and counts count them all.
    fn events(&mut self) -> StoreResult<()> {
        let store = self.store;
        let mut faults = Vec::new();
        let mut happened: FxHashMap<(u32, u32, String), [u64; COUNTED]> = FxHashMap::default();
        let mut events = 0;
        each(store, &[8], |key, row| {
            events += 1;
            let event: StoredEvent = match rows::decode(row) {
                Ok(event) => event,
                Err(error) => {
                    faults.push(error.to_string());
                    return Ok(());
                }
            };
            let name = rows::event_name(&event.user, &event.id);
            let taken_at = key.get(1..).and_then(|key| key.first_chunk()).copied().map(u64::from_be_bytes);
            let Some(taken_at) = taken_at.filter(|at| rows::event_key(*at, name) == key) else {
                faults.push(format!("popups: event {:?} stands under another key", event.id));
                return Ok(());
            };
            match store.row(SPACE, &rows::event_id_key(name))? {
                Some(at) if at == taken_at.to_be_bytes() => {}
                Some(_) => faults.push(format!("popups: event {:?} is known from another time", event.id)),
                None => faults.push(format!("popups: event {:?} is not known by its id", event.id)),
            }
            let kind = usize::from(event.kind);
            if !EVENT_KINDS.iter().any(|known| Counted::from(*known) as usize == kind) {
                faults.push(format!("popups: event {:?} is of no kind", event.id));
                return Ok(());
            }
            let hour = (taken_at / HOUR_MS) as u32;
            happened.entry((event.popup, hour, event.variant)).or_default()[kind] += 1;
            Ok(())
        })?;
        let mut known = 0;
        each(store, &[9], |key, row| {
            known += 1;
            let name = key.get(1..).and_then(|name| <[u8; 16]>::try_from(name).ok()).map(u128::from_be_bytes);
            let at = <[u8; 8]>::try_from(row).ok().map(u64::from_be_bytes);
            let named = name.zip(at).map(|(name, at)| rows::event_key(at, EventName(name)));
            match named {
                Some(event) if store.row(SPACE, &event)?.is_some() => {}
                Some(_) => faults.push("popups: an id is known of an event that is not there".to_owned()),
                None => faults.push("popups: an event's id is not readable".to_owned()),
            }
            Ok(())
        })?;
        // The oldest hour that each popup has counts of.
        let mut first: FxHashMap<u32, u32> = FxHashMap::default();
        each(store, &[7], |key, row| {
            let hour = key.get(5..9).and_then(number_of);
            let (Some(popup), Some(hour)) = (number(key), hour) else {
                faults.push("popups: counts stand under another key".to_owned());
                return Ok(());
            };
            let counted = match rows::decode::<[u64; COUNTED]>(row) {
                Ok(counted) => counted,
                Err(error) => {
                    faults.push(error.to_string());
                    return Ok(());
                }
            };
            first.entry(popup).or_insert(hour);
            let variant = String::from_utf8_lossy(&key[9..]).into_owned();
            if let Some(happened) = happened.remove(&(popup, hour, variant))
                && happened.iter().zip(counted).any(|(happened, counted)| *happened > counted)
            {
                faults.push(format!("popups: more events of popup {popup} in hour {hour} than are counted"));
            }
            Ok(())
        })?;
        for (popup, hour, _) in happened.into_keys() {
            // Counts that are older than they are kept go, the oldest first; those of popups that are gone too.
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

fn number_of(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().copied().map(u32::from_be_bytes)
}

/// The number behind the kind of row in a key.
fn number(key: &[u8]) -> Option<u32> {
    key.get(1..).and_then(number_of)
}
