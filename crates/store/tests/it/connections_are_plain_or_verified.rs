//! Encryption towards the database: `sslmode=require` gives a connection with a verified certificate, or none.

use crate::support::postgres::*;
use socket2::{Domain, Socket, Type};
use std::net::{Ipv4Addr, SocketAddr};
use tidings_domain::store::Store;
use tidings_store::{PostgresOpenError, PostgresOptions, PostgresStore};

/// A certificate for this name: the signer's certificate, the certificate itself and its key.
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
fn a_required_encryption_verifies_the_servers_certificate() {
    // The server cannot bind port 0. This socket reserves a free port for it: no other process can share the port, and
    // after `set_reuse_address` the server, which sets the same option, can.
    let held = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    held.bind(&SocketAddr::from((Ipv4Addr::LOCALHOST, 0)).into()).unwrap();
    held.set_reuse_address(true).unwrap();
    let port = held.local_addr().unwrap().as_socket().unwrap().port();
    let server = PostgresServer::start(&["fsync=off", &format!("port={port}"), "listen_addresses=127.0.0.1"]);
    let [signer, certificate, key] = certificate("localhost");
    let (certificate, key) = (server.write_file("server.crt", &certificate), server.write_file("server.key", &key));
    let signer = server.write_file("signer.crt", &signer);
    let stranger = server.write_file("stranger.crt", &self::certificate("localhost")[0]);
    let socket = server.database();
    for (setting, file) in [("ssl_cert_file", &certificate), ("ssl_key_file", &key)] {
        server.sql(&socket, &format!("ALTER SYSTEM SET {setting} = '{}'", file.display()));
    }
    server.sql(&socket, "ALTER SYSTEM SET ssl = on");
    server.stop();
    server.launch();

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
        let error = open(host, "require", signer).err().expect("the certificate was not verified").to_string();
        assert!(error.contains("certificate"), "{error}");
    }
    let missing = open("localhost", "require", Some("/nowhere.pem".as_ref()));
    assert!(matches!(missing, Err(PostgresOpenError::Tls(_))));
}
