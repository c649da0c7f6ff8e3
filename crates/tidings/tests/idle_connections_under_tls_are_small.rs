//! What an idle device under TLS costs the server, by the growth of its resident memory.
#![allow(clippy::unwrap_used)]

mod support;

use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned, crypto::ring, pki_types::ServerName};
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    sync::Arc,
    time::Duration,
};
use support::*;
use tidings_client::token::sign;
use tidings_protocol::{
    http::UserUpsert,
    miop::{Bind, Frame, VERSION, kind, take_head, wants},
};

/// What is allocated once counts too: among so many it is little.
const DEVICES: usize = 3_000;

#[test]
fn an_idle_device_under_tls_is_small() {
    let folder = Folder::new();
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
    fs::write(folder.path().join("certificate.pem"), made.cert.pem()).unwrap();
    fs::write(folder.path().join("key.pem"), made.signing_key.serialize_pem()).unwrap();
    let mut roots = RootCertStore::empty();
    roots.add(made.cert.der().clone()).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let config = Arc::new(config);
    let mut command = folder.program(&["serve", "--miop-tls-listen", "127.0.0.1:0"]);
    command.args(["--tls-certificate-file", "certificate.pem", "--tls-key-file", "key.pem"]);
    let server = Server::start(command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY));
    let user = |n: usize| UserUpsert { id: format!("u{n}"), ..UserUpsert::default() };
    server.http().upsert_users((0..DEVICES).map(user).collect()).unwrap();

    let address = server.door(&folder, "miop_tls");
    let connect = |user: usize| {
        let socket = TcpStream::connect(address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let session = ClientConnection::new(config.clone(), ServerName::try_from("localhost").unwrap()).unwrap();
        let mut stream = StreamOwned::new(session, socket);
        let token = sign(TOKEN_KEY, &format!("u{user}"), Duration::from_secs(600));
        let wants = Some(wants::PUSH);
        let bind = Bind { version: VERSION, token: &token, device_id: "d1", wants, ..Bind::default() };
        stream.write_all(&Frame::Bind(bind).to_bytes()).unwrap();
        let mut answer = [0; 1_024];
        let count = stream.read(&mut answer).unwrap();
        assert_eq!(take_head(&answer[..count], 1_024).unwrap().unwrap().kind, kind::BOUND);
        stream
    };
    let before = server.resident_bytes();
    let _devices: Vec<_> = (0..DEVICES).map(connect).collect();
    let bytes = (server.resident_bytes() - before) / DEVICES;
    println!("{bytes} bytes for an idle device under TLS");
    assert!(bytes <= 12 * 1024, "{bytes} bytes for an idle device under TLS");
}
