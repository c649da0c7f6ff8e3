//! The conformance suite, run on the embedded store, on PostgreSQL, and on the store in memory that both are compared with.

use crate::support::{
    self,
    plans::{LOGGED, check_that_rows_are_found_by_keys},
    postgres::PostgresServer,
};
use std::time::{Duration, Instant};
use tidings_domain::store::{NamedKind, StandbyOutcome, Store};
use tidings_store::{PostgresOptions, PostgresStore};
use tidings_testkit::{MemoryStore, store_conformance};

fn run(fresh: impl Fn(&mut dyn FnMut(&dyn Store))) {
    for (name, check) in store_conformance::all() {
        println!("{name}");
        fresh(&mut |store| check(store));
    }
}

#[test]
fn the_embedded_store_passes() {
    run(|check| {
        let folder = support::scratch();
        let store = support::open(folder.path());
        check(&store);
        let report = store.check(tidings_popups::check_popups).unwrap();
        assert!(report.is_sound(), "{report}");
    });
}

#[test]
fn the_store_on_postgresql_passes() {
    let server = PostgresServer::start(&LOGGED);
    run(|check| check(&support::postgres::open_at(&server.database())));
    check_that_rows_are_found_by_keys(&server);
}

#[test]
fn the_store_on_postgresql_passes_with_reads_from_a_standby() {
    passes_with_a_standby(1);
}

#[test]
fn the_store_on_postgresql_of_several_orders_passes_with_reads_from_a_standby() {
    passes_with_a_standby(4);
}

fn passes_with_a_standby(orders: u16) {
    let primary = PostgresServer::start(&LOGGED);
    let standby = primary.standby(&LOGGED);
    run(|check| {
        let url = primary.database();
        let options = PostgresOptions { orders, ..support::postgres::options_at(&url) };
        drop(PostgresStore::open(options.clone()).unwrap());
        primary.wait_for_replay(&standby);
        let read_urls = vec![standby.url(url.rsplit('/').next().unwrap())];
        let options = PostgresOptions { read_urls, ..options };
        let store = PostgresStore::open(options).unwrap();
        let deadline = Instant::now() + Duration::from_secs(120);
        while store.stats().standby_reads.of(StandbyOutcome::Served) == 0 {
            assert!(Instant::now() < deadline, "the standby serves no reads");
            store.ids(NamedKind::User, "", "", 1).unwrap();
        }
        check(&store);
    });
    check_that_rows_are_found_by_keys(&primary);
    check_that_rows_are_found_by_keys(&standby);
}

#[test]
fn the_store_in_memory_passes() {
    run(|check| check(&MemoryStore::default()));
}
