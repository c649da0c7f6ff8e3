//! TLS as an operator sees it: settings that cannot be served with, and certificates replaced in a running server.

use crate::support::*;
use rustls::{
    ClientConfig, ClientConnection, RootCertStore, StreamOwned, client::Resumption, crypto::ring, pki_types::ServerName,
};
use std::{
    fs,
    io::{self, Read, Write},
    net::{SocketAddr, TcpStream},
    sync::Arc,
    time::{Duration, Instant},
};

/// Puts a new certificate into the folder. Returns the configuration of a client that trusts only this certificate.
fn renew(folder: &Folder) -> Arc<ClientConfig> {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("certificate.pem"), made.cert.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Arc::new(config)
}

fn connect(address: SocketAddr, config: &Arc<ClientConfig>) -> io::Result<StreamOwned<ClientConnection, TcpStream>> {
    let session = ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
    let socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut stream = StreamOwned::new(session, socket);
    while stream.conn.is_handshaking() {
        stream.conn.complete_io(&mut stream.sock)?;
    }
    Ok(stream)
}

fn asks(stream: &mut StreamOwned<ClientConnection, TcpStream>) -> io::Result<String> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")?;
    let mut answer = vec![0; 12];
    stream.read_exact(&mut answer)?;
    Ok(text(&answer))
}

const TLS: [&str; 4] = ["--tls-certificate-file", "certificate.pem", "--tls-key-file", "key.pem"];

#[test]
fn a_sighup_loads_a_new_certificate_and_keeps_open_connections() {
    let folder = Folder::new();
    let old = renew(&folder);
    let mut command =
        folder.program(&["serve", "--http-tls-listen", "127.0.0.1:0", "--miop-tls-listen", "127.0.0.1:0"]);
    let server = Server::start(command.args(TLS).env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY));
    let https = server.listener(&folder, "https");
    let mut stays = connect(https, &old).unwrap();
    assert_eq!(asks(&mut stays).unwrap(), "HTTP/1.1 200");
    connect(server.listener(&folder, "miop_tls"), &old).unwrap();

    let new = renew(&folder);
    server.signal("HUP");
    let deadline = Instant::now() + Duration::from_secs(60);
    while connect(https, &new).is_err() {
        assert!(Instant::now() < deadline, "the new certificate was not taken");
    }
    connect(server.listener(&folder, "miop_tls"), &new).unwrap();
    assert!(connect(https, &old).is_err());
    let mut rest = [0; 4_096];
    let _ = stays.read(&mut rest).unwrap();
    assert!(asks(&mut stays).is_ok());
}

#[test]
fn unusable_tls_files_are_named_at_startup() {
    let check = |spoil: fn(&Folder), arguments: &[&str], named: &str| {
        let folder = Folder::new();
        renew(&folder);
        spoil(&folder);
        let mut command = folder.program(&["serve"]);
        command.args(arguments).env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
        let output = command.output().unwrap();
        assert!(!output.status.success());
        assert!(text(&output.stderr).contains(named), "{}", text(&output.stderr));
    };
    check(|folder| fs::remove_file(folder.path().join("key.pem")).unwrap(), &TLS, "key.pem");
    check(|folder| fs::write(folder.path().join("certificate.pem"), "x").unwrap(), &TLS, "certificate.pem");
    check(|_| {}, &TLS[..2], "key_file");
    check(|_| {}, &["--miop-tls-listen", "127.0.0.1:0"], "certificate_file");
    check(|_| {}, &["--proxy-protocol", "true"], "proxy_protocol_from");
}
