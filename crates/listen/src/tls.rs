//! TLS: certificates from files, loaded and checked at the start, and again when the files change.
//!
//! A connection keeps the certificate that it was opened with; only new connections see a new one. Session tickets are
//! encrypted with a key in memory (RFC 5077, RFC 8446 4.6.1): a device that reconnects resumes its TLS session without
//! a signature of ours, which makes a storm of reconnects cheap, and nothing is remembered per device.

use parking_lot::{Mutex, RwLock};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::SystemTime,
};

/// The protocol names that clients may ask for by ALPN (RFC 7301); a client that asks for none is served as well.
pub mod alpn {
    pub const MIOP: &[u8] = b"miop/1";
    pub const HTTP: &[u8] = b"http/1.1";
}

/// A device holds one connection, so one ticket in hand is enough for its next.
const TICKETS: usize = 1;

/// Why the files do not hold a certificate that can be used. Each variant names the file to mend.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{}: {why}", file.display())]
    Unreadable { file: PathBuf, why: io::Error },
    #[error("{}: no PEM of {what}: {why}", file.display())]
    NotPem { file: PathBuf, what: &'static str, why: rustls::pki_types::pem::Error },
    #[error("{} with the key {}: {why}", certificate.display(), key.display())]
    Mismatch { certificate: PathBuf, key: PathBuf, why: rustls::Error },
}

/// The certificate that new connections are served with.
#[derive(Debug)]
pub struct Certificates {
    certificate_file: PathBuf,
    key_file: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    /// The stamps of the files when they were read last, whether or not they could be used.
    stamps: Mutex<[Option<Stamp>; 2]>,
}

/// Modification time and length: they tell that a file has changed without reading it.
type Stamp = (SystemTime, u64);

/// What came of loading the files again.
#[derive(Debug)]
pub enum ReloadOutcome {
    Unchanged,
    Reloaded,
    /// The files cannot be used: new connections are served with the certificate from before.
    Failed(CertificateError),
}

impl Certificates {
    /// Loads both files for the first time.
    ///
    /// # Errors
    /// A file cannot be read or is no PEM, or the key is not the certificate's.
    pub fn load(certificate_file: &Path, key_file: &Path) -> Result<Arc<Self>, CertificateError> {
        let stamps = stamps(certificate_file, key_file);
        Ok(Arc::new(Certificates {
            current: RwLock::new(read(certificate_file, key_file)?),
            certificate_file: certificate_file.to_owned(),
            key_file: key_file.to_owned(),
            stamps: Mutex::new(stamps),
        }))
    }

    /// Loads the files again if they changed since they were read last.
    pub fn reload_if_changed(&self) -> ReloadOutcome {
        let mut last = self.stamps.lock();
        // Taken before reading: a change during the read is found by the next call.
        let now = stamps(&self.certificate_file, &self.key_file);
        if *last == now {
            return ReloadOutcome::Unchanged;
        }
        *last = now;
        drop(last);
        self.reload()
    }

    /// Loads the files again, changed or not.
    pub fn reload(&self) -> ReloadOutcome {
        match read(&self.certificate_file, &self.key_file) {
            Ok(read) => {
                *self.current.write() = read;
                tracing::info!(file = %self.certificate_file.display(), "certificate renewed");
                ReloadOutcome::Reloaded
            }
            Err(error) => {
                tracing::error!(%error, "the new certificate cannot be used; the old one is kept");
                ReloadOutcome::Failed(error)
            }
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

/// The TLS settings of a listener; `protocol` is the name that it accepts by ALPN.
///
/// # Errors
/// rustls finds the settings inconsistent, or no randomness for the key of session tickets.
pub fn server_config(certificates: Arc<Certificates>, protocol: &[u8]) -> Result<Arc<ServerConfig>, rustls::Error> {
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    config.alpn_protocols = vec![protocol.to_vec()];
    config.ticketer = ring::Ticketer::new()?;
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = TICKETS;
    Ok(Arc::new(config))
}

fn read(certificate: &Path, key: &Path) -> Result<Arc<CertifiedKey>, CertificateError> {
    let text = |file: &Path| fs::read(file).map_err(|why| CertificateError::Unreadable { file: file.to_owned(), why });
    let not_pem = |file: &Path, what| {
        let file = file.to_owned();
        move |why| CertificateError::NotPem { file, what, why }
    };
    let chain = CertificateDer::pem_slice_iter(&text(certificate)?).collect::<Result<Vec<_>, _>>();
    let chain = chain
        .and_then(|chain| if chain.is_empty() { Err(rustls::pki_types::pem::Error::NoItemsFound) } else { Ok(chain) });
    let chain = chain.map_err(not_pem(certificate, "a certificate"))?;
    let private = PrivateKeyDer::from_pem_slice(&text(key)?).map_err(not_pem(key, "a private key"))?;
    let made = CertifiedKey::from_der(chain, private, &ring::default_provider());
    made.map(Arc::new).map_err(|why| CertificateError::Mismatch {
        certificate: certificate.to_owned(),
        key: key.to_owned(),
        why,
    })
}

fn stamps(certificate: &Path, key: &Path) -> [Option<Stamp>; 2] {
    [certificate, key].map(|file| fs::metadata(file).and_then(|data| Ok((data.modified()?, data.len()))).ok())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    struct Files {
        folder: tempfile::TempDir,
    }

    impl Files {
        fn new() -> Self {
            let files = Files { folder: tempfile::tempdir().unwrap() };
            files.write_new_pair();
            files
        }

        fn certificate(&self) -> PathBuf {
            self.folder.path().join("certificate.pem")
        }

        fn key(&self) -> PathBuf {
            self.folder.path().join("key.pem")
        }

        fn write_new_pair(&self) {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            fs::write(self.certificate(), made.cert.pem()).unwrap();
            fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
        }

        fn load(&self) -> Result<Arc<Certificates>, CertificateError> {
            Certificates::load(&self.certificate(), &self.key())
        }
    }

    fn served(certificates: &Certificates) -> Vec<u8> {
        certificates.current.read().cert[0].to_vec()
    }

    #[test]
    fn an_error_names_the_bad_file() {
        let check = |spoil: fn(&Files), named: &str| {
            let files = Files::new();
            spoil(&files);
            let error = files.load().unwrap_err().to_string();
            assert!(error.contains(named), "{error}");
        };
        check(|files| fs::remove_file(files.certificate()).unwrap(), "certificate.pem: No such file");
        check(|files| fs::remove_file(files.key()).unwrap(), "key.pem: No such file");
        check(|files| fs::write(files.certificate(), "").unwrap(), "certificate.pem: no PEM of a certificate");
        check(|files| fs::write(files.key(), "-----BEGIN").unwrap(), "key.pem: no PEM of a private key");
        check(|files| fs::write(files.key(), fs::read(Files::new().key()).unwrap()).unwrap(), "with the key");
    }

    #[test]
    fn changed_files_are_loaded_and_bad_ones_are_not() {
        let files = Files::new();
        let certificates = files.load().unwrap();
        let first = served(&certificates);
        assert!(matches!(certificates.reload_if_changed(), ReloadOutcome::Unchanged));

        fs::write(files.certificate(), "half a cert").unwrap();
        assert!(matches!(certificates.reload_if_changed(), ReloadOutcome::Failed(_)));
        assert_eq!(served(&certificates), first);
        assert!(matches!(certificates.reload_if_changed(), ReloadOutcome::Unchanged), "a bad file is reported once");

        files.write_new_pair();
        assert!(matches!(certificates.reload_if_changed(), ReloadOutcome::Reloaded));
        assert_ne!(served(&certificates), first);
    }
}
