//! Rows of bytes: writes, reads in order, and the longest rows.

use super::*;

pub(super) const CHECKS: &[Check] = &[
    ("a row has the value last put, until it is dropped", put_and_drop),
    ("the rows of a range are read in the order of their keys", order),
    ("rows read together are returned in the order of the request", together),
    ("a row may be as long as the limit, and no longer", longest),
];

const SPACE: RowSpace = RowSpace::Popups;

/// A key of a kind that no part of the server uses, so that a check of the folder skips these rows.
fn key(rest: &[u8]) -> Vec<u8> {
    [&[0xFE], rest].concat()
}

fn put(key: &[u8], value: &[u8]) -> RowChange {
    RowChange { key: key.to_vec(), value: Some(value.to_vec()) }
}

fn put_and_drop(store: &dyn Store) {
    let (one, two) = (key(b"1"), key(b"2"));
    store.write_rows(Term::ALONE, SPACE, vec![put(&one, b"a"), put(&two, b"")]).unwrap();
    assert_eq!(store.row(SPACE, &one).unwrap(), Some(b"a".to_vec()));
    assert_eq!(store.row(SPACE, &two).unwrap(), Some(Vec::new()), "an empty value is a value");
    store.write_rows(Term::ALONE, SPACE, vec![put(&one, b"b"), RowChange { key: two.clone(), value: None }]).unwrap();
    assert_eq!(store.row(SPACE, &one).unwrap(), Some(b"b".to_vec()));
    assert_eq!(store.row(SPACE, &two).unwrap(), None);
    // The last change of a key within one write counts.
    let drop_one = RowChange { key: one.clone(), value: None };
    store.write_rows(Term::ALONE, SPACE, vec![put(&one, b"c"), drop_one.clone(), put(&one, b"d")]).unwrap();
    assert_eq!(store.row(SPACE, &one).unwrap(), Some(b"d".to_vec()));
    store.write_rows(Term::ALONE, SPACE, vec![drop_one.clone(), drop_one]).unwrap();
    assert_eq!(store.row(SPACE, &one).unwrap(), None);
    store.write_rows(Term::ALONE, SPACE, vec![]).unwrap();
}

fn order(store: &dyn Store) {
    let mut keys: Vec<Vec<u8>> =
        [&[][..], &[0], &[0, 0], &[0, 255], &[1], &[127], &[128], &[255], &[255, 0], b"b", b"a"]
            .into_iter()
            .map(key)
            .collect();
    store.write_rows(Term::ALONE, SPACE, keys.iter().map(|key| put(key, key)).collect()).unwrap();
    keys.sort();
    for (from, low) in keys.iter().enumerate() {
        for (to, high) in keys.iter().enumerate() {
            let found = store.rows(SPACE, low, high, usize::MAX).unwrap();
            let expected = keys.get(from..=to).unwrap_or_default();
            assert_eq!(found.iter().map(|(key, _)| key).collect::<Vec<_>>(), expected.iter().collect::<Vec<_>>());
            assert!(found.iter().all(|(key, value)| key == value));
        }
    }
    assert_eq!(store.rows(SPACE, &keys[0], &keys[10], 3).unwrap().len(), 3);
    assert_eq!(store.rows(SPACE, &keys[0], &keys[10], 0).unwrap().len(), 0);
    store.write_rows(Term::ALONE, SPACE, keys.into_iter().map(|key| RowChange { key, value: None }).collect()).unwrap();
}

fn together(store: &dyn Store) {
    let (there, empty, gone) = (key(b"there"), key(b"empty"), key(b"gone"));
    store.write_rows(Term::ALONE, SPACE, vec![put(&there, b"a"), put(&empty, b""), put(&gone, b"b")]).unwrap();
    store.write_rows(Term::ALONE, SPACE, vec![RowChange { key: gone.clone(), value: None }]).unwrap();
    let asked = [there.clone(), gone, key(b"never"), empty.clone(), there.clone()];
    let expected = [Some(b"a".to_vec()), None, None, Some(Vec::new()), Some(b"a".to_vec())];
    assert_eq!(store.rows_of(SPACE, &asked).unwrap(), expected);
    assert_eq!(store.rows_of(SPACE, &[]).unwrap(), []);
    // Many keys, of which every second one has a row.
    let many: Vec<Vec<u8>> = (0..3_000_u32).map(|n| key(&n.to_be_bytes())).collect();
    let even = || many.iter().step_by(2);
    store.write_rows(Term::ALONE, SPACE, even().map(|key| put(key, key)).collect()).unwrap();
    for (n, value) in store.rows_of(SPACE, &many).unwrap().into_iter().enumerate() {
        assert_eq!(value, (n % 2 == 0).then(|| many[n].clone()));
    }
    let all = even().chain([&there, &empty]).map(|key| RowChange { key: key.clone(), value: None });
    store.write_rows(Term::ALONE, SPACE, all.collect()).unwrap();
}

fn longest(store: &dyn Store) {
    let value: Vec<u8> = (0..ROW_BYTES_MAX).map(|n| n as u8).collect();
    store.write_rows(Term::ALONE, SPACE, vec![put(&key(b"long"), &value)]).unwrap();
    assert_eq!(store.row(SPACE, &key(b"long")).unwrap(), Some(value));
    let too_long = vec![0; ROW_BYTES_MAX + 1];
    assert!(store.write_rows(Term::ALONE, SPACE, vec![put(&key(b"x"), b"x"), put(&key(b"y"), &too_long)]).is_err());
    assert_eq!(store.row(SPACE, &key(b"x")).unwrap(), None, "a write is whole");
    store.write_rows(Term::ALONE, SPACE, vec![RowChange { key: key(b"long"), value: None }]).unwrap();

    let long = |length: usize| [&key(b"z")[..], &vec![b'z'; length]].concat();
    let longest = long(ROW_KEY_BYTES_MAX - key(b"z").len());
    let written = [put(&longest, b"1"), put(&key(b"x"), b"x")];
    store.write_rows(Term::ALONE, SPACE, written.to_vec()).unwrap();
    for length in [ROW_KEY_BYTES_MAX, 3_000, 70_000] {
        let key = long(length);
        assert!(store.write_rows(Term::ALONE, SPACE, vec![put(&key, b"1")]).is_err());
        assert_eq!(store.row(SPACE, &key).unwrap(), None);
        assert_eq!(store.rows_of(SPACE, &[key.clone(), longest.clone()]).unwrap(), [None, Some(b"1".to_vec())]);
        assert_eq!(store.rows(SPACE, &longest, &key, 10).unwrap(), [(longest.clone(), b"1".to_vec())]);
        assert_eq!(store.rows(SPACE, &key, &long(70_001), 10).unwrap(), []);
        assert_eq!(store.rows(SPACE, &key, &longest, 10).unwrap(), [], "it ends before it begins");
        let ranges = [(longest.clone(), key.clone()), (key, long(70_001))];
        assert_eq!(store.first_keys(SPACE, &ranges).unwrap(), [Some(longest.clone()), None]);
    }
    let removed = written.map(|RowChange { key, .. }| RowChange { key, value: None });
    store.write_rows(Term::ALONE, SPACE, removed.to_vec()).unwrap();
}
