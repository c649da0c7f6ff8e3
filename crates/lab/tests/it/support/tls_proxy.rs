//! TLS before a server of a test that has none.

use super::http::listen;
use rustls::{
    ServerConfig, ServerConnection, StreamOwned,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use std::{
    io::{ErrorKind, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    sync::Arc,
    time::Duration,
};

/// How long one side is waited for while the other may have something.
const TURN: Duration = Duration::from_millis(1);

/// Starts it; returns where it listens, and its certificate for `localhost` in PEM.
pub(crate) fn start(server: SocketAddr) -> (SocketAddr, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
    let config = ServerConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)
        .unwrap();
    let config = Arc::new(config);
    let address = listen(move |client| {
        relay(client, TcpStream::connect(server).unwrap(), config.clone());
        Some(())
    });
    (address, made.cert.pem())
}

fn relay(client: TcpStream, mut server: TcpStream, config: Arc<ServerConfig>) {
    for stream in [&client, &server] {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(TURN)).unwrap();
    }
    let mut client = StreamOwned::new(ServerConnection::new(config).unwrap(), client);
    let mut bytes = [0; 16 * 1024];
    while pass(&mut client, &mut server, &mut bytes) && pass(&mut server, &mut client, &mut bytes) {}
    let _ = server.shutdown(Shutdown::Both);
    let _ = client.sock.shutdown(Shutdown::Both);
}

/// Passes on what there is; false once a side has ended.
fn pass(from: &mut impl Read, to: &mut impl Write, bytes: &mut [u8]) -> bool {
    match from.read(bytes) {
        Ok(0) => false,
        Ok(count) => to.write_all(&bytes[..count]).and_then(|()| to.flush()).is_ok(),
        Err(error) => matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted),
    }
}
