//! The push service of a browser, and the browser behind it: takes notifications (RFC 8030) and decrypts them (RFC 8291).

use super::{
    fake_provider::{Notification, ProviderProtocol},
    http_server::Request,
    notice::OfflineChannel,
};
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use http::StatusCode;
use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    hkdf::{HKDF_SHA256, KeyType, Salt},
};
use serde::Deserialize;

/// The path of every endpoint begins so; the token follows.
pub(super) const ENDPOINT_PATH: &str = "/push/";
/// Salt, record size, and the length of the key that follows (RFC 8188, 2.1).
const HEADER_BYTES: usize = 16 + 4 + 1;

pub(super) struct WebPush {
    pub(super) keys: BrowserKeys,
}

/// The keys of a subscription. All subscriptions of a run have the same.
///
/// The private key is the number 1, so that the public key is the curve's base point, and what both sides share is the sender's
/// own public key: the fake needs no arithmetic on curves to decrypt what the server encrypts as for any other browser.
pub(super) struct BrowserKeys {
    auth: [u8; 16],
}

/// The base point of P-256 (SEC 2, 2.4.2), uncompressed.
const BASE_POINT: [u8; 65] = [
    0x04, 0x6b, 0x17, 0xd1, 0xf2, 0xe1, 0x2c, 0x42, 0x47, 0xf8, 0xbc, 0xe6, 0xe5, 0x63, 0xa4, 0x40, 0xf2, 0x77, 0x03,
    0x7d, 0x81, 0x2d, 0xeb, 0x33, 0xa0, 0xf4, 0xa1, 0x39, 0x45, 0xd8, 0x98, 0xc2, 0x96, 0x4f, 0xe3, 0x42, 0xe2, 0xfe,
    0x1a, 0x7f, 0x9b, 0x8e, 0xe7, 0xeb, 0x4a, 0x7c, 0x0f, 0x9e, 0x16, 0x2b, 0xce, 0x33, 0x57, 0x6b, 0x31, 0x5e, 0xce,
    0xcb, 0xb6, 0x40, 0x68, 0x37, 0xbf, 0x51, 0xf5,
];
/// Of a point, the x coordinate, which is what both sides share.
const SHARED_SECRET: std::ops::Range<usize> = 1..33;

/// The length of a key.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

impl BrowserKeys {
    pub(super) fn new() -> BrowserKeys {
        BrowserKeys { auth: rand::random() }
    }

    /// As a browser hands them to its app.
    pub(super) fn subscription_keys(&self) -> (String, String) {
        (URL_SAFE_NO_PAD.encode(BASE_POINT), URL_SAFE_NO_PAD.encode(self.auth))
    }

    fn decrypt(&self, message: &[u8]) -> Result<Vec<u8>, String> {
        let short = || "a message that is too short".to_owned();
        let (header, rest) = message.split_at_checked(HEADER_BYTES).ok_or_else(short)?;
        let (salt, key_length) = (&header[..16], usize::from(header[HEADER_BYTES - 1]));
        let (sender, record) = rest.split_at_checked(key_length).ok_or_else(short)?;
        let secret = sender.get(SHARED_SECRET).ok_or_else(short)?;
        let input = derive::<32>(&self.auth, secret, &[b"WebPush: info\0", &BASE_POINT, sender])?;
        let key = derive::<16>(salt, &input, &[b"Content-Encoding: aes128gcm\0"])?;
        let nonce = derive::<12>(salt, &input, &[b"Content-Encoding: nonce\0"])?;
        let wrong = |_| "a message that is not for this browser".to_owned();
        let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).map_err(wrong)?);
        let mut record = record.to_vec();
        let plain = key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record).map_err(wrong)?;
        // A 2 ends the last record, and zeros may follow (RFC 8188, 2).
        let end = plain.iter().rposition(|byte| *byte != 0).filter(|end| plain[*end] == 2);
        Ok(plain[..end.ok_or_else(|| "a record that is not the last".to_owned())?].to_vec())
    }
}

fn derive<const N: usize>(salt: &[u8], secret: &[u8], info: &[&[u8]]) -> Result<[u8; N], String> {
    let mut key = [0; N];
    let expand = Salt::new(HKDF_SHA256, salt).extract(secret);
    let filled = expand.expand(info, Length(N)).and_then(|material| material.fill(&mut key));
    filled.map_err(|_| "a key that cannot be derived".to_owned())?;
    Ok(key)
}

/// What the service worker would show.
#[derive(Deserialize)]
struct Shown {
    conversation: String,
    seq: u64,
    #[serde(default)]
    removed: bool,
}

impl ProviderProtocol for WebPush {
    const CHANNEL: OfflineChannel = OfflineChannel::WebPush;
    const TAKES: (StatusCode, &'static str) = (StatusCode::CREATED, "");
    const REFUSES: &'static str = "";

    fn read(&self, request: &Request) -> Result<Notification, String> {
        let token = request.uri().path().strip_prefix(ENDPOINT_PATH).ok_or("a path of no endpoint")?;
        let plain = self.keys.decrypt(request.body())?;
        let Shown { conversation, seq, removed } = serde_json::from_slice(&plain).map_err(|error| error.to_string())?;
        Ok(Notification { token: token.into(), conversation, seq, id: None, removed })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ring::{
        agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
        rand::SystemRandom,
    };

    /// Encrypts as RFC 8291 says, for whoever has these keys.
    fn encrypt(keys: &BrowserKeys, plain: &[u8]) -> Vec<u8> {
        let private = EphemeralPrivateKey::generate(&ECDH_P256, &SystemRandom::new()).unwrap();
        let public = private.compute_public_key().unwrap();
        let salt = [7; 16];
        let peer = UnparsedPublicKey::new(&ECDH_P256, BASE_POINT);
        let record = agree_ephemeral(private, &peer, |secret| {
            let input = derive::<32>(&keys.auth, secret, &[b"WebPush: info\0", &BASE_POINT, public.as_ref()]).unwrap();
            let key = derive::<16>(&salt, &input, &[b"Content-Encoding: aes128gcm\0"]).unwrap();
            let nonce = derive::<12>(&salt, &input, &[b"Content-Encoding: nonce\0"]).unwrap();
            let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key).unwrap());
            let mut record = [plain, &[2, 0, 0]].concat();
            key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record).unwrap();
            record
        });
        [&salt[..], &4096_u32.to_be_bytes(), &[65], public.as_ref(), &record.unwrap()].concat()
    }

    #[test]
    fn what_is_encrypted_for_the_browser_is_read_and_nothing_else() {
        let keys = BrowserKeys::new();
        let message = encrypt(&keys, b"hello");
        assert_eq!(keys.decrypt(&message).unwrap(), b"hello");
        assert!(BrowserKeys::new().decrypt(&message).is_err(), "another browser has another secret");
        assert!(keys.decrypt(&message[..80]).is_err());
    }
}
