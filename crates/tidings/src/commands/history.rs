//! `tidings import` and `tidings export`: the history of another system, and our own, by a server that runs.

use crate::{
    commands::listen::{resolve, running_server},
    development::Keys,
    settings::SettingArgs,
};
use anyhow::{Context, Result};
use flate2::{Compression, read::MultiGzDecoder, write::GzEncoder};
use std::{
    fs::File,
    io::{BufRead, BufReader, BufWriter, IsTerminal, Read, Write},
    net::SocketAddr,
    path::PathBuf,
    process::ExitCode,
    time::Instant,
};
use tidings_client::{
    http::{HttpResponse, path_segment},
    transfer::{download, upload},
};
use tidings_protocol::http::{ImportResult, Problem};

const JSON_LINES: &str = "application/x-ndjson";
const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Which server is asked, and how.
#[derive(clap::Args)]
struct ServerArgs {
    /// The server's HTTP address; that of the server on this data folder unless given
    #[arg(long)]
    server: Option<String>,
    /// An API key with the scope `admin`; that of the settings unless given
    #[arg(long, env = "TIDINGS_KEY", hide_env_values = true)]
    key: Option<String>,
    #[command(flatten)]
    settings: SettingArgs,
}

impl ServerArgs {
    fn address_and_key(&self) -> Result<(SocketAddr, String)> {
        let settings = self.settings.load()?;
        let key = match (&self.key, settings.all_api_keys().next()) {
            (Some(key), _) => key.clone(),
            (None, Some(key)) => key,
            (None, None) => Keys::read(&settings.data_dir)?.context("no api_key is set: name one by --key")?.api_key,
        };
        let address = match &self.server {
            Some(server) => resolve(server)?,
            None => running_server(&self.settings)?,
        };
        Ok((address, key))
    }
}

/// Import the history of another system; `docs/import.md` has the format
#[derive(clap::Args)]
pub(crate) struct Import {
    /// Records, one as JSON in each line, plain or compressed by gzip; `-`: standard input
    file: PathBuf,
    #[command(flatten)]
    server: ServerArgs,
}

impl Import {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (address, key) = self.server.address_and_key()?;
        let body = open(&self.file)?;
        let began = Instant::now();
        let (mut bytes, mut told) = (0, Instant::now());
        let shows_progress = std::io::stderr().is_terminal();
        let answer = upload(address, &key, "/v1/import", JSON_LINES, body, |part| {
            bytes += part;
            if shows_progress && told.elapsed().as_millis() > 500 {
                told = Instant::now();
                eprint!("\r{:.1} MB sent", bytes as f64 / 1e6);
            }
        });
        if shows_progress {
            eprintln!();
        }
        let answer = answer.context("the server did not answer; what it has stored is kept: repeat the import")?;
        if answer.status != 200 {
            return Err(refusal(&answer));
        }
        let result: ImportResult = serde_json::from_slice(&answer.body)?;
        println!("{}", serde_json::to_string(&result)?);
        let seconds = began.elapsed().as_secs_f64();
        eprintln!(
            "{} lines in {seconds:.1} s: {} new messages, {} known ones ({:.0} a second)",
            result.lines,
            result.messages,
            result.duplicates,
            (result.messages + result.duplicates) as f64 / seconds
        );
        Ok(ExitCode::SUCCESS)
    }
}

fn open(file: &PathBuf) -> Result<Box<dyn Read>> {
    let reader: Box<dyn Read> = match file.as_os_str() == "-" {
        true => Box::new(std::io::stdin()),
        false => Box::new(File::open(file).with_context(|| file.display().to_string())?),
    };
    let mut reader = BufReader::new(reader);
    let is_compressed = reader.fill_buf()?.starts_with(&GZIP);
    Ok(if is_compressed { Box::new(MultiGzDecoder::new(reader)) } else { Box::new(reader) })
}

/// Export history in the format that `tidings import` reads, or all that there is of a user
#[derive(clap::Args)]
pub(crate) struct Export {
    /// The file to write, compressed if its name ends with `.gz`; `-`: standard output
    file: PathBuf,
    /// One conversation, by its id; everything unless given
    #[arg(long)]
    conversation: Option<String>,
    /// All that there is of a user, by the id: a ZIP archive for the user, which no import reads
    #[arg(long, conflicts_with = "conversation")]
    user: Option<String>,
    /// With --user: also the messages of others, as far as the user may read them now
    #[arg(long, requires = "user")]
    received: bool,
    #[command(flatten)]
    server: ServerArgs,
}

impl Export {
    pub(crate) fn run(self) -> Result<ExitCode> {
        let (address, key) = self.server.address_and_key()?;
        let path = match (self.user.as_deref(), self.conversation.as_deref()) {
            (Some(user), _) => format!("/v1/users/{}/export?received={}", path_segment(user), self.received),
            (None, Some(id)) => format!("/v1/export?conversation={}", path_segment(id)),
            (None, None) => "/v1/export".into(),
        };
        let refused = if self.file.as_os_str() == "-" {
            download(address, &key, &path, &mut std::io::stdout().lock())?
        } else {
            let file = File::create_new(&self.file).with_context(|| self.file.display().to_string())?;
            let mut file = BufWriter::new(file);
            let is_compressed = self.file.extension().is_some_and(|extension| extension == "gz");
            let refused = if is_compressed {
                let mut packed = GzEncoder::new(&mut file, Compression::default());
                let refused = download(address, &key, &path, &mut packed)?;
                packed.finish()?;
                refused
            } else {
                download(address, &key, &path, &mut file)?
            };
            file.flush()?;
            refused
        };
        match refused {
            None => Ok(ExitCode::SUCCESS),
            Some(answer) => {
                if self.file.as_os_str() != "-" {
                    std::fs::remove_file(&self.file)?;
                }
                Err(refusal(&answer))
            }
        }
    }
}

fn refusal(answer: &HttpResponse) -> anyhow::Error {
    match serde_json::from_slice::<Problem>(&answer.body) {
        Ok(problem) => anyhow::anyhow!("{} ({})", problem.detail, problem.code),
        Err(_) => anyhow::anyhow!("the server answered {}", answer.status),
    }
}
