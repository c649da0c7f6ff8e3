//! Where a server that others wrote is, whom its certificate must be of, and the keys that a driver's placeholders may need.

use crate::{LabError, client_engine::tls::TlsTrust, options::TargetArgs};
use clap::Args;
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    time::Duration,
};

/// A server that others wrote, instead of Tidings.
#[derive(Debug, Clone, Default, Args)]
pub struct DriverArgs {
    /// The server at --url is one that others wrote, and this file says how to speak to it; or the name of a driver that ships with
    /// the program: centrifugo, socket-io, mqtt, mqtt5, nats
    #[arg(long, value_name = "FILE")]
    pub driver: Option<String>,
    /// With --driver and a --url of https: the certificates in PEM that the server's must be signed by, instead of the system's
    #[arg(long, value_name = "FILE")]
    pub ca: Option<PathBuf>,
}

/// Where systems keep the certificates that they trust.
const SYSTEM_FILES: [&str; 2] = ["/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt"];

#[derive(Debug, Clone)]
pub(crate) struct DriverTarget {
    pub(crate) addresses: Vec<SocketAddr>,
    /// As `--url` names it.
    pub(super) host: String,
    /// Unset: connections are not encrypted.
    pub(super) trust: Option<TlsTrust>,
    pub(super) api_key: Option<String>,
    pub(super) token_key: Option<String>,
    pub(super) patience: Duration,
}

impl DriverTarget {
    /// A broker at this address.
    pub(crate) fn at(address: SocketAddr, patience: Duration) -> Self {
        let (addresses, host) = (vec![address], address.to_string());
        DriverTarget { addresses, host, trust: None, api_key: None, token_key: None, patience }
    }

    /// The server at this URL, or at several apart by commas.
    pub(crate) fn of(url: &str, args: &TargetArgs, ca: Option<&Path>) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::Usage(format!("--url {url}: {why}"));
        let parts: Vec<(Scheme, &str)> = url.split(',').map(scheme_of).collect();
        let (Scheme { is_encrypted, .. }, host) = parts[0];
        if parts.iter().any(|(scheme, _)| scheme.is_encrypted != is_encrypted) {
            return Err(wrong("either all are https, or none".into()));
        }
        let mut addresses = Vec::new();
        for (scheme, authority) in &parts {
            let with_port = match authority.rsplit_once(':') {
                Some((_, port)) if port.chars().all(|c| c.is_ascii_digit()) => (*authority).to_owned(),
                _ => format!("{authority}:{}", scheme.port),
            };
            let address = with_port.to_socket_addrs().ok().and_then(|mut addresses| addresses.next());
            addresses.push(address.ok_or_else(|| wrong("no such address".into()))?);
        }
        let trust = match (is_encrypted, ca) {
            (true, ca) => Some(trust_of(host, ca)?),
            (false, None) => None,
            (false, Some(_)) => return Err(wrong("--ca is for a server that is reached by https".into())),
        };
        Ok(DriverTarget {
            addresses,
            host: host.to_owned(),
            trust,
            api_key: args.api_key.clone(),
            token_key: args.token_key.clone(),
            patience: args.patience,
        })
    }

    /// A connection whose reads and writes wait.
    pub(super) fn connect_blocking(&self, timeout: Duration) -> Result<Box<dyn ReadWrite>, LabError> {
        let stream = TcpStream::connect_timeout(&self.addresses[0], timeout)?;
        stream.set_read_timeout(Some(timeout))?;
        stream.set_nodelay(true)?;
        Ok(match &self.trust {
            None => Box::new(stream),
            Some(trust) => Box::new(rustls::StreamOwned::new(trust.begin()?, stream)),
        })
    }
}

pub(super) trait ReadWrite: Read + Write {}
impl<T: Read + Write> ReadWrite for T {}

/// What the beginning of a URL says of a server.
#[derive(Debug, Clone, Copy)]
struct Scheme {
    is_encrypted: bool,
    /// Unless the URL has one.
    port: u16,
}

/// The scheme of a URL, and its host with the port.
fn scheme_of(url: &str) -> (Scheme, &str) {
    let plain = Scheme { is_encrypted: false, port: 80 };
    let encrypted = Scheme { is_encrypted: true, port: 443 };
    let schemes = [
        ("https://", encrypted),
        ("wss://", encrypted),
        ("mqtts://", Scheme { port: 8883, ..encrypted }),
        ("http://", plain),
        ("ws://", plain),
        ("mqtt://", Scheme { port: 1883, ..plain }),
        ("nats://", Scheme { port: 4222, ..plain }),
    ];
    let found = schemes.iter().find_map(|(beginning, scheme)| Some((*scheme, url.strip_prefix(beginning)?)));
    let (scheme, authority) = found.unwrap_or((plain, url));
    (scheme, authority.trim_end_matches('/'))
}

/// A certificate of this host and port, signed by those of the file, or by those that the system trusts.
fn trust_of(authority: &str, ca: Option<&Path>) -> Result<TlsTrust, LabError> {
    let from_variable = std::env::var_os("SSL_CERT_FILE").map(PathBuf::from);
    let file = match ca {
        Some(file) => file.to_owned(),
        None => from_variable
            .or_else(|| SYSTEM_FILES.map(PathBuf::from).into_iter().find(|file| file.is_file()))
            .ok_or_else(|| {
                LabError::Usage("this system has no file of trusted certificates: name one by --ca".into())
            })?,
    };
    let wrong = |why: String| LabError::Usage(format!("--ca {}: {why}", file.display()));
    let bytes = std::fs::read(&file).map_err(|error| wrong(error.to_string()))?;
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    TlsTrust::of(host, &bytes).map_err(wrong)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_url_says_where_and_whether_it_is_encrypted() {
        let of = |url: &str| DriverTarget::of(url, &TargetArgs::default(), None);
        let plain = of("http://127.0.0.1:8000/").unwrap();
        assert_eq!((plain.host.as_str(), plain.trust.is_some()), ("127.0.0.1:8000", false));
        for (url, address) in [("ws://127.0.0.1", "127.0.0.1:80"), ("mqtt://127.0.0.1", "127.0.0.1:1883")] {
            assert_eq!(of(url).unwrap().addresses, [address.parse().unwrap()]);
        }
        assert_eq!(of("127.0.0.1:1,127.0.0.2:2").unwrap().addresses.len(), 2);
        for (url, ca, why) in [
            ("http://127.0.0.1:1", Some("any"), "--ca is for"),
            ("http://127.0.0.1:1,https://127.0.0.1:2", None, "either all"),
            ("http://no.such.host.invalid:1", None, "no such address"),
            ("https://127.0.0.1:1", Some("/not/there"), "/not/there"),
            ("https://127.0.0.1:1", Some("/etc/hostname"), "has no certificate"),
        ] {
            let error = DriverTarget::of(url, &TargetArgs::default(), ca.map(Path::new)).unwrap_err().to_string();
            assert!(error.contains(why), "{url}: {error}");
        }
    }
}
