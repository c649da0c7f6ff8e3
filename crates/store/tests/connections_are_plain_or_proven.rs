//! Encryption towards the database: who asks for it gets it proven, or no connection.
#![allow(clippy::unwrap_used)]

mod support;

use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use support::postgres::*;
use tidings_engine::store::Store;
use tidings_store::{PostgresOpenError, PostgresOptions, PostgresStore};

/// A signer, and what it signed for this name: the signer's certificate, the certificate and its key.
fn certificate(name: &str) -> [String; 3] {
    let signer_key = rcgen::KeyPair::generate().unwrap();
    let mut signer = rcgen::CertificateParams::new(Vec::new()).unwrap();
    signer.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let signer_pem = signer.self_signed(&signer_key).unwrap().pem();
    let issuer = rcgen::Issuer::new(signer, signer_key);
    let key = rcgen::KeyPair::generate().unwrap();
    let certificate = rcgen::CertificateParams::new([name.to_owned()]).unwrap().signed_by(&key, &issuer).unwrap();
    [signer_pem, certificate.pem(), key.serialize_pem()]
}

#[test]
fn who_asks_for_encryption_gets_it_proven() {
    // The server cannot be told to take any free port: this one is held for it, by a socket that is bound without leave to
    // share, and that gives the leave afterwards. The server asks for it.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    held.set_reuse_address(true).unwrap();
    let port = held.local_addr().unwrap().as_socket().unwrap().port();
    let server = PostgresServer::start(&["fsync=off", &format!("port={port}"), "listen_addresses=127.0.0.1"]);
    let [signer, certificate, key] = certificate("localhost");
    let (certificate, key) = (server.keep("server.crt", &certificate), server.keep("server.key", &key));
    let signer = server.keep("signer.crt", &signer);
    let stranger = server.keep("stranger.crt", &self::certificate("localhost")[0]);
    let socket = server.database();
    for (setting, file) in [("ssl_cert_file", &certificate), ("ssl_key_file", &key)] {
        server.sql(&socket, &format!("ALTER SYSTEM SET {setting} = '{}'", file.display()));
    }
    server.sql(&socket, "ALTER SYSTEM SET ssl = on");
    server.stop();
    server.go();

    let database = socket.rsplit('/').next().unwrap().split('?').next().unwrap();
    let open = |host: &str, mode: &str, signer: Option<&std::path::Path>| {
        let url = format!("postgres://postgres@{host}:{port}/{database}?sslmode={mode}&application_name={mode}");
        let tls_ca_file = signer.map(Into::into);
        PostgresStore::open(PostgresOptions { tls_ca_file, ..options_at(&url) })
    };
    let encrypted = |mode: &str| {
        let of = format!("FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = '{mode}'");
        server.sql(&socket, &format!("SELECT DISTINCT ssl {of}"))
    };
    let store = open("localhost", "require", Some(&signer)).unwrap();
    assert_eq!((store.last_position(), encrypted("require").as_str()), (0, "t"));
    let plain = open("localhost", "disable", Some(&signer)).unwrap();
    assert_eq!((plain.last_position(), encrypted("disable").as_str()), (0, "f"));
    for (host, signer) in [("localhost", Some(stranger.as_path())), ("127.0.0.1", Some(&signer)), ("localhost", None)] {
        let error = open(host, "require", signer).err().expect("it was not proven").to_string();
        assert!(error.contains("certificate") || error.contains("trusts"), "{error}");
    }
    let missing = open("localhost", "require", Some("/nowhere.pem".as_ref()));
    assert!(matches!(missing, Err(PostgresOpenError::Tls(_))));
}
