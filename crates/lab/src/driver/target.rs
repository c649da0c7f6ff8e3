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
    /// the program: centrifugo, socket-io
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
    /// The server at this URL, or at several apart by commas.
    pub(crate) fn of(url: &str, args: &TargetArgs, ca: Option<&Path>) -> Result<Self, LabError> {
        let wrong = |why: String| LabError::Usage(format!("--url {url}: {why}"));
        let parts: Vec<(bool, &str)> = url.split(',').map(scheme_of).collect();
        let (is_encrypted, host) = parts[0];
        if parts.iter().any(|(encrypted, _)| *encrypted != is_encrypted) {
            return Err(wrong("either all are https, or none".into()));
        }
        let mut addresses = Vec::new();
        for (_, authority) in &parts {
            let with_port = match authority.rsplit_once(':') {
                Some((_, port)) if port.chars().all(|c| c.is_ascii_digit()) => (*authority).to_owned(),
                _ => format!("{authority}:{}", if is_encrypted { 443 } else { 80 }),
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

/// Whether a URL is of a server with TLS, and its host with the port.
fn scheme_of(url: &str) -> (bool, &str) {
    let schemes = [("https://", true), ("wss://", true), ("http://", false), ("ws://", false)];
    let found = schemes.iter().find_map(|(scheme, encrypted)| Some((*encrypted, url.strip_prefix(scheme)?)));
    let (encrypted, authority) = found.unwrap_or((false, url));
    (encrypted, authority.trim_end_matches('/'))
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
        assert_eq!(of("ws://127.0.0.1").unwrap().addresses, ["127.0.0.1:80".parse().unwrap()]);
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
