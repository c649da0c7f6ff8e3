//! TLS: certificates from files, loaded and checked at the start, and again when the files change.
//!
//! A connection keeps what it was opened with; only new ones see a new certificate. Session tickets are sealed by
//! a key in memory (RFC 5077, RFC 8446 4.6.1): a device that comes back resumes without a signature of ours, which
//! is what makes a storm of reconnects cheap, and nothing is remembered per device.

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

/// What clients of each door may ask for by ALPN (RFC 7301); one that asks for nothing is served as well.
pub mod protocol {
    pub const MIOP: &[u8] = b"miop/1";
    pub const HTTP: &[u8] = b"http/1.1";
}

/// A device holds one connection, so one ticket in hand is enough for its next.
const TICKETS: usize = 1;

/// Why files do not make a certificate that can be served with. Each names the file to mend.
#[derive(Debug, thiserror::Error)]
pub enum CertificateError {
    #[error("{}: {why}", file.display())]
    Unreadable { file: PathBuf, why: io::Error },
    #[error("{}: no PEM of {what}: {why}", file.display())]
    NotPem { file: PathBuf, what: &'static str, why: rustls::pki_types::pem::Error },
    #[error("{} with the key {}: {why}", certificate.display(), key.display())]
    DoNotFit { certificate: PathBuf, key: PathBuf, why: rustls::Error },
}

/// The certificate that new connections are shown.
#[derive(Debug)]
pub struct Certificates {
    certificate_file: PathBuf,
    key_file: PathBuf,
    current: RwLock<Arc<CertifiedKey>>,
    /// The state of the files at the last look, good or bad.
    seen: Mutex<[Option<Stamp>; 2]>,
}

/// What tells one state of a file from the next without reading it.
type Stamp = (SystemTime, u64);

/// What a look at the files came to.
#[derive(Debug)]
pub enum Look {
    Unchanged,
    Renewed,
    /// They changed, and cannot be served with: what there was is kept.
    Kept(CertificateError),
}

impl Certificates {
    pub fn load(certificate_file: &Path, key_file: &Path) -> Result<Arc<Self>, CertificateError> {
        let seen = stamps(certificate_file, key_file);
        Ok(Arc::new(Certificates {
            current: RwLock::new(read(certificate_file, key_file)?),
            certificate_file: certificate_file.to_owned(),
            key_file: key_file.to_owned(),
            seen: Mutex::new(seen),
        }))
    }

    /// Loads the files again if they changed since the last look.
    pub fn look(&self) -> Look {
        let mut seen = self.seen.lock();
        // Taken before reading: what changes meanwhile is found by the next look.
        let now = stamps(&self.certificate_file, &self.key_file);
        if *seen == now {
            return Look::Unchanged;
        }
        *seen = now;
        drop(seen);
        self.reload()
    }

    /// Loads the files again, changed or not.
    pub fn reload(&self) -> Look {
        match read(&self.certificate_file, &self.key_file) {
            Ok(read) => {
                *self.current.write() = read;
                tracing::info!(file = %self.certificate_file.display(), "certificate renewed");
                Look::Renewed
            }
            Err(error) => {
                tracing::error!(%error, "the new certificate cannot be used; the old one is kept");
                Look::Kept(error)
            }
        }
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.current.read().clone())
    }
}

/// What a door's TLS connections are made with; `protocol` is what it answers to by ALPN.
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
    let chain = chain.and_then(|chain| match chain.is_empty() {
        true => Err(rustls::pki_types::pem::Error::NoItemsFound),
        false => Ok(chain),
    });
    let chain = chain.map_err(not_pem(certificate, "a certificate"))?;
    let private = PrivateKeyDer::from_pem_slice(&text(key)?).map_err(not_pem(key, "a private key"))?;
    let made = CertifiedKey::from_der(chain, private, &ring::default_provider());
    made.map(Arc::new).map_err(|why| CertificateError::DoNotFit {
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
            files.put_new();
            files
        }

        fn certificate(&self) -> PathBuf {
            self.folder.path().join("certificate.pem")
        }

        fn key(&self) -> PathBuf {
            self.folder.path().join("key.pem")
        }

        fn put_new(&self) {
            let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
            fs::write(self.certificate(), made.cert.pem()).unwrap();
            fs::write(self.key(), made.signing_key.serialize_pem()).unwrap();
        }

        fn load(&self) -> Result<Arc<Certificates>, CertificateError> {
            Certificates::load(&self.certificate(), &self.key())
        }
    }

    fn shown(certificates: &Certificates) -> Vec<u8> {
        certificates.current.read().cert[0].to_vec()
    }

    #[test]
    fn bad_files_are_named() {
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
    fn changed_files_are_taken_and_bad_ones_are_not() {
        let files = Files::new();
        let certificates = files.load().unwrap();
        let first = shown(&certificates);
        assert!(matches!(certificates.look(), Look::Unchanged));

        fs::write(files.certificate(), "half a cert").unwrap();
        assert!(matches!(certificates.look(), Look::Kept(_)));
        assert_eq!(shown(&certificates), first);
        assert!(matches!(certificates.look(), Look::Unchanged), "it is not told again");

        files.put_new();
        assert!(matches!(certificates.look(), Look::Renewed));
        assert_ne!(shown(&certificates), first);
    }
}
