//! The conformance suite, run on the embedded store, on PostgreSQL, and on the store in memory that both are compared with.

use crate::support;
use tidings_domain::store::Store;
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
    let server = support::postgres::PostgresServer::shared();
    run(|check| check(&support::postgres::open_at(&server.database())));
}

#[test]
fn the_store_in_memory_passes() {
    run(|check| check(&MemoryStore::default()));
}
