//! Keys of rows: a byte that tells the kind, then numbers, big-endian, so that keys sort as numbers do.

/// A key of a kind of rows.
pub fn key(kind: u8, numbers: &[u64]) -> Vec<u8> {
    let mut key = Vec::with_capacity(1 + numbers.len() * 8);
    key.push(kind);
    numbers.iter().for_each(|number| key.extend_from_slice(&number.to_be_bytes()));
    key
}

/// The number at this place of a key, from 0.
pub fn number_in(key: &[u8], place: usize) -> Option<u64> {
    let at = 1 + place * 8;
    key.get(at..at + 8)?.try_into().ok().map(u64::from_be_bytes)
}
