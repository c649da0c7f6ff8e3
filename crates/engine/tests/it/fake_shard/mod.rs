//! A shard without sockets: it records the pushes that each device is handed, reports them as written, and acknowledges
//! them when the test says so.
#![allow(unreachable_pub)]

use crate::support::World;
use std::{collections::BTreeMap, sync::Arc};
use tidings_domain::{clock::Clock, push_store::DeviceNo, store::Store};
use tidings_engine::config::EngineConfig;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    frames::ServerFrame,
    http::*,
    miop::{self, Frame},
};
use tidings_push::{PushFrame, PushItem, PushReports, Register};

/// What a push says in either form: its number and end, its key, whether it is urgent, its type and body.
type Said = (u64, u64, Option<String>, bool, String, String);

fn said_in_miop(frame: &PushFrame) -> Said {
    let head = miop::take_head(&frame.miop, usize::MAX).unwrap().unwrap();
    assert_eq!(head.payload.end, frame.miop.len(), "one whole frame");
    let Frame::Push(push) = miop::decode(head.kind, &frame.miop[head.payload]).unwrap() else { panic!("no push") };
    let body = String::from_utf8(push.body.to_vec()).unwrap();
    let key = push.collapse_key.map(str::to_owned);
    (push.push, push.expires_at, key, push.priority == 1, push.content_type.to_owned(), body)
}

fn said_in_json(frame: &PushFrame) -> Said {
    let ServerFrame::Push(push) = serde_json::from_slice(&frame.json).unwrap() else { panic!("no push") };
    (push.push, push.expires_at, push.collapse_key, push.high, push.content_type, push.body.get().to_owned())
}

pub struct Phone {
    pub session: u64,
    pub device: DeviceNo,
}

pub struct Shard {
    pub world: World,
    /// Live sessions by device name.
    pub phones: BTreeMap<String, Phone>,
    /// The pushes that each device was handed since the test looked last, in order.
    pub handed: BTreeMap<String, Vec<u64>>,
    /// The frame of each push, in JSON.
    pub frames: BTreeMap<u64, serde_json::Value>,
    pub refused: Vec<Refusal>,
    /// Sessions that are live without their device, by name.
    pub later: BTreeMap<String, u64>,
    binding: BTreeMap<u64, String>,
    next_session: u64,
}

impl Shard {
    pub fn new(config: EngineConfig, store: Arc<dyn Store>) -> Shard {
        Shard::of(World::new(config, store))
    }

    pub fn of(world: World) -> Shard {
        let (phones, handed, frames, later, binding) = Default::default();
        Shard { world, phones, handed, frames, refused: vec![], later, binding, next_session: 1 }
    }

    /// Has the worker do everything due, and takes the items that follow.
    pub fn settle(&mut self) {
        self.world.engine.push.settle().unwrap();
        while self.take() {
            self.world.engine.push.settle().unwrap();
        }
    }

    /// Takes the items in this shard's queue; answers whether there were any.
    pub fn take(&mut self) -> bool {
        let items: Vec<PushItem> = self.world.receivers[0].push.try_iter().collect();
        let any = !items.is_empty();
        for item in items {
            let (frames, sessions): (Vec<_>, Vec<u64>) = match item {
                PushItem::Registered { session, result } => {
                    self.registered(session, result);
                    continue;
                }
                PushItem::Pending { session, frames } => (frames, vec![session]),
                PushItem::Sessions { frame, sessions } => (vec![frame], sessions),
                PushItem::Matching { frame, devices } => {
                    let is_meant = |phone: &&Phone| devices.contains(phone.device);
                    (vec![frame], self.phones.values().filter(is_meant).map(|phone| phone.session).collect())
                }
            };
            for (name, phone) in self.phones.iter().filter(|(_, phone)| sessions.contains(&phone.session)) {
                for frame in &frames {
                    assert_eq!(said_in_miop(frame), said_in_json(frame), "{}", frame.push);
                    self.handed.entry(name.clone()).or_default().push(frame.push);
                    self.frames.insert(frame.push, serde_json::from_slice(&frame.json).unwrap());
                    let mut reports = PushReports::default();
                    reports.add_written(frame.push, phone.device);
                    self.world.engine.push.report(reports);
                }
            }
        }
        any
    }

    fn registered(&mut self, session: u64, result: Result<DeviceNo, Refusal>) {
        let late = self.later.iter().find(|(_, late)| **late == session).map(|(name, _)| name.clone());
        let again = self.phones.iter().find(|(_, phone)| phone.session == session).map(|(name, _)| name.clone());
        let name = self.binding.remove(&session).or(late).or(again);
        match (name, result) {
            (Some(name), Ok(device)) => {
                self.later.remove(&name);
                self.phones.insert(name, Phone { session, device });
            }
            (Some(name), Err(refusal)) if refusal.code == ErrorCode::NodeUnavailable => {
                self.later.insert(name, session);
            }
            (Some(name), Err(refusal)) => {
                self.refused.push(refusal);
                // The device of a live session was removed.
                if self.phones.get(&name).is_some_and(|phone| phone.session == session) {
                    self.phones.remove(&name);
                }
            }
            (None, Ok(device)) => self.world.engine.push.session_ended(0, session, Some(device)),
            (None, Err(_)) => {}
        }
    }

    /// A device is named `user/device_id`; the id begins with the device's kind: `ann/phone-1`.
    pub fn ask_to_bind(&mut self, name: &str) {
        let (user, device_id) = name.split_once('/').unwrap();
        let kind = device_id.split('-').next().unwrap();
        let session = self.next_session;
        self.next_session += 1;
        self.binding.insert(session, name.to_owned());
        let register = Register {
            shard: 0,
            session,
            user: self.world.user(user).no,
            device_id: device_id.into(),
            device_kind: kind.into(),
            app_version: Some("1".into()),
            since: self.world.clock.now_ms(),
        };
        self.world.engine.push.register(register).unwrap();
    }

    pub fn bind(&mut self, name: &str) {
        self.ask_to_bind(name);
        self.settle();
        assert!(self.phones.contains_key(name), "{name}: {:?}", self.refused);
    }

    pub fn leave(&mut self, name: &str) {
        let phone = self.phones.remove(name).unwrap();
        self.world.engine.push.session_ended(0, phone.session, Some(phone.device));
        self.settle();
    }

    pub fn acknowledge(&mut self, name: &str, pushes: &[u64]) {
        self.report_acknowledged(name, pushes);
        self.settle();
    }

    /// The same, without waiting for it.
    pub fn report_acknowledged(&self, name: &str, pushes: &[u64]) {
        self.report_all_acknowledged(&[(name, pushes)]);
    }

    /// Reports at once what devices have acknowledged.
    pub fn report_all_acknowledged(&self, acknowledged: &[(&str, &[u64])]) {
        let mut reports = PushReports::default();
        for (name, pushes) in acknowledged {
            reports.add_acknowledged(self.phones[*name].device, pushes);
        }
        self.world.engine.push.report(reports);
    }

    /// The pushes that a device was handed since the last call.
    pub fn handed(&mut self, name: &str) -> Vec<u64> {
        self.settle();
        self.handed.remove(name).unwrap_or_default()
    }

    pub fn try_push(&mut self, request: serde_json::Value) -> Result<PushAccepted, Refusal> {
        let prepared = self.world.engine.push.prepare(serde_json::from_str(&request.to_string()).unwrap())?;
        let accepted = self.world.wait(self.world.engine.push.accept(prepared));
        self.settle();
        accepted
    }

    /// Sends a push with a small body; `more` adds or replaces fields.
    pub fn push(&mut self, to: serde_json::Value, more: serde_json::Value) -> PushAccepted {
        let mut request = serde_json::json!({ "to": to, "body": {"n": 1} });
        request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        self.try_push(request).unwrap()
    }

    pub fn status(&self, push: u64) -> PushStatus {
        self.world.engine.push.status(push).unwrap()
    }

    /// Sets the clock.
    pub fn at(&mut self, now_ms: u64) {
        self.world.clock.set(now_ms);
        self.settle();
    }

    /// The state of a push on each of its devices, by name.
    pub fn states(&self, push: u64) -> BTreeMap<String, DeviceState> {
        let mut all = BTreeMap::new();
        let mut after = None;
        loop {
            let page = self.world.engine.push.devices(push, None, after, 3).unwrap();
            all.extend(page.devices.into_iter().map(|d| (format!("{}/{}", d.user, d.device_id), d.state)));
            after = page.next;
            if after.is_none() {
                return all;
            }
        }
    }
}
