//! The registry a stretch at a time, as one node tells another of all its sessions.
//!
//! A stretch is told as a whole: whose sessions are not in it has none there. So each stretch stands by itself,
//! and what comes and goes between two of them is told like everything else that does.

use super::{
    Device, NodeNo,
    registry::{Arrival, Departure, Registry, STRIPES},
};
use crate::model::UserNo;
use rustc_hash::FxHashSet;
use serde::{Deserialize, Serialize};

/// How far the registry was told: whole stripes before this one, and of this one the users up to this number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub(crate) struct Place {
    pub stripe: u16,
    /// Absent: none of this stripe.
    pub through: Option<UserNo>,
}

impl Place {
    pub(crate) const END: Place = Place { stripe: STRIPES as u16, through: None };
}

/// What a stretch changed.
pub(super) enum Happened {
    Arrived(Arrival, u64),
    Left(Departure),
}

impl Registry {
    /// This core's own sessions from `from` on, about as many as `limit`, and how far that is.
    pub(super) fn own_stretch(&self, from: Place, limit: usize) -> (Vec<(UserNo, Device)>, Place) {
        let mut told = Vec::new();
        let mut place = from;
        while usize::from(place.stripe) < STRIPES {
            let mut last = place.through;
            let whole = self.look_through(usize::from(place.stripe), place.through, |user, devices| {
                if told.len() >= limit {
                    return false;
                }
                told.extend(devices.into_iter().filter(|device| !device.node.is_peer()).map(|device| (user, device)));
                last = Some(user);
                true
            });
            if !whole {
                return (told, Place { through: last, ..place });
            }
            place = Place { stripe: place.stripe + 1, through: None };
        }
        (told, Place::END)
    }

    /// What a peer has from `from` to `to` is this and nothing else; `then` is told what that changed, while nobody
    /// else can change it. Who is there before and after never goes.
    pub(super) fn replace(
        &self,
        peer: NodeNo,
        (from, to): (Place, Place),
        told: Vec<(UserNo, Device)>,
        mut then: impl FnMut(UserNo, u64, Happened),
    ) {
        let named: FxHashSet<(UserNo, u64)> = told.iter().map(|(user, device)| (*user, device.session)).collect();
        for (user, device) in told {
            let session = device.session;
            self.arrive(user, device, |arrival, since| then(user, session, Happened::Arrived(arrival, since)));
        }
        for stripe in from.stripe..=to.stripe.min(STRIPES as u16 - 1) {
            let after = from.through.filter(|_| stripe == from.stripe);
            let through = match stripe == to.stripe {
                true if to.through.is_none() => continue,
                true => to.through,
                false => None,
            };
            let is_gone = |user, device: &Device| device.node == peer && !named.contains(&(user, device.session));
            let mut gone = Vec::new();
            self.look_through(usize::from(stripe), after, |user, devices| {
                if through.is_some_and(|through| user > through) {
                    return false;
                }
                gone.extend(devices.iter().filter(|device| is_gone(user, device)).map(|device| (user, device.session)));
                true
            });
            for (user, session) in gone {
                let mut stripe = self.stripe(user).write();
                if let Some(departure) = stripe.leave(user, peer, session) {
                    then(user, session, Happened::Left(departure));
                }
            }
        }
    }
}
