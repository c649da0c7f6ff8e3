//! Inputs that are nearly frames, made by mutating the vectors: the faults of broken clients, hostile
//! ones and bad networks.

/// SplitMix64 (Steele, Lea, Flood 2014). Kept here, not taken from a library, since a seed must give
/// the same run for as long as somebody may want to replay it.
#[derive(Debug, Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }

    fn byte(&mut self) -> u8 {
        self.next() as u8
    }
}

/// Bytes at the boundaries of the format's ranges.
const EDGES: [u8; 12] = [0x00, 0x01, 0x02, 0x09, 0x0a, 0x20, 0x40, 0x7f, 0x80, 0x81, 0xc2, 0xff];
/// Numbers at the boundaries of lengths and limits.
const NUMBERS: [u64; 14] = [0, 1, 31, 32, 64, 65, 127, 128, 512, 513, 16_384, 196_609, u64::MAX / 2 + 1, u64::MAX];
/// The longest input: the decoder's loops have no state that only longer inputs would reach.
const BYTES_MAX: usize = 4_096;

/// A mutated copy of `bytes`, with chunks taken from `other`.
pub fn mutate(random: &mut Random, bytes: &[u8], other: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.below(3) {
        let done = random.below(3) > 0 && mutate_fields(random, &mut bytes, other);
        if !done {
            mutate_bytes(random, &mut bytes, other);
        }
    }
    bytes.truncate(BYTES_MAX);
    bytes
}

fn mutate_bytes(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) {
    let at = random.below(bytes.len() + 1);
    let on = at < bytes.len();
    match random.below(10) {
        0 if on => bytes[at] ^= 1 << random.below(8),
        1 if on => bytes[at] = EDGES[random.below(EDGES.len())],
        2 if on => bytes[at] = random.byte(),
        3 => bytes.insert(at, EDGES[random.below(EDGES.len())]),
        4 if on => drop(bytes.remove(at)),
        5 => bytes.truncate(at),
        6 if on => {
            let end = at + random.below(bytes.len() - at) + 1;
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
        7 if on => drop(bytes.drain(at..at + random.below(bytes.len() - at) + 1)),
        8 => {
            bytes.truncate(at);
            bytes.extend_from_slice(&other[random.below(other.len() + 1)..]);
        }
        _ => bytes.extend_from_slice(other),
    }
}

/// Parses the first frame, mutates its fields, and encodes it again with true or false
/// lengths. Returns whether the bytes were such a frame.
fn mutate_fields(random: &mut Random, bytes: &mut Vec<u8>, other: &[u8]) -> bool {
    let (Some(mut fields), Some(others)) = (fields_of(bytes), fields_of(other)) else { return false };
    let at = random.below(fields.len() + 1);
    let on = at < fields.len();
    match random.below(10) {
        0 if on => {
            let again = fields[at].clone();
            fields.insert(random.below(fields.len() + 1), again);
        }
        1 if on => drop(fields.remove(at)),
        2 if on => {
            let with = random.below(fields.len());
            fields.swap(at, with);
        }
        3 if on => fields[at].0 = random.below(10) as u8,
        4 if on => fields[at].0 = random.byte(),
        5 if on => fields[at].1 = number(random),
        6 if on => {
            let size = NUMBERS[random.below(10)] as usize;
            fields[at].1 = vec![b"a\x01\x80\xff"[random.below(4)]; size];
        }
        7 if on && !others.is_empty() => fields[at].1 = others[random.below(others.len())].1.clone(),
        8 if !others.is_empty() => fields.insert(at, others[random.below(others.len())].clone()),
        _ => fields.insert(at, (random.byte(), number(random))),
    }
    let lies = random.below(12) == 0;
    let mut payload = Vec::new();
    for (tag, value) in &fields {
        payload.push(*tag);
        put_length(random, &mut payload, value.len(), lies);
        payload.extend_from_slice(value);
    }
    let kind = if random.below(12) == 0 { EDGES[random.below(EDGES.len())] } else { bytes[0] };
    let mut frame = vec![kind];
    let lies = random.below(12) == 0;
    put_length(random, &mut frame, payload.len(), lies);
    frame.extend_from_slice(&payload);
    *bytes = frame;
    true
}

/// A number at a boundary, sometimes with too many bytes or cut short.
fn number(random: &mut Random) -> Vec<u8> {
    let mut bytes = Vec::new();
    put(&mut bytes, NUMBERS[random.below(NUMBERS.len())]);
    match random.below(6) {
        0 => {
            let last = bytes.len() - 1;
            bytes[last] |= 0x80;
            bytes.push(random.below(3) as u8);
        }
        1 => {
            bytes.pop();
        }
        _ => {}
    }
    bytes
}

fn put_length(random: &mut Random, out: &mut Vec<u8>, length: usize, lies: bool) {
    let length = length as u64;
    let said = match random.below(6) {
        _ if !lies => length,
        0 => length + 1,
        1 => length.saturating_sub(1),
        2 => length + (1 << random.below(40)),
        3 => {
            put(out, length);
            let last = out.len() - 1;
            out[last] |= 0x80;
            0
        }
        _ => NUMBERS[random.below(NUMBERS.len())],
    };
    put(out, said);
}

fn put(out: &mut Vec<u8>, mut number: u64) {
    while number > 127 {
        out.push((number % 128) as u8 + 128);
        number /= 128;
    }
    out.push(number as u8);
}

/// The fields of a frame with true lengths of one or two bytes each.
fn fields_of(bytes: &[u8]) -> Option<Vec<(u8, Vec<u8>)>> {
    let (_, mut payload, _) = part(bytes)?;
    let mut fields = Vec::new();
    while !payload.is_empty() {
        let (tag, value, rest) = part(payload)?;
        fields.push((tag, value.to_vec()));
        payload = rest;
    }
    Some(fields)
}

/// The first byte, the bytes that the length covers, and the rest.
fn part(bytes: &[u8]) -> Option<(u8, &[u8], &[u8])> {
    let (first, low) = (*bytes.first()?, usize::from(*bytes.get(1)?));
    let (length, start) = match low {
        0..128 => (low, 2),
        _ => (low - 128 + 128 * usize::from(*bytes.get(2).filter(|high| **high < 128)?), 3),
    };
    let end = start + length;
    Some((first, bytes.get(start..end)?, &bytes[end..]))
}
