//! Unit tests of `src/directory/users.rs`.

use super::*;

fn user(no: u64, id: &str) -> User {
    User {
        no: UserNo(no),
        id: id.to_owned(),
        name: None,
        avatar: None,
        created_at: 1,
        revoked_at: 0,
        receipts_off: false,
        blocks: 0,
        extras: None,
    }
}

fn load(cache: &UserCache, no: u64, id: &str) -> Arc<User> {
    cache.get_or_load(UserNo(no), || Ok(Some(user(no, id)))).unwrap().unwrap()
}

fn indexed(cache: &UserCache) -> usize {
    cache.by_id.parts.iter().map(|part| part.read().len()).sum()
}

#[test]
fn a_user_takes_little_memory_besides_the_profile() {
    const USERS: usize = 10_000;
    let cache = UserCache::new(10 * USERS);
    (0..USERS).for_each(|no| drop(load(&cache, no as u64, &format!("u{no}"))));
    let index: usize = cache.by_id.parts.iter().map(|part| part.read().allocation_size()).sum();
    let each = [index, cache.users.memory_used().total()].map(|bytes| bytes / USERS);
    println!("bytes of a user in the index by id and in the cache: {each:?}");
    // A place in a table takes 9 and 5 bytes, and 7 to 14 of 16 places are taken; an entry of the cache takes 40.
    assert!(each[0] <= 21 && each[1] <= 52, "{each:?}");
}

#[test]
fn an_id_is_found_as_long_as_its_user_is_in_the_cache() {
    let cache = UserCache::new(100);
    let users: Vec<(u64, String)> = (1..=1_000).map(|no| (no, format!("u{no}"))).collect();
    users.iter().for_each(|(no, id)| drop(load(&cache, *no, id)));
    assert_eq!(indexed(&cache), cache.users.len());
    let found = |id: &str| cache.get_by_id(id).map(|user| user.no);
    assert!(users.iter().all(|(no, id)| found(id) == cache.get(UserNo(*no)).map(|user| user.no)));
    users.iter().for_each(|(no, _)| cache.invalidate(UserNo(*no)));
    assert_eq!((indexed(&cache), cache.users.len()), (0, 0));
}

#[test]
fn a_user_who_changes_while_being_loaded_is_not_cached() {
    let changes: [&dyn Fn(&UserCache); 3] =
        [&|cache| cache.invalidate(UserNo(1)), &|cache| cache.invalidate_ids(["ann"].into_iter()), &UserCache::clear];
    for change in changes {
        let cache = UserCache::new(100);
        let load_old = || {
            change(&cache);
            Ok(Some(user(1, "ann")))
        };
        assert!(cache.get_or_load(UserNo(1), load_old).unwrap().is_some(), "it serves this caller");
        assert!(cache.get(UserNo(1)).is_none() && cache.get_by_id("ann").is_none());
        assert_eq!(indexed(&cache), 0);
        load(&cache, 1, "ann");
        assert!(cache.get_by_id("ann").is_some());
        assert_eq!(indexed(&cache), 1);
    }
}

#[test]
fn a_user_who_changes_while_being_found_by_id_is_read_once_more() {
    let changes: [&dyn Fn(&UserCache); 3] =
        [&|cache| cache.invalidate(UserNo(1)), &|cache| cache.invalidate_ids(["ann"].into_iter()), &UserCache::clear];
    for change in changes {
        let cache = UserCache::new(100);
        let find_old = || {
            change(&cache);
            Ok(Some(user(1, "ann")))
        };
        let load_new = |no| Ok(Some(User { blocks: 1, no, ..user(1, "ann") }));
        assert_eq!(cache.load_by_id(find_old, load_new).unwrap().unwrap().blocks, 1);
        assert_eq!(cache.get_by_id("ann").unwrap().blocks, 1);
        cache.clear();
        let never = |_| unreachable!("nothing has changed");
        assert_eq!(cache.load_by_id(|| Ok(Some(user(1, "ann"))), never).unwrap().unwrap().blocks, 0);
        assert_eq!(indexed(&cache), 1);
    }
}

#[test]
fn an_id_is_that_of_the_user_who_has_it_now() {
    let cache = UserCache::new(100);
    load(&cache, 1, "ann");
    cache.invalidate_ids(["ann"].into_iter());
    load(&cache, 1, "erased-1");
    // As while that user is being loaded.
    cache.by_id.insert(&Arc::new(user(1, "ann")));
    assert!(cache.get_by_id("ann").is_none());
    load(&cache, 2, "ann");
    let found = |id: &str| cache.get_by_id(id).map(|user| user.no);
    assert_eq!((found("ann"), found("erased-1")), (Some(UserNo(2)), Some(UserNo(1))));
}
