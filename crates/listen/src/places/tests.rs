#![allow(clippy::unwrap_used)]
use super::*;
use std::task::Context;

const HERE: &str = "192.0.2.1";

fn places(most: usize, of_one_address: usize, reserve: usize) -> Arc<Places> {
    let of_this_machine = of_one_address;
    Places::new(PlacesConfig { most, of_one_address, of_this_machine, reserve, idle_min: Duration::ZERO })
}

fn enter(places: &Arc<Places>, address: &str) -> Option<Place> {
    let mut place = places.take()?;
    place.settle(address.parse().unwrap()).then_some(place)
}

fn is_sent_away(place: &Place) -> bool {
    let mut evicted = Box::pin(place.evicted());
    evicted.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn the_oldest_idle_stranger_gives_way() {
    let places = places(3, 3, 0);
    let [first, second, third] = [(); 3].map(|()| enter(&places, HERE).unwrap());
    first.standing().know();
    let asks = second.standing();
    assert!(asks.begin());
    let fourth = enter(&places, HERE).unwrap();
    assert!(!is_sent_away(&first) && !is_sent_away(&second) && is_sent_away(&third) && !is_sent_away(&fourth));
    assert!(!third.standing().begin(), "what it asks now is not begun");
    asks.end();
    let fifth = enter(&places, HERE).unwrap();
    assert!(is_sent_away(&fourth) && !is_sent_away(&second) && !is_sent_away(&fifth));
    assert_eq!((places.taken(), places.evicted()), (5, 2));
    drop((third, fourth));
    assert_eq!(places.taken(), 3);
}

#[test]
fn who_is_known_or_asks_is_never_sent_away() {
    let places = places(2, 2, 0);
    let [known, asks] = [(); 2].map(|()| enter(&places, HERE).unwrap());
    known.standing().know();
    assert!(known.standing().begin() && asks.standing().begin());
    assert!(enter(&places, HERE).is_none());
    known.standing().end();
    assert!(enter(&places, HERE).is_none());
    assert!(!is_sent_away(&known) && !is_sent_away(&asks));
    drop(known);
    assert!(enter(&places, HERE).is_some());
}

#[test]
fn one_address_has_its_share_and_others_keep_theirs() {
    let places = places(10, 2, 0);
    let other = enter(&places, "192.0.2.2").unwrap();
    let all: Vec<Place> = (0..5).map(|_| enter(&places, HERE).unwrap()).collect();
    assert_eq!(all.iter().map(is_sent_away).collect::<Vec<_>>(), [true, true, true, false, false]);
    assert!(!is_sent_away(&other), "older than all of them");
    all.iter().skip(3).for_each(|place| place.standing().know());
    assert!(enter(&places, HERE).is_none());
    assert!(enter(&places, "192.0.2.2").is_some());
    assert!(enter(&places, "::ffff:192.0.2.1").is_none(), "the same in the form of IPv6");
}

#[test]
fn addresses_of_one_ipv6_network_are_one() {
    let places = places(10, 1, 0);
    let first = enter(&places, "2001:db8:0:1::1").unwrap();
    let second = enter(&places, "2001:db8:0:1:ffff::2").unwrap();
    let third = enter(&places, "2001:db8:0:2::1").unwrap();
    assert!(is_sent_away(&first) && !is_sent_away(&second) && !is_sent_away(&third));
}

#[test]
fn the_reserve_is_left_when_all_are_known() {
    let places = places(1, 1, 2);
    let known = enter(&places, HERE).unwrap();
    known.standing().know();
    let [first, second, third] = [(); 3].map(|()| enter(&places, HERE).unwrap());
    assert!([&first, &second, &third].iter().all(|place| place.is_reserved()) && !known.is_reserved());
    assert!(is_sent_away(&first) && !is_sent_away(&second) && !is_sent_away(&third));
    assert_eq!(places.taken(), 1);
    drop((first, second, third));
    assert!(enter(&places, HERE).unwrap().is_reserved());
    drop(known);
    assert!(!enter(&places, HERE).unwrap().is_reserved());
}

#[test]
fn who_has_asked_last_stays_longest() {
    let places = places(2, 2, 0);
    let [first, second] = [(); 2].map(|()| enter(&places, HERE).unwrap());
    assert!(first.standing().begin());
    first.standing().end();
    let third = enter(&places, HERE).unwrap();
    assert!(!is_sent_away(&first) && is_sent_away(&second) && !is_sent_away(&third));
}

#[test]
fn in_a_storm_nobody_is_sent_away_before_its_turn() {
    let config = PlacesConfig {
        most: 2,
        of_one_address: 2,
        of_this_machine: 2,
        reserve: 1,
        idle_min: Duration::from_secs(3_600),
    };
    let places = Places::new(config);
    let all = [(); 3].map(|()| enter(&places, HERE).unwrap());
    assert!(all[2].is_reserved() && enter(&places, HERE).is_none());
    assert!(!all.iter().any(is_sent_away));
}

#[test]
fn this_machine_has_a_share_of_its_own() {
    let config = PlacesConfig { most: 9, of_one_address: 1, of_this_machine: 3, reserve: 0, idle_min: Duration::ZERO };
    let places = Places::new(config);
    for address in ["127.0.0.1", "::1", "127.0.0.2"] {
        let all: Vec<Place> = (0..3).map(|_| enter(&places, address).unwrap()).collect();
        assert!(!all.iter().any(is_sent_away), "{address}");
    }
}

#[test]
fn nothing_is_left_over_when_all_have_gone() {
    let places = places(4, 2, 1);
    let mut all = Vec::new();
    for round in 0..40 {
        let place = enter(&places, ["192.0.2.1", "192.0.2.2", "2001:db8::1"][round % 3]);
        if let Some(place) = place {
            if round % 5 == 0 {
                place.standing().know();
            }
            all.push(place);
        }
        if round % 7 == 0 && !all.is_empty() {
            all.swap_remove(round % all.len());
        }
    }
    all.clear();
    let ledger = places.ledger.lock();
    assert_eq!((ledger.open, ledger.leaving, ledger.in_reserve), (0, 0, 0));
    assert!(ledger.strangers.is_empty() && ledger.reserved.is_empty() && ledger.addresses.is_empty());
}
