//! Encryption towards the database: all or nothing. libpq's `prefer` accepts any certificate or none, and so does not
//! protect from an attacker in between. Here a connection is either plain or encrypted with a verified certificate.

use super::{PostgresOpenError, options::PostgresOptions};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{path::Path, sync::Arc};
use tokio_postgres::{Config, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// The TLS settings of connections; also sets in `config` whether connections are encrypted.
pub(crate) fn tls_of(options: &PostgresOptions, config: &mut Config) -> Result<MakeRustlsConnect, PostgresOpenError> {
    let is_required = config.get_ssl_mode() == SslMode::Require;
    let roots = match (&options.tls_ca_file, is_required) {
        (_, false) => {
            config.ssl_mode(SslMode::Disable);
            RootCertStore::empty()
        }
        (Some(file), true) => {
            roots_from_file(file).map_err(|why| PostgresOpenError::Tls(format!("{}: {why}", file.display())))?
        }
        (None, true) => system_roots()?,
    };
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| PostgresOpenError::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(client))
}

fn roots_from_file(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    if roots.is_empty() { Err("the file holds no certificate".into()) } else { Ok(roots) }
}

fn system_roots() -> Result<RootCertStore, PostgresOpenError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    if roots.is_empty() {
        Err(PostgresOpenError::Tls(format!("the system has no trusted certificates: {:?}", found.errors)))
    } else {
        Ok(roots)
    }
}
