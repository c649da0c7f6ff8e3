//! `bench agent`: a machine that lends its cores, descriptors and ports to a bench that runs elsewhere.
//!
//! An agent starts load clients for a coordinator, the bench, and relays the lines that both exchange; what a load client does it
//! does not know. It serves one coordinator at a time, over as many connections as that one has load clients. When a connection
//! ends, or is silent, its load client is killed.
//!
//! In reading order: [`wire`], the lines and their bounds; [`proof`], who may use an agent; [`machine`], what it has to offer;
//! [`service`], connections and whose turn it is; [`session`], one connection and its load client.

pub(crate) mod machine;
pub(crate) mod proof;
mod service;
mod session;
pub(crate) mod wire;

use crate::LabError;
use clap::Args;
use std::{
    io::Write,
    net::{SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::ExitCode,
};

#[derive(Debug, Clone, Args)]
pub struct AgentArgs {
    /// Where the coordinator connects. The line is not encrypted: an address of a private network, or of a tunnel
    #[arg(long, default_value = "127.0.0.1:7077")]
    pub listen: SocketAddr,
    /// The secret that coordinator and agents share, at least 16 characters. Other users of the machine see it in the list of
    /// processes: prefer the variable or `--token-file`
    #[arg(long, env = "TIDINGS_AGENT_TOKEN", hide_env_values = true)]
    pub token: Option<String>,
    /// A file whose first line is the secret
    #[arg(long, conflicts_with = "token")]
    pub token_file: Option<PathBuf>,
}

/// The `bench agent` command: serves coordinators until it is ended.
pub(crate) fn main(args: &AgentArgs) -> ExitCode {
    let token = match read_token(args.token.as_deref(), args.token_file.as_deref(), "--token") {
        Ok(token) => token,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let listener = match TcpListener::bind(args.listen) {
        Ok(listener) => listener,
        Err(error) => {
            eprintln!("--listen {}: {error}", args.listen);
            return ExitCode::from(4);
        }
    };
    println!("agent listens on {}", listener.local_addr().unwrap_or(args.listen));
    let _ = std::io::stdout().flush();
    service::serve(&listener, token);
    ExitCode::SUCCESS
}

/// The token by its option, its variable or its file. A short one is refused: it could be found by trying.
pub(crate) fn read_token(token: Option<&str>, file: Option<&Path>, option: &str) -> Result<String, LabError> {
    let token = match (file, token) {
        (Some(file), _) => {
            let text = std::fs::read_to_string(file)
                .map_err(|error| LabError::Usage(format!("{option}-file {}: {error}", file.display())))?;
            text.lines().next().unwrap_or_default().trim().to_owned()
        }
        (None, Some(token)) => token.to_owned(),
        (None, None) => {
            return Err(LabError::Usage(format!("an agent needs {option}-file, TIDINGS_AGENT_TOKEN or {option}")));
        }
    };
    if token.chars().count() >= proof::TOKEN_CHARACTERS_MIN {
        Ok(token)
    } else {
        Err(LabError::Usage(format!("the agents' token needs {} characters", proof::TOKEN_CHARACTERS_MIN)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_comes_from_a_file_or_an_option_and_is_long_enough() {
        let folder = tempfile::tempdir().unwrap_or_else(|error| panic!("{error}"));
        let file = folder.path().join("token");
        std::fs::write(&file, "0123456789abcdef\nnot this\n").unwrap_or_else(|error| panic!("{error}"));
        let token = |token, file| read_token(token, file, "--token").map_err(|error| error.to_string());
        assert_eq!(token(None, Some(&file)).as_deref(), Ok("0123456789abcdef"));
        assert_eq!(token(Some("0123456789abcdefg"), None).as_deref(), Ok("0123456789abcdefg"));
        for (wrong, part) in [
            (token(Some("short"), None), "16 characters"),
            (token(None, None), "--token-file"),
            (token(None, Some(&folder.path().join("none"))), "none"),
        ] {
            assert!(wrong.as_ref().is_err_and(|why| why.contains(part)), "{wrong:?}");
        }
    }
}
