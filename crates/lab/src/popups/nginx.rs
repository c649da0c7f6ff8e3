//! The baseline: nginx with one worker that answers every request with a fixed JSON text, pinned to the same core and loaded
//! by the same client.

use super::{
    catalogue::{Catalogue, ConfiguredPopup},
    load_loop::{Connections, LoadModel},
    measurement::PopupLoad,
    mix::{HomePageMix, MixConfig, MixPhase},
    user_profiles::UserProfiles,
};
use crate::{LabError, client_engine::http::ConnectionUse, managed_process::ManagedProcess, process};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Command, Stdio},
    time::Duration,
};

const READY_WITHIN: Duration = Duration::from_secs(10);
/// As long as a decision with a small popup.
const ANSWER_BYTES: usize = 300;
const WARM_UP: Duration = Duration::from_secs(1);
const DURATION_MAX: Duration = Duration::from_secs(10);

/// Who loads nginx, and where it runs.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NginxLoad {
    pub(crate) users: u32,
    pub(crate) gap_s: u64,
    pub(crate) connections: usize,
    pub(crate) connection_use: ConnectionUse,
    pub(crate) duration: Duration,
    pub(crate) patience: Duration,
    pub(crate) server_core: usize,
    pub(crate) client_core: usize,
}

impl NginxLoad {
    /// Measures nginx on the server's core with the same requests and the same client.
    pub(crate) fn measure(&self) -> Result<PopupLoad, LabError> {
        let NginxLoad { users, gap_s, connections, connection_use, duration, patience, server_core, client_core } =
            *self;
        let nginx = Nginx::start(server_core)?;
        let catalogue = Catalogue { popups: vec![ConfiguredPopup::placeholder()] };
        // As long as the key of a server that the bench starts.
        let api_key = &"k".repeat(64);
        let setting = MixConfig { api_key, users, gap_s, connections, tag: "0".into(), connection_use };
        let mut mix = HomePageMix::new(catalogue, UserProfiles::new("u0000-"), setting, MixPhase::StatusOnly);
        let mut connections = Connections::open(nginx.address, connections, patience, connection_use)?;
        let pid = nginx.process.pid().into();
        let mut run =
            |time| PopupLoad::run("nginx", &mut connections, &pid, client_core, &mut mix, LoadModel::ClosedLoop(time));
        run(WARM_UP)?;
        let measured = run(DURATION_MAX.min(duration))?;
        if mix.answer_counts.is_clean() {
            Ok(measured)
        } else {
            Err(LabError::Usage(format!("nginx did not answer as it should: {:?}", mix.answer_counts.problems)))
        }
    }
}

struct Nginx {
    /// Before the folder of its configuration and log, which goes when it has ended.
    process: ManagedProcess,
    _folder: tempfile::TempDir,
    address: SocketAddr,
}

impl Nginx {
    fn start(core: usize) -> Result<Self, LabError> {
        let folder = tempfile::Builder::new().prefix("tidings-bench-nginx-").tempdir()?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, configuration(address))?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-e").arg("stderr").arg("-c").arg(&file).stdin(Stdio::null());
        let mut process = ManagedProcess::new("nginx", folder.path().join("nginx.log"));
        process::run_on_core(core, || process.start(command))?.map_err(|error| match error {
            LabError::Io(error) if error.kind() == std::io::ErrorKind::NotFound => {
                LabError::Usage("--nginx needs nginx: install it (Debian: nginx-light)".into())
            }
            error => error,
        })?;
        process.wait_until(READY_WITHIN, LabError::Usage, || TcpStream::connect(address).is_ok())?;
        Ok(Nginx { process, _folder: folder, address })
    }
}

fn configuration(address: SocketAddr) -> String {
    let answer = format!(r#"{{"text":"{}"}}"#, "x".repeat(ANSWER_BYTES - r#"{"text":""}"#.len()));
    format!(
        "daemon off; master_process off; worker_processes 1; pid nginx.pid;\n\
         events {{ worker_connections 4096; }}\n\
         http {{\n\
         access_log off; client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path fastcgi;\n\
         uwsgi_temp_path uwsgi; scgi_temp_path scgi;\n\
         keepalive_requests 1000000000; keepalive_timeout 600s;\n\
         server {{ listen {address}; location / {{ default_type application/json; return 200 '{answer}'; }} }}\n\
         }}\n"
    )
}
