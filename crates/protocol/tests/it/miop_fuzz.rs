//! A short run of the fuzzer that `make fuzz` runs for long, and the reader against its model on the vectors.

use crate::support::{fuzz, vectors};

#[test]
fn decoder_and_reference_decoder_agree_on_every_vector() {
    for vector in vectors() {
        let bytes = vector.bytes();
        for cut in 0..=bytes.len() {
            fuzz::check(&bytes, vector.payload_max(), cut);
        }
    }
}

#[test]
fn a_short_run_finds_nothing_and_covers_every_outcome() {
    let outcome = fuzz::run(1, 200_000, |_| {});
    for name in fuzz::MUST_BE_SEEN {
        assert!(outcome.seen.contains_key(name), "never {name}: {:?}", outcome.seen);
    }
}

#[test]
fn a_seed_replays_its_run() {
    let [first, second, other] = [7, 7, 8].map(|seed| fuzz::run(seed, 5_000, |_| {}));
    assert_eq!((first.digest, &first.seen), (second.digest, &second.seen));
    assert_ne!(first.digest, other.digest);
}
