//! The encryption of Web Push (RFC 8291): `aes128gcm` of RFC 8188 with a key that only sender and browser know.

use ring::{
    aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey},
    agreement::{ECDH_P256, EphemeralPrivateKey, UnparsedPublicKey, agree_ephemeral},
    error::Unspecified,
    hkdf::{HKDF_SHA256, KeyType, Salt},
    rand::{SecureRandom, SystemRandom},
};

/// The bytes that encryption adds: the header (86), the end of the padding (1) and the tag (16).
pub(super) const OVERHEAD: usize = 103;
/// The record size that the header tells; there is one record.
const RECORD_SIZE: u32 = 4_096;

/// The length of a key.
struct Length(usize);

impl KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}

/// Encrypts for the browser with this public key and secret.
///
/// # Errors
/// The public key is no point of P-256, or the system has no randomness.
pub(super) fn encrypt(plaintext: &[u8], ua_public: &[u8], auth: &[u8]) -> Result<Vec<u8>, Unspecified> {
    let random = SystemRandom::new();
    let private = EphemeralPrivateKey::generate(&ECDH_P256, &random)?;
    let public = private.compute_public_key()?;
    let mut salt = [0; 16];
    random.fill(&mut salt)?;
    let peer = UnparsedPublicKey::new(&ECDH_P256, ua_public);
    agree_ephemeral(private, &peer, |secret| seal(plaintext, secret, (ua_public, public.as_ref()), auth, &salt))?
}

/// The message with its header, from the shared secret on: all that follows is determined.
fn seal(
    plaintext: &[u8],
    secret: &[u8],
    (ua_public, as_public): (&[u8], &[u8]),
    auth: &[u8],
    salt: &[u8; 16],
) -> Result<Vec<u8>, Unspecified> {
    let input = expand::<32>(auth, secret, &[b"WebPush: info\0", ua_public, as_public])?;
    let key = expand::<16>(salt, &input, &[b"Content-Encoding: aes128gcm\0"])?;
    let nonce = expand::<12>(salt, &input, &[b"Content-Encoding: nonce\0"])?;
    let mut message = Vec::with_capacity(plaintext.len() + OVERHEAD);
    message.extend_from_slice(salt);
    message.extend_from_slice(&RECORD_SIZE.to_be_bytes());
    message.push(u8::try_from(as_public.len()).map_err(|_| Unspecified)?);
    message.extend_from_slice(as_public);
    // The last record ends with a 2 (RFC 8188, 2).
    let mut record = [plaintext, &[2]].concat();
    let key = LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &key)?);
    key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record)?;
    message.extend_from_slice(&record);
    Ok(message)
}

/// HKDF with SHA-256.
fn expand<const N: usize>(salt: &[u8], secret: &[u8], info: &[&[u8]]) -> Result<[u8; N], Unspecified> {
    let mut key = [0; N];
    Salt::new(HKDF_SHA256, salt).extract(secret).expand(info, Length(N))?.fill(&mut key)?;
    Ok(key)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

    fn decode(text: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    /// The example of RFC 8291, section 5, with the values of appendix A.
    #[test]
    fn the_example_of_the_standard_comes_out() {
        let as_public =
            decode("BP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A8");
        let ua_public =
            decode("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4");
        let secret = decode("kyrL1jIIOHEzg3sM2ZWRHDRB62YACZhhSlknJ672kSs");
        let salt = decode("DGv6ra1nlYgDCS1FRnbzlw").try_into().unwrap();
        let auth = decode("BTBZMqHH6r4Tts7J_aSIgg");
        let message =
            seal(b"When I grow up, I want to be a watermelon", &secret, (&ua_public, &as_public), &auth, &salt);
        let expected = decode(
            "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A\
             _yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN",
        );
        assert_eq!(message.unwrap(), expected);
    }

    #[test]
    fn each_message_has_a_key_of_its_own_and_a_wrong_public_key_is_refused() {
        let ua_public =
            decode("BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4");
        let first = encrypt(b"hello", &ua_public, &[0; 16]).unwrap();
        assert_eq!(first.len(), 5 + OVERHEAD);
        assert_ne!(first, encrypt(b"hello", &ua_public, &[0; 16]).unwrap());
        let mut not_on_curve = ua_public;
        not_on_curve[64] ^= 1;
        assert!(encrypt(b"hello", &not_on_curve, &[0; 16]).is_err());
        assert!(encrypt(b"hello", &[4; 65], &[0; 16]).is_err());
    }
}
