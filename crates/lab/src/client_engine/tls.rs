//! Whom a server's certificate must be of, and signed by.

use rustls::{
    ClientConfig, ClientConnection, RootCertStore,
    client::Resumption,
    crypto::ring,
    pki_types::{CertificateDer, ServerName, pem::PemObject},
};
use std::{io, sync::Arc};

#[derive(Debug, Clone)]
pub(crate) struct TlsTrust {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

impl TlsTrust {
    /// Accepts a certificate of `name` that one of these signed, in PEM; or one of these itself.
    pub(crate) fn of(name: &str, certificates: &[u8]) -> Result<Self, String> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(certificates) {
            let certificate = certificate.map_err(|error| error.to_string())?;
            // Systems trust some certificates that this implementation cannot read: the others suffice.
            let _ = roots.add(certificate);
        }
        if roots.is_empty() {
            return Err("has no certificate".into());
        }
        let name =
            ServerName::try_from(name.to_owned()).map_err(|error| format!("{name} has no certificate: {error}"))?;
        let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .map_err(|error| error.to_string())?
            .with_root_certificates(roots)
            .with_no_client_auth();
        // Each client is a user of its own, who has no ticket of another; and resumed handshakes would be cheaper.
        config.resumption = Resumption::disabled();
        Ok(TlsTrust { config: Arc::new(config), name })
    }

    pub(crate) fn begin(&self) -> io::Result<ClientConnection> {
        let mut connection = ClientConnection::new(self.config.clone(), self.name.clone()).map_err(io::Error::other)?;
        // What a client says waits for the handshake here; the lab bounds it by what it sends.
        connection.set_buffer_limit(None);
        Ok(connection)
    }
}
