//! Which installation a node belongs to: the id that its database was given when its tables were made.
//!
//! Nodes on one database are one installation, whatever Redis they share with others. The id is no secret, but it is known to
//! nobody outside the installation, and so it salts the [fingerprints](InstallationId::fingerprint) of settings.

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

/// The id of an installation. 0: of a store that has none, such as a data folder, whose node has no peers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InstallationId(pub u128);

/// Bytes of a fingerprint. Two settings that differ are taken for alike once in 65,536 times, which an operator's mistake can
/// bear. Who reads the database and tries out guesses of a secret learns no more than these bits of it: among a million guesses,
/// fifteen others fit as well as the right one.
const FINGERPRINT_BYTES: usize = 2;

impl InstallationId {
    /// A short hash of a setting's value, by which nodes of one installation notice that they differ without telling the value.
    pub fn fingerprint(self, setting: &str, value: &[u8]) -> String {
        // A key of any length is valid.
        let Ok(mut hash) = Hmac::<Sha256>::new_from_slice(&self.0.to_be_bytes()) else { return String::new() };
        hash.update(setting.as_bytes());
        hash.update(&[0]);
        hash.update(value);
        let bytes = hash.finalize().into_bytes();
        bytes.iter().take(FINGERPRINT_BYTES).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// 32 hexadecimal digits, as in channel names.
impl std::fmt::Display for InstallationId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fingerprint_depends_on_installation_setting_and_value_and_tells_little() {
        let (here, there) = (InstallationId(1), InstallationId(2));
        let fingerprint = here.fingerprint("[cluster] secret", b"hush");
        assert_eq!(fingerprint, here.fingerprint("[cluster] secret", b"hush"));
        assert_eq!(fingerprint.len(), 2 * FINGERPRINT_BYTES);
        for other in [
            here.fingerprint("[cluster] secret", b"hush!"),
            here.fingerprint("token_key", b"hush"),
            there.fingerprint("[cluster] secret", b"hush"),
        ] {
            assert_ne!(fingerprint, other);
        }
    }
}
