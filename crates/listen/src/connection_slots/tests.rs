#![allow(clippy::unwrap_used)]
use super::*;
use crate::client::Client;
use std::task::{Context, Waker};

const HERE: &str = "192.0.2.1";

fn slots(connections_max: usize, per_address_max: usize, reserve: usize) -> Arc<ConnectionSlots> {
    ConnectionSlots::new(ConnectionSlotsConfig {
        connections_max,
        per_address_max,
        per_local_address_max: per_address_max,
        per_user_max: 2,
        reserve,
        idle_min: Duration::ZERO,
    })
}

fn enter(slots: &Arc<ConnectionSlots>, address: &str) -> Option<ConnectionSlot> {
    let mut slot = slots.acquire()?;
    slot.assign_address(address.parse().unwrap()).then_some(slot)
}

fn is_evicted(slot: &ConnectionSlot) -> bool {
    let mut evicted = Box::pin(slot.evicted());
    evicted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn full_slots_evict_the_oldest_idle_unauthenticated_connection() {
    let slots = slots(3, 3, 0);
    let [first, second, third] = [(); 3].map(|()| enter(&slots, HERE).unwrap());
    first.activity().set_client(Client::AppServer);
    let busy = second.activity();
    assert!(busy.begin_request());
    let fourth = enter(&slots, HERE).unwrap();
    assert!(!is_evicted(&first) && !is_evicted(&second) && is_evicted(&third) && !is_evicted(&fourth));
    assert!(!third.activity().begin_request(), "a request of an evicted connection is not begun");
    busy.end_request();
    let fifth = enter(&slots, HERE).unwrap();
    assert!(is_evicted(&fourth) && !is_evicted(&second) && !is_evicted(&fifth));
    assert_eq!((slots.open(), slots.evictions()), (5, 2));
    drop((third, fourth));
    assert_eq!(slots.open(), 3);
}

#[test]
fn authenticated_and_busy_connections_are_never_evicted() {
    let slots = slots(2, 2, 0);
    let [authenticated, busy] = [(); 2].map(|()| enter(&slots, HERE).unwrap());
    authenticated.activity().set_client(Client::AppServer);
    assert!(authenticated.activity().begin_request() && busy.activity().begin_request());
    assert!(enter(&slots, HERE).is_none());
    authenticated.activity().end_request();
    assert!(enter(&slots, HERE).is_none());
    assert!(!is_evicted(&authenticated) && !is_evicted(&busy));
    drop(authenticated);
    assert!(enter(&slots, HERE).is_some());
}

#[test]
fn an_address_over_its_limit_evicts_its_own_connections_only() {
    let slots = slots(10, 2, 0);
    let other = enter(&slots, "192.0.2.2").unwrap();
    let all: Vec<ConnectionSlot> = (0..5).map(|_| enter(&slots, HERE).unwrap()).collect();
    assert_eq!(all.iter().map(is_evicted).collect::<Vec<_>>(), [true, true, true, false, false]);
    assert!(!is_evicted(&other), "older than all of them");
    assert!(all.iter().skip(3).all(|slot| slot.activity().set_client(Client::AppServer)));
    assert!(enter(&slots, HERE).is_none());
    assert!(enter(&slots, "192.0.2.2").is_some());
    assert!(enter(&slots, "::ffff:192.0.2.1").is_none(), "the same address in the form of IPv6");
}

#[test]
fn addresses_of_one_ipv6_network_count_as_one_address() {
    let slots = slots(10, 1, 0);
    let first = enter(&slots, "2001:db8:0:1::1").unwrap();
    let second = enter(&slots, "2001:db8:0:1:ffff::2").unwrap();
    let third = enter(&slots, "2001:db8:0:2::1").unwrap();
    assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&third));
}

#[test]
fn the_reserve_admits_connections_when_nothing_can_be_evicted() {
    let slots = slots(1, 1, 2);
    let authenticated = enter(&slots, HERE).unwrap();
    authenticated.activity().set_client(Client::AppServer);
    let [first, second, third] = [(); 3].map(|()| enter(&slots, HERE).unwrap());
    assert!([&first, &second, &third].iter().all(|slot| slot.is_reserved()) && !authenticated.is_reserved());
    assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&third));
    assert_eq!(slots.open(), 1);
    drop((first, second, third));
    assert!(enter(&slots, HERE).unwrap().is_reserved());
    drop(authenticated);
    assert!(!enter(&slots, HERE).unwrap().is_reserved());
}

#[test]
fn the_connection_with_the_latest_request_is_evicted_last() {
    let slots = slots(2, 2, 0);
    let [first, second] = [(); 2].map(|()| enter(&slots, HERE).unwrap());
    assert!(first.activity().begin_request());
    first.activity().end_request();
    let third = enter(&slots, HERE).unwrap();
    assert!(!is_evicted(&first) && is_evicted(&second) && !is_evicted(&third));
}

#[test]
fn a_connection_idle_for_less_than_the_minimum_is_not_evicted() {
    let config = ConnectionSlotsConfig {
        connections_max: 2,
        per_address_max: 2,
        per_local_address_max: 2,
        per_user_max: 9,
        reserve: 1,
        idle_min: Duration::from_secs(3_600),
    };
    let slots = ConnectionSlots::new(config);
    let all = [(); 3].map(|()| enter(&slots, HERE).unwrap());
    assert!(all[2].is_reserved() && enter(&slots, HERE).is_none());
    assert!(!all.iter().any(is_evicted));
}

#[test]
fn loopback_addresses_have_a_limit_of_their_own() {
    let config = ConnectionSlotsConfig {
        connections_max: 9,
        per_address_max: 1,
        per_local_address_max: 3,
        per_user_max: 9,
        reserve: 0,
        idle_min: Duration::ZERO,
    };
    let slots = ConnectionSlots::new(config);
    for address in ["127.0.0.1", "::1", "127.0.0.2"] {
        let all: Vec<ConnectionSlot> = (0..3).map(|_| enter(&slots, address).unwrap()).collect();
        assert!(!all.iter().any(is_evicted), "{address}");
    }
}

#[test]
fn the_table_is_empty_when_all_connections_are_closed() {
    let slots = slots(4, 2, 1);
    let mut all = Vec::new();
    for round in 0..40 {
        let slot = enter(&slots, ["192.0.2.1", "192.0.2.2", "2001:db8::1"][round % 3]);
        if let Some(slot) = slot {
            match round % 5 {
                0 => _ = slot.activity().set_client(Client::AppServer),
                1 | 2 => _ = slot.activity().set_client(Client::User(round as u64 % 2)),
                _ => {}
            }
            all.push(slot);
        }
        if round % 7 == 0 && !all.is_empty() {
            all.swap_remove(round % all.len());
        }
    }
    all.clear();
    let table = slots.table.lock();
    assert_eq!((table.open, table.evicting, table.in_reserve), (0, 0, 0));
    assert!(table.idle.is_empty() && table.idle_in_reserve.is_empty() && table.addresses.is_empty());
    assert!(table.users.is_empty());
}

/// A connection on which a request with this client's credential was answered.
fn used(slots: &Arc<ConnectionSlots>, client: Client) -> ConnectionSlot {
    let slot = enter(slots, HERE).unwrap();
    let activity = slot.activity();
    assert!(activity.begin_request() && activity.set_client(client));
    activity.end_request();
    slot
}

#[test]
fn idle_connections_of_users_give_way_after_those_without_a_credential() {
    let slots = slots(4, 4, 0);
    let app = used(&slots, Client::AppServer);
    let [ann, bob] = [1, 2].map(|user| used(&slots, Client::User(user)));
    let nobody = enter(&slots, HERE).unwrap();
    let _one = enter(&slots, HERE).unwrap();
    assert!(is_evicted(&nobody) && !is_evicted(&ann));
    let busy = _one.activity();
    assert!(busy.begin_request());
    // A request makes a user's connection the one that has been idle for the shortest time.
    let activity = ann.activity();
    assert!(activity.begin_request());
    activity.end_request();
    let two = enter(&slots, HERE).unwrap();
    assert!(is_evicted(&bob) && !is_evicted(&ann));
    assert!(two.activity().begin_request() && activity.begin_request());
    assert!(enter(&slots, HERE).is_none(), "busy connections and those of app servers stay");
    assert!(!is_evicted(&app) && !is_evicted(&ann));
}

#[test]
fn a_user_with_too_many_connections_loses_idle_ones_and_then_is_refused() {
    let slots = slots(20, 20, 0);
    let [first, second, third] = [(); 3].map(|()| used(&slots, Client::User(7)));
    assert!(is_evicted(&first) && !is_evicted(&second) && !is_evicted(&third));
    let busy = [&second, &third].map(ConnectionSlot::activity);
    assert!(busy.iter().all(ConnectionActivity::begin_request));
    let fourth = enter(&slots, HERE).unwrap();
    assert!(fourth.activity().begin_request() && !fourth.activity().set_client(Client::User(7)));
    assert!(fourth.activity().set_client(Client::User(8)), "another user");
    // Behind a proxy, one connection carries the requests of many users: it is the latest one's.
    assert!(busy[0].set_client(Client::User(8)) && busy[0].client() == Client::User(8));
    let fifth = enter(&slots, HERE).unwrap();
    assert!(fifth.activity().begin_request() && fifth.activity().set_client(Client::User(7)));
    // An app server's stays one.
    assert!(busy[0].set_client(Client::AppServer) && busy[0].set_client(Client::User(7)));
    assert_eq!(busy[0].client(), Client::AppServer);
}
