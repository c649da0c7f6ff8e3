//! Signatures are tested with the examples of the RFCs, which are independent of this code. For tests of claims, another HMAC
//! library signs the tokens. `interop/tokens` tests tokens that libraries of other languages sign.
#![allow(clippy::unwrap_used)]

use super::*;
use serde_json::{Value, json};
use tidings_client::token::{sign_claims, sign_text};
use tidings_engine::access::Scope;

const SECRET: &str = "a secret of the app that is long enough";
/// 2100-01-01, in seconds.
const NOW_S: u64 = 4_102_444_800;

fn verify_by(tokens: &TokenVerifier, token: &str) -> Result<TokenClaims, Refusal> {
    tokens.verify_at(token, NOW_S * 1_000)
}

fn tokens() -> TokenVerifier {
    TokenVerifier::new(Some(SECRET), None).unwrap()
}

fn code(tokens: &TokenVerifier, token: &str) -> Result<String, ErrorCode> {
    verify_by(tokens, token).map(|claims| claims.user).map_err(|refusal| refusal.code)
}

fn check(token: &str, expected: Result<&str, ErrorCode>) {
    assert_eq!(code(&tokens(), token).as_deref().map_err(|code| *code), expected, "{token}");
}

const UNAUTHORIZED: Result<&str, ErrorCode> = Err(ErrorCode::Unauthorized);

#[test]
fn only_a_token_with_our_signature_and_valid_times_is_accepted() {
    let good = NOW_S + 600;
    let signed = |claims: Value| sign_claims(SECRET, &claims);
    check(&signed(json!({"sub": "alice", "exp": good})), Ok("alice"));
    check(&signed(json!({"sub": "alice", "exp": good as f64 + 0.5})), Ok("alice"));
    check(&signed(json!({"sub": "alice", "exp": good, "aud": "x", "iss": ["y"], "jti": 7})), Ok("alice"));
    check(&signed(json!({"sub": "alice", "exp": NOW_S - 4})), Ok("alice"));
    check(&signed(json!({"sub": "alice", "exp": NOW_S - 5})), Err(ErrorCode::TokenExpired));
    check(&signed(json!({"sub": "alice", "exp": 1})), Err(ErrorCode::TokenExpired));
    for claims in [
        json!({"sub": "alice"}),
        json!({"exp": good}),
        json!({"sub": 7, "exp": good}),
        json!({"sub": "alice", "exp": good.to_string()}),
        json!({"sub": "alice", "exp": -1}),
        json!({"sub": "alice", "exp": null}),
        json!({"sub": "alice", "exp": good, "nbf": NOW_S + 60}),
        json!({"sub": "alice", "exp": good, "nbf": "now"}),
        json!({"sub": "alice", "exp": good, "scope": 7}),
        json!({"sub": "alice", "exp": good, "scope": [7]}),
        json!(["alice", good]),
    ] {
        check(&signed(claims), UNAUTHORIZED);
    }
    let claims = json!({"sub": "alice", "exp": good});
    check(&sign_claims("another secret", &claims), UNAUTHORIZED);
    let twice = format!(r#"{{"sub":"alice","sub":"bob","exp":{good}}}"#);
    check(&sign_text(SECRET, r#"{"alg":"HS256"}"#, &twice), UNAUTHORIZED);
}

#[test]
fn tokens_with_unknown_algorithms_or_critical_headers_are_refused() {
    let claims = json!({"sub": "alice", "exp": NOW_S + 600}).to_string();
    let signed = |header: &str| sign_text(SECRET, header, &claims);
    check(&signed(r#"{"alg":"HS256","typ":"at+jwt","x5t":"what others know"}"#), Ok("alice"));
    for header in [
        r#"{"alg":"HS512"}"#,
        r#"{"alg":"hs256"}"#,
        r#"{"alg":"none"}"#,
        r#"{"alg":"RS256"}"#,
        r#"{"alg":"ES256"}"#,
        r#"{"alg":"EdDSA"}"#,
        r#"{"alg":["HS256"]}"#,
        r#"{"typ":"JWT"}"#,
        r#"{"alg":"none","alg":"HS256"}"#,
        r#"{"alg":"HS256","crit":["exp"],"exp":1}"#,
        r#"{"alg":"HS256","crit":[]}"#,
        r#"{"alg":"HS256","crit":null,"b64":false}"#,
        r#"{"alg":"HS256","b64":false}"#,
        "[]",
    ] {
        check(&signed(header), UNAUTHORIZED);
    }
    let refusal = verify_by(&tokens(), &signed(r#"{"alg":"HS256","crit":["b64"],"b64":true}"#)).unwrap_err();
    assert!(refusal.detail.contains("crit"), "{}", refusal.detail);
    // {"alg":"none"}.{"sub":"alice","exp":4000000000}, unsigned
    check("eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbGljZSIsImV4cCI6NDAwMDAwMDAwMH0.", UNAUTHORIZED);
    let good = signed(r#"{"alg":"HS256"}"#);
    for broken in
        ["", ".", "..", "a.b.c", "eyJhbGciOiJIUzI1NiJ9", "\u{0}", &good[..good.len() - 1], &format!("{good}=")]
    {
        check(broken, UNAUTHORIZED);
    }
    check(&format!("{good}.{good}"), UNAUTHORIZED);
    check(&"x".repeat(TOKEN_BYTES_MAX + 1), Err(ErrorCode::LimitExceeded));
}

#[test]
fn a_time_in_milliseconds_is_refused_with_a_hint() {
    let refusal = |claims: Value| verify_by(&tokens(), &sign_claims(SECRET, &claims)).unwrap_err();
    let refused = refusal(json!({"sub": "alice", "exp": (NOW_S + 600) * 1_000}));
    assert_eq!(refused.code, ErrorCode::Unauthorized);
    assert!(refused.detail.contains("`exp`") && refused.detail.contains("milliseconds"), "{}", refused.detail);
    let refused = refusal(json!({"sub": "alice", "exp": NOW_S + 600, "iat": NOW_S * 1_000}));
    assert!(refused.detail.contains("`iat`") && refused.detail.contains("milliseconds"), "{}", refused.detail);
    let rules = TokenRules { lifetime_s_max: 3_600, ..TokenRules::default() };
    let short = tokens().with_rules(rules);
    let token = |exp: u64| sign_claims(SECRET, &json!({"sub": "alice", "exp": exp, "iat": NOW_S - 60}));
    assert_eq!(code(&short, &token(NOW_S + 3_600)).as_deref(), Ok("alice"));
    assert_eq!(code(&short, &token(NOW_S + 3_606)), Err(ErrorCode::Unauthorized));
    let claims = verify_by(&short, &token(NOW_S + 600)).unwrap();
    assert_eq!((claims.issued_at, claims.expires_at), (Some((NOW_S - 60) * 1_000), (NOW_S + 600) * 1_000));
}

#[test]
fn audience_and_issuer_must_match_the_settings() {
    let rules = TokenRules {
        audience: vec!["chat".into(), "push".into()],
        issuer: vec!["https://id.example".into()],
        ..TokenRules::default()
    };
    let held = tokens().with_rules(rules);
    let check = |aud: Value, iss: Value, good: bool| {
        let claims = json!({"sub": "alice", "exp": NOW_S + 600, "aud": aud, "iss": iss});
        assert_eq!(code(&held, &sign_claims(SECRET, &claims)).is_ok(), good, "{claims}");
    };
    let issuer = json!("https://id.example");
    check(json!("chat"), issuer.clone(), true);
    check(json!(["shop", "push"]), issuer.clone(), true);
    check(json!(["shop"]), issuer.clone(), false);
    check(json!([]), issuer.clone(), false);
    check(json!("chat "), issuer.clone(), false);
    check(Value::Null, issuer, false);
    check(json!("chat"), json!("https://id.example/"), false);
    check(json!("chat"), json!(["https://id.example"]), false);
    check(json!("chat"), Value::Null, false);
}

#[test]
fn a_scope_narrows_what_a_token_allows() {
    let rules = TokenRules { default_scopes: Scopes::NONE.with(Scope::Read), ..TokenRules::default() };
    let narrow = tokens().with_rules(rules);
    let scopes = |tokens: &TokenVerifier, scope: Option<Value>| {
        let mut claims = json!({"sub": "alice", "exp": NOW_S + 600});
        scope.into_iter().for_each(|scope| claims["scope"] = scope);
        verify_by(tokens, &sign_claims(SECRET, &claims)).unwrap().scopes
    };
    assert_eq!(scopes(&tokens(), None), Scopes::ALL);
    assert_eq!(scopes(&narrow, None), Scopes::NONE.with(Scope::Read));
    let both = Scopes::NONE.with(Scope::Send).with(Scope::Push);
    assert_eq!(scopes(&narrow, Some(json!("openid send push"))), both);
    assert_eq!(scopes(&narrow, Some(json!(["send", "push"]))), both);
    assert_eq!(scopes(&narrow, Some(json!("openid profile"))), Scopes::NONE.with(Scope::Read), "as without the claim");
    assert_eq!(scopes(&tokens(), Some(json!(["openid", "tidings:send"]))), Scopes::NONE.with(Scope::Send));
    assert_eq!(scopes(&tokens(), Some(json!(""))), Scopes::NONE);
    assert_eq!(scopes(&tokens(), Some(json!([]))), Scopes::NONE);
}

/// Whether this key has signed the token, whatever the token claims.
fn is_signed(jwk: &Value, token: &str) -> bool {
    let set = KeySet::from_file(&json!({ "keys": [jwk] }).to_string()).unwrap();
    set.verify(&Jwt::read(token).unwrap())
}

/// Checks that the signature verifies, and does not with one bit flipped, cut short, or over another payload.
fn check_vector(jwk: &Value, token: &str) {
    assert!(is_signed(jwk, token), "{token}");
    let (signed, signature) = token.rsplit_once('.').unwrap();
    let mut bytes = jwt::from_base64(signature).unwrap();
    for at in [0, bytes.len() / 2, bytes.len() - 1] {
        bytes[at] ^= 1;
        assert!(!is_signed(jwk, &format!("{signed}.{}", jwt::to_base64(&bytes))));
        bytes[at] ^= 1;
    }
    assert!(!is_signed(jwk, &format!("{signed}.{}", jwt::to_base64(&bytes[1..]))));
    assert!(!is_signed(jwk, &format!("{signed}.")));
    let (header, _) = signed.split_once('.').unwrap();
    assert!(!is_signed(jwk, &format!("{header}.{}.{signature}", jwt::to_base64(b"another payload"))));
}

/// RFC 7515, A.2: the key and the token.
fn rfc_rs256() -> (Value, String) {
    let n = "ofgWCuLjybRlzo0tZWJjNiuSfb4p4fAkd_wWJcyQoTbji9k0l8W26mPddxHmfHQp-Vaw-4qPCJrcS2mJPMEzP1Pt0Bm4d4QlL-yRT-SFd2lZS-pC\
             gNMsD1W_YpRPEwOWvG6b32690r2jZ47soMZo9wGzjb_7OMg0LOL-bSf63kpaSHSXndS5z5rexMdbBYUsLA9e-KXBdQOS-UTo7WTBEMa2R2CapHg66\
             5xsmtdVMTBQY4uDZlxvb3qCo5ZwKh9kG4LT6_I5IhlJH7aGhyxXFvUK-DWNmoudF8NAco9_h9iaGNj8q2ethFkMLs91kzk2PAcDTW9gb54h4FRWyu\
             XpoQ";
    let token = "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp\
                 0cnVlfQ.cC4hiUPoj9Eetdgtv3hF80EGrhuB__dzERat0XF9g2VtQgr9PJbu3XOiZj5RZmh7AAuHIm4Bh-0Qc_lF5YKt_O8W2Fp5jujGbds9uJdb\
                 F9CUAr7t1dnZcAcQjbKBYNX4BAynRFdiuB--f_nZLgrnbyTyWzO75vRK5h6xBArLIARNPvkSjtQBMHlb1L07Qe7K0GarZRmB_eSN9383LcOLn6_d\
                 O--xi12jzDwusC-eOkHWEsqtFZESc6BfI7noOPqvhJ1phCnvWh6IeYI2w9QOYEUipUTI8np6LbgGY9Fs98rqVt5AXLIhWkWywlVmtVrBp0igcN_I\
                 oypGlUPQGe77Rw";
    (json!({"kty": "RSA", "n": n, "e": "AQAB"}), token.to_owned())
}

/// RFC 7515, A.3.
fn rfc_es256() -> (Value, String) {
    let key = json!({"kty": "EC", "crv": "P-256", "x": "f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU",
                     "y": "x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"});
    let token = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp\
                 0cnVlfQ.DtEhU3ljbEg8L38VWAfUAqOyKAM6-Xx-F4GawxaepmXFCgfTjDxw5djxLa8ISlSApmWQxfKTUJqPP3-Kg6NU1Q";
    (key, token.to_owned())
}

/// RFC 8037, A.4.
fn rfc_ed25519() -> (Value, String) {
    let key = json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"});
    let token = "eyJhbGciOiJFZERTQSJ9.RXhhbXBsZSBvZiBFZDI1NTE5IHNpZ25pbmc.hgyY0il_MGCjP0JzlnLWG1PPOt7-09PGcvMg3AIbQR6dWbhijc\
                 NR4ki4iylGjg5BhVsPt9g7sVvpAr_MuM0KAg";
    (key, token.to_owned())
}

#[test]
fn signatures_from_the_rfc_examples_verify() {
    for (key, token) in [rfc_rs256(), rfc_es256(), rfc_ed25519()] {
        check_vector(&key, &token);
    }
    // RFC 7515, A.1.
    let secret =
        jwt::from_base64("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow");
    let secret = hmac::Key::new(hmac::HMAC_SHA256, &secret.unwrap());
    let token = "eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGx\
                 lLmNvbS9pc19yb290Ijp0cnVlfQ.dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk";
    assert!(Jwt::read(token).unwrap().is_by_secret(&secret));
    assert!(!Jwt::read(&token.replace("dBjf", "dBjg")).unwrap().is_by_secret(&secret));
}

#[test]
fn a_key_verifies_only_its_own_algorithm_and_key_id() {
    let (key, token) = rfc_ed25519();
    let with = |name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        KeySet::from_file(&json!({ "keys": [key, rfc_es256().0] }).to_string()).unwrap()
    };
    let verify = |set: &KeySet| set.verify(&Jwt::read(&token).unwrap());
    assert!(verify(&with("kid", json!("a"))), "a token without a key id may mean any key");
    assert!(verify(&with("use", json!("sig"))) && verify(&with("key_ops", json!(["verify"]))));
    assert!(verify(&with("alg", json!("EdDSA"))) && verify(&with("alg", json!("Ed25519"))));
    assert!(!verify(&with("use", json!("enc"))) && !verify(&with("key_ops", json!(["sign"]))));
    assert!(!verify(&with("alg", json!("ES256"))));
    let set = with("kid", json!("a"));
    assert!(set.knows(Some("a")) && set.knows(None) && !set.knows(Some("b")));
    // The text of a public key must not work as the secret of HS256.
    let public = key["x"].as_str().unwrap();
    let tokens = TokenVerifier::new(None, Some(&json!({ "keys": [key] }).to_string())).unwrap();
    let claims = json!({"sub": "alice", "exp": NOW_S + 600});
    assert_eq!(code(&tokens, &sign_claims(public, &claims)), Err(ErrorCode::Unauthorized));
}

#[test]
fn a_key_set_without_a_usable_key_is_refused() {
    for bad in [
        "",
        "{}",
        r#"{"keys":[]}"#,
        r#"{"keys":[{"kty":"oct","k":"c2VjcmV0"}]}"#,
        r#"{"keys":[{"kty":"EC","crv":"P-384","x":"AA","y":"AA"}]}"#,
        r#"{"keys":[{"kty":"RSA","n":"AQAB","e":"AQAB"}]}"#,
        r#"{"keys":[{"kty":"OKP","crv":"Ed25519","x":"AA"}]}"#,
        r#"{"keys":[7]}"#,
    ] {
        assert!(TokenVerifier::new(None, Some(bad)).is_err(), "{bad:?}");
    }
    let many: Vec<Value> = (0..101).map(|_| rfc_ed25519().0).collect();
    assert!(matches!(
        KeySet::from_service(json!({ "keys": many }).to_string().as_bytes()),
        Err(KeySetError::TooMany(101))
    ));
    // Of a set that a service publishes, the usable keys are used.
    let mixed = json!({ "keys": [{"kty": "RSA", "n": "AQAB", "e": "AQAB"}, 7, rfc_ed25519().0] });
    assert!(KeySet::from_service(mixed.to_string().as_bytes()).is_ok());
    assert!(KeySet::from_file(&mixed.to_string()).is_err());
}

#[test]
fn an_empty_key_authenticates_nobody() {
    let keys = ApiKeys::new(["".to_owned(), "k1".to_owned(), "k2".to_owned()]);
    assert!(keys.contain("k1") && keys.contain("k2"));
    assert!(!keys.contain("") && !keys.contain("k") && !keys.contain("k11"));
    assert!(TokenVerifier::new(Some(""), None).unwrap().is_empty());
    let claims = json!({"sub": "alice", "exp": NOW_S + 600});
    assert!(verify_by(&TokenVerifier::new(Some(""), None).unwrap(), &sign_claims("", &claims)).is_err());
}

#[test]
fn only_the_cluster_secret_signs_tokens_between_nodes() {
    let nodes = NodeTokenSigner::new("of the cluster");
    let mut trusting = tokens();
    trusting.trust_nodes(&nodes);
    let token = nodes.sign(Some("alice")).unwrap();
    let claims = trusting.verify(&token).unwrap();
    assert_eq!((claims.user.as_str(), claims.signed_by_node, claims.scopes), ("alice", true, Scopes::ALL));
    assert_eq!(tokens().verify(&token).unwrap_err().code, ErrorCode::Unauthorized, "a server that is alone");
    let claims = trusting.verify(&nodes.sign(None).unwrap()).unwrap();
    assert_eq!((claims.user.as_str(), claims.signed_by_node), (NODE_ITSELF, true));
    // A token that names the nodes' key but is signed with the app's secret.
    let claims = json!({"sub": "alice", "exp": NOW_S + 600}).to_string();
    let forged = sign_text(SECRET, r#"{"alg":"HS256","kid":"tidings-nodes"}"#, &claims);
    assert_eq!(code(&trusting, &forged), Err(ErrorCode::Unauthorized));
}

#[test]
fn a_token_whose_header_or_claims_are_an_array_is_refused() {
    let tokens = tokens();
    let (header, claims) = (r#"{"alg":"HS256"}"#, format!(r#"{{"sub":"alice","exp":{}}}"#, NOW_S + 600));
    assert_eq!(code(&tokens, &sign_text(SECRET, header, &format!(" {claims}"))), Ok("alice".into()));
    // The fields in the order in which the structs have them.
    let in_order = format!(r#"["alice",{},null,null,null,null,null]"#, NOW_S + 600);
    for (header, claims) in
        [(header, &in_order), (r#"["HS256",null,null,null]"#, &claims), (header, &"null".to_owned())]
    {
        assert_eq!(
            code(&tokens, &sign_text(SECRET, header, claims)),
            Err(ErrorCode::Unauthorized),
            "{header} {claims}"
        );
    }
}

#[test]
fn keys_that_can_be_guessed_are_told_from_random_ones() {
    let keys =
        ApiKeys::new(["0123456789abcdef".to_owned(), "short-but-varied".to_owned()[..15].to_owned(), "k".repeat(40)]);
    assert!(keys.contain_unguessable("0123456789abcdef"));
    for other in ["short-but-varie", &"k".repeat(40), "0123456789abcdeF", ""] {
        assert!(!keys.contain_unguessable(other), "{other:?}");
    }
    assert!(keys.contain("short-but-varie") && keys.contain(&"k".repeat(40)));
}
