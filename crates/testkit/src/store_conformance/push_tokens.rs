//! Push tokens: registered, replaced, moved and removed.

use super::*;
use tidings_domain::push_tokens::*;
use tidings_protocol::{
    http::{PushToken, WebPushKeys, WebPushSubscription},
    limits::{ID_BYTES_MAX, PUSH_TOKEN_BYTES_MAX},
};

pub(super) const CHECKS: &[Check] = &[
    ("a device's push token is registered, replaced and removed", registered),
    ("a push token that another user's device registers is that device's alone", moved),
    ("a registration that rests on an old look is rejected and changes nothing", stale),
    ("registrations of one batch see each other", in_one_batch),
    ("of two devices that are registered for the first time after the same look, one is rejected", counted),
];

fn fcm(token: &str) -> PushToken {
    PushToken::Fcm { token: token.into() }
}

fn digest(token: &str) -> TokenDigest {
    TokenDigest::of(&fcm(token))
}

fn set(
    user: UserNo,
    device: &str,
    token: Option<&str>,
    former: Option<&str>,
    owner: Option<(UserNo, &str)>,
) -> Proposal {
    Proposal::SetPushToken {
        user,
        device: device.into(),
        token: token.map(fcm),
        former: former.map(digest),
        owner: owner.map(|(user, device)| (user, device.into())),
        additions: None,
        notes: vec![],
    }
}

/// The devices and tokens of a user, as readers see them.
fn tokens(store: &dyn Store, user: UserNo) -> Vec<(String, String)> {
    let found = tokens_of(store, user, 100).unwrap();
    found.into_iter().map(|(_, one)| (one.device, one.token.address().to_owned())).collect()
}

fn pairs(all: &[(&str, &str)]) -> Vec<(String, String)> {
    all.iter().map(|(device, token)| ((*device).to_owned(), (*token).to_owned())).collect()
}

/// How many rows there are of tokens and of devices: a former registration leaves none.
fn row_counts(store: &dyn Store) -> (usize, usize) {
    let (from, to) = all_devices();
    let count = |from: &[u8], to: &[u8]| store.rows(RowSpace::Chat, from, to, 100).unwrap().len();
    (count(b"t", b"u"), count(&from, &to))
}

fn registered(store: &dyn Store) {
    let u = users(store, 2);
    assert_eq!(commit(store, set(u[0], "phone", Some("a"), None, None)), Outcome::Done);
    assert_eq!(commit(store, set(u[0], "laptop", Some("b"), None, None)), Outcome::Done);
    let at = tokens_of(store, u[0], 1).unwrap()[0].1.registered_at;
    assert_eq!(at, NOON);
    assert_eq!(tokens(store, u[0]), pairs(&[("laptop", "b"), ("phone", "a")]));
    // The same token again, and another one in its place.
    assert_eq!(commit(store, set(u[0], "phone", Some("a"), Some("a"), None)), Outcome::Done);
    assert_eq!(commit(store, set(u[0], "phone", Some("c"), Some("a"), None)), Outcome::Done);
    assert_eq!(tokens(store, u[0]), pairs(&[("laptop", "b"), ("phone", "c")]));
    assert_eq!(row_counts(store), (2, 2));
    assert_eq!(tokens(store, u[1]), []);
    assert_eq!(commit(store, set(u[0], "laptop", None, Some("b"), None)), Outcome::Done);
    assert_eq!(commit(store, set(u[0], "laptop", None, None, None)), Outcome::Done, "a device without a token");
    assert_eq!(tokens(store, u[0]), pairs(&[("phone", "c")]));
    assert_eq!(row_counts(store), (1, 1));
    let unknown = set(UserNo(9), "phone", Some("d"), None, None);
    assert_eq!(commit(store, unknown), Outcome::Rejected(Rejection::NoSuchUser(UserNo(9))));
    // A subscription of a browser is the longest of all tokens.
    let keys = WebPushKeys { p256dh: "p".repeat(88), auth: "a".repeat(24) };
    let endpoint = format!("https://push.example/{}", "e".repeat(PUSH_TOKEN_BYTES_MAX - 21));
    let subscription = WebPushSubscription { endpoint, expiration_time: Default::default(), keys };
    let long = PushToken::WebPush { subscription };
    let device = "d".repeat(ID_BYTES_MAX);
    let proposal = |token, former| Proposal::SetPushToken {
        user: u[1],
        device: device.clone(),
        token,
        former,
        owner: None,
        additions: None,
        notes: vec![],
    };
    assert_eq!(commit(store, proposal(Some(long.clone()), None)), Outcome::Done);
    assert_eq!(tokens_of(store, u[1], 9).unwrap()[0].1.token, long);
    assert_eq!(commit(store, proposal(None, Some(TokenDigest::of(&long)))), Outcome::Done);
    assert_eq!(row_counts(store), (1, 1));
}

fn moved(store: &dyn Store) {
    let u = users(store, 2);
    commit(store, set(u[0], "phone", Some("a"), None, None));
    commit(store, set(u[1], "phone", Some("b"), None, None));
    // The phone's owner logs out, and another user in.
    let taken = set(u[1], "phone", Some("a"), Some("b"), Some((u[0], "phone")));
    assert_eq!(commit(store, taken), Outcome::Done);
    assert_eq!((tokens(store, u[0]), tokens(store, u[1])), (vec![], pairs(&[("phone", "a")])));
    assert_eq!(row_counts(store), (1, 1));
    // And to another device of the same user.
    let taken = set(u[1], "tablet", Some("a"), None, Some((u[1], "phone")));
    assert_eq!(commit(store, taken), Outcome::Done);
    assert_eq!(tokens(store, u[1]), pairs(&[("tablet", "a")]));
    assert_eq!(row_counts(store), (1, 1));
}

fn stale(store: &dyn Store) {
    let u = users(store, 2);
    commit(store, set(u[0], "phone", Some("a"), None, None));
    commit(store, set(u[1], "phone", Some("b"), None, None));
    let rejected = Outcome::Rejected(Rejection::PushTokenMoved);
    for proposal in [
        set(u[0], "phone", Some("c"), None, None),
        set(u[0], "phone", None, Some("b"), None),
        set(u[0], "tablet", None, Some("a"), None),
        set(u[1], "tablet", Some("a"), None, None),
        set(u[1], "tablet", Some("a"), None, Some((u[1], "phone"))),
        set(u[1], "tablet", Some("c"), None, Some((u[0], "phone"))),
    ] {
        assert_eq!(commit(store, proposal.clone()), rejected, "{proposal:?}");
    }
    assert_eq!((tokens(store, u[0]), tokens(store, u[1])), (pairs(&[("phone", "a")]), pairs(&[("phone", "b")])));
    assert_eq!(row_counts(store), (2, 2));
}

fn in_one_batch(store: &dyn Store) {
    let u = users(store, 3);
    let batch = [
        set(u[0], "phone", Some("a"), None, None),
        set(u[1], "phone", Some("a"), None, Some((u[0], "phone"))),
        // Looked before the second one: the token is somebody else's.
        set(u[2], "phone", Some("a"), None, Some((u[0], "phone"))),
        set(u[1], "phone", Some("b"), Some("a"), None),
        set(u[2], "phone", Some("a"), None, None),
    ];
    let outcomes = store.commit(&batch, NOON).unwrap();
    let rejected = Outcome::Rejected(Rejection::PushTokenMoved);
    assert_eq!(outcomes, [Outcome::Done, Outcome::Done, rejected, Outcome::Done, Outcome::Done]);
    assert_eq!(tokens(store, u[0]), []);
    assert_eq!((tokens(store, u[1]), tokens(store, u[2])), (pairs(&[("phone", "b")]), pairs(&[("phone", "a")])));
    assert_eq!(row_counts(store), (2, 2));
}

fn counted(store: &dyn Store) {
    let u = users(store, 2);
    let first = |user, device: &str, token: &str, additions| match set(user, device, Some(token), None, None) {
        Proposal::SetPushToken { user, device, token, former, owner, .. } => {
            Proposal::SetPushToken { user, device, token, former, owner, additions: Some(additions), notes: vec![] }
        }
        other => other,
    };
    let additions = |user| additions_in(store.row(RowSpace::Chat, &additions_key(user)).unwrap().as_deref()).unwrap();
    let rejected = Outcome::Rejected(Rejection::PushTokenMoved);
    let batch = [first(u[0], "phone", "a", 0), first(u[0], "laptop", "b", 0), first(u[1], "phone", "c", 0)];
    assert_eq!(store.commit(&batch, NOON).unwrap(), [Outcome::Done, rejected.clone(), Outcome::Done]);
    assert_eq!((additions(u[0]), additions(u[1])), (1, 1));
    assert_eq!(commit(store, first(u[0], "laptop", "b", 0)), rejected);
    assert_eq!(commit(store, first(u[0], "laptop", "b", 1)), Outcome::Done);
    // What adds no device is not counted.
    assert_eq!(commit(store, set(u[0], "phone", Some("d"), Some("a"), None)), Outcome::Done);
    assert_eq!(commit(store, set(u[0], "phone", None, Some("d"), None)), Outcome::Done);
    assert_eq!(additions(u[0]), 2);
}
