//! Encryption towards the database: all or nothing. libpq's `prefer`, which takes any certificate or none, protects
//! from nobody who sits in between, so here a connection is either plain or proven.

use super::{PostgresOpenError, PostgresOptions};
use rustls::{
    ClientConfig, RootCertStore,
    crypto::ring,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{path::Path, sync::Arc};
use tokio_postgres::{Config, config::SslMode};
use tokio_postgres_rustls::MakeRustlsConnect;

/// What connections are encrypted with; settles whether they are.
pub(crate) fn of(options: &PostgresOptions, config: &mut Config) -> Result<MakeRustlsConnect, PostgresOpenError> {
    let proven = config.get_ssl_mode() == SslMode::Require;
    let roots = match (&options.tls_ca_file, proven) {
        (_, false) => {
            config.ssl_mode(SslMode::Disable);
            RootCertStore::empty()
        }
        (Some(file), true) => {
            from_file(file).map_err(|why| PostgresOpenError::Tls(format!("{}: {why}", file.display())))?
        }
        (None, true) => of_system()?,
    };
    let client = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| PostgresOpenError::Tls(error.to_string()))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(MakeRustlsConnect::new(client))
}

fn from_file(file: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_file_iter(file).map_err(|error| error.to_string())? {
        let certificate = certificate.map_err(|error| error.to_string())?;
        roots.add(certificate).map_err(|error| error.to_string())?;
    }
    match roots.is_empty() {
        true => Err("no certificate in it".into()),
        false => Ok(roots),
    }
}

fn of_system() -> Result<RootCertStore, PostgresOpenError> {
    let found = rustls_native_certs::load_native_certs();
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(found.certs);
    match roots.is_empty() {
        true => Err(PostgresOpenError::Tls(format!("the system trusts nobody: {:?}", found.errors))),
        false => Ok(roots),
    }
}
