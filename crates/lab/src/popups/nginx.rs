//! The baseline: nginx with one worker that answers every request with a fixed JSON text, pinned to the same core and loaded
//! by the same client.

use crate::{LabError, process, server};
use std::{
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

const READY_WITHIN: Duration = Duration::from_secs(10);
/// As long as a decision with a small popup.
const ANSWER_BYTES: usize = 300;

pub(crate) struct Nginx {
    child: Child,
    /// The folder of its configuration and log, kept for as long as it runs.
    _folder: tempfile::TempDir,
    pub(crate) address: SocketAddr,
}

impl Nginx {
    pub(crate) fn start(core: usize) -> Result<Self, LabError> {
        let folder = tempfile::Builder::new().prefix("tidings-bench-nginx-").tempdir()?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, configuration(address))?;
        let log = std::fs::File::create(folder.path().join("nginx.log"))?;
        let mut command = Command::new("nginx");
        command.arg("-p").arg(folder.path()).arg("-e").arg("stderr").arg("-c").arg(&file);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let child = process::run_on_core(core, || command.spawn())?;
        let child = child.map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => {
                LabError::Usage("--nginx needs nginx: install it (Debian: nginx-light)".into())
            }
            _ => error.into(),
        })?;
        let mut nginx = Nginx { child, _folder: folder, address };
        nginx.wait_until_ready()?;
        Ok(nginx)
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn wait_until_ready(&mut self) -> Result<(), LabError> {
        let asked = Instant::now();
        while TcpStream::connect(self.address).is_err() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || asked.elapsed() > READY_WITHIN {
                let log = std::fs::read_to_string(self._folder.path().join("nginx.log")).unwrap_or_default();
                return Err(LabError::Usage(format!("nginx did not start: {log}")));
            }
            std::thread::sleep(server::POLL_INTERVAL);
        }
        Ok(())
    }
}

impl Drop for Nginx {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
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
