//! The addresses of providers. They are encrypted unless they are of this machine itself, where tests have their doubles.

use reqwest::Url;

/// Why an address cannot be used. The text has no more of it than its host.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BaseUrlError {
    /// It is no address.
    #[error("not an address such as https://push.example.com")]
    Invalid,
    /// Notifications would cross a network in the clear.
    #[error("{0}: an address of another machine must begin with https")]
    NotEncrypted(String),
}

/// Reads an address.
///
/// # Errors
/// It is none, or neither encrypted nor of this machine.
pub fn parse(text: &str) -> Result<Url, BaseUrlError> {
    let url: Url = text.parse().map_err(|_| BaseUrlError::Invalid)?;
    let Some(host) = url.host_str() else { return Err(BaseUrlError::Invalid) };
    match url.scheme() {
        "https" => Ok(url),
        "http" if is_loopback(host) => Ok(url),
        "http" => Err(BaseUrlError::NotEncrypted(host.to_owned())),
        _ => Err(BaseUrlError::Invalid),
    }
}

/// An address below another one, which keeps its own path: a proxy may have one.
pub(crate) fn below(base: &Url, path: &str) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}{path}", base.path().trim_end_matches('/')));
    url
}

/// Whether a host is this machine. A name is not looked up: it could be another's a moment later.
fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || address.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Scheme, host and port: what requests to one service have in common.
pub(crate) fn origin(url: &Url) -> String {
    url.origin().ascii_serialization()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_path_of_an_address_is_kept() {
        for (base, expected) in [
            ("https://api.push.apple.com", "https://api.push.apple.com/3/device/t"),
            ("https://proxy.example/", "https://proxy.example/3/device/t"),
            ("https://proxy.example/apns", "https://proxy.example/apns/3/device/t"),
            ("https://proxy.example/apns/", "https://proxy.example/apns/3/device/t"),
        ] {
            assert_eq!(below(&parse(base).unwrap(), "/3/device/t").as_str(), expected, "{base}");
        }
    }

    #[test]
    fn only_this_machine_is_reached_in_the_clear() {
        for (text, expected) in [
            ("https://push.example.com/x", None),
            ("http://127.0.0.1:8080", None),
            ("http://[::1]:8080", None),
            ("http://localhost", None),
            ("http://push.example.com/secret", Some(BaseUrlError::NotEncrypted("push.example.com".into()))),
            ("http://127.0.0.1.example.com", Some(BaseUrlError::NotEncrypted("127.0.0.1.example.com".into()))),
            ("http://10.0.0.1", Some(BaseUrlError::NotEncrypted("10.0.0.1".into()))),
            ("ftp://127.0.0.1", Some(BaseUrlError::Invalid)),
            ("push.example.com", Some(BaseUrlError::Invalid)),
            ("", Some(BaseUrlError::Invalid)),
        ] {
            assert_eq!(parse(text).err(), expected, "{text}");
        }
    }
}
