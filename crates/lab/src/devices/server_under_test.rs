//! The server under test in benches with devices: one process, or a core with gateways that hold its connections.

use super::args::{DeviceArgs, Gateways};
use super::worker_protocol::DeviceProtocol;
use crate::{
    LabError, process,
    server::{OwnServer, StoreCheck, Target, random_key},
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tidings_client::http::HttpClient;

/// The most devices per process: below the 20,000 files that a process may commonly open, with some to spare.
pub(crate) const DEVICES_PER_PROCESS: usize = 18_000;
/// The longest wait for a gateway's readiness; a gateway opens no store.
const READY_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const STOP_TIMEOUT: Duration = Duration::from_secs(60);

/// A running server, with its gateways if it has any.
pub(crate) struct ServerUnderTest {
    pub(crate) target: Target,
    pub(crate) gateways: Vec<Gateway>,
    /// The addresses that devices connect to.
    pub(crate) listeners: Vec<SocketAddr>,
    /// The server's certificate in PEM, with TLS.
    pub(crate) certificate: Option<String>,
    folder: tempfile::TempDir,
}

/// A gateway process.
#[derive(Debug)]
pub(crate) struct Gateway {
    folder: PathBuf,
    child: Option<Child>,
}

impl ServerUnderTest {
    /// The server that the options name, or one that is started.
    pub(crate) fn resolve(args: &DeviceArgs) -> Result<Self, LabError> {
        let folder = tempfile::Builder::new().prefix("tidings-bench-").tempdir()?;
        if args.target.url.is_some() {
            let target = Target::resolve(&args.target)?;
            let listeners =
                if args.via == DeviceProtocol::Ws { vec![target.address()] } else { args.listeners.clone() };
            if listeners.is_empty() {
                return Err(LabError::Usage(
                    "--url also needs --listeners, the addresses that devices connect to".into(),
                ));
            }
            let certificate = args.certificate.as_ref().map(std::fs::read_to_string).transpose()?;
            return Ok(ServerUnderTest { target, gateways: Vec::new(), listeners, certificate, folder });
        }
        let tls = (args.via == DeviceProtocol::Miops).then(|| Certificate::make(&folder)).transpose()?;
        let count = match args.gateways {
            Gateways::Count(count) => count,
            Gateways::Auto if args.devices <= DEVICES_PER_PROCESS => 0,
            Gateways::Auto => args.devices.div_ceil(DEVICES_PER_PROCESS),
        };
        if count > 0 && args.via == DeviceProtocol::Ws {
            return Err(LabError::Usage(
                "gateways hold devices, not WebSockets: --gateways 0, or another --via".into(),
            ));
        }
        let mut environment = vec![("TIDINGS_LINK_SECRET".to_owned(), random_key())];
        if let Some(tls) = &tls {
            environment.extend(tls.environment());
        }
        let listener = |address: SocketAddr| {
            let name = if tls.is_some() { "TIDINGS_MIOP_TLS_LISTEN" } else { "TIDINGS_MIOP_LISTEN" };
            (name.to_owned(), address.to_string())
        };
        let mut core = environment.clone();
        if count == 0 {
            core.push(listener(any_port(Ipv4Addr::LOCALHOST)));
        } else {
            core.push(("TIDINGS_LINK_LISTEN".to_owned(), any_port(Ipv4Addr::LOCALHOST).to_string()));
        }
        core.extend(args.server_settings());
        let own = OwnServer::start_with(core, args.server_descriptors)?;
        let mut gateways = Vec::new();
        if count > 0 {
            let link =
                own.listen_address("link").ok_or_else(|| LabError::Server("has written no link address".into()))?;
            environment.push(("TIDINGS_LINK_TO".to_owned(), link.to_string()));
            environment.extend(args.server_settings());
        }
        for number in 0..count {
            // Each gateway has its own address: between two addresses there are ports for some 28,000 connections.
            let address = Ipv4Addr::new(127, 0, (number / 250) as u8, (number % 250 + 2) as u8);
            let mut environment = environment.clone();
            environment.push(listener(any_port(address)));
            if tls.is_some() {
                environment.push(("TIDINGS_MIOP_LISTEN".to_owned(), any_port(address).to_string()));
            }
            gateways.push(Gateway::start(folder.path().join(format!("gateway-{number}")), environment)?);
        }
        let name = listen_name(args.via);
        let listeners = if count == 0 {
            vec![own.listen_address(name).ok_or_else(|| LabError::Server(format!("has written no {name} address")))?]
        } else {
            gateways.iter_mut().map(|gateway| gateway.listener(name)).collect::<Result<_, _>>()?
        };
        let certificate = tls.map(|tls| tls.pem);
        Ok(ServerUnderTest { target: Target::Own(Box::new(own)), gateways, listeners, certificate, folder })
    }

    /// Stops a server that the bench started, and starts it again on its folder; only without gateways.
    pub(crate) fn restart(&mut self, via: DeviceProtocol) -> Result<(), LabError> {
        let Target::Own(own) = &mut self.target else {
            return Err(LabError::Usage("only a server of the bench's own can be started anew".into()));
        };
        if !self.gateways.is_empty() {
            return Err(LabError::Usage("--known needs --gateways 0".into()));
        }
        own.stop()?;
        own.launch()?;
        let name = listen_name(via);
        self.listeners =
            vec![own.listen_address(name).ok_or_else(|| LabError::Server(format!("has written no {name} address")))?];
        Ok(())
    }

    pub(crate) fn http(&self) -> HttpClient {
        self.target.http()
    }

    /// The processes of a server that the bench started, with their names.
    pub(crate) fn processes(&self) -> Vec<(String, u32)> {
        let core = self.target.pid().map(|pid| ("core".to_owned(), pid));
        let gateways = self.gateways.iter().enumerate();
        let gateways = gateways.filter_map(|(number, gateway)| Some((format!("gateway {number}"), gateway.pid()?)));
        core.into_iter().chain(gateways).collect()
    }

    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.processes().iter().map(|(_, pid)| process::cpu_seconds(*pid)).sum()
    }

    pub(crate) fn is_own(&self) -> bool {
        self.target.pid().is_some()
    }

    /// Whether the server is ready and all its gateways run, except those that the bench killed.
    pub(crate) fn is_alive(&mut self) -> bool {
        self.http().is_ready() && self.gateways.iter_mut().all(Gateway::is_running)
    }

    /// Stops the gateways, then the core, and checks the core's folder.
    pub(crate) fn finish(mut self) -> Result<Option<StoreCheck>, LabError> {
        for gateway in &mut self.gateways {
            gateway.stop()?;
        }
        let check = self.target.finish()?;
        self.folder.close()?;
        Ok(check)
    }
}

/// The name of a protocol's listener in the server's `listening` file.
fn listen_name(via: DeviceProtocol) -> &'static str {
    match via {
        DeviceProtocol::Miop => "miop",
        DeviceProtocol::Miops => "miop_tls",
        DeviceProtocol::Ws => "http",
    }
}

fn any_port(address: Ipv4Addr) -> SocketAddr {
    SocketAddr::from((address, 0))
}

impl Gateway {
    fn start(folder: PathBuf, environment: Vec<(String, String)>) -> Result<Self, LabError> {
        std::fs::create_dir_all(&folder)?;
        let log = std::fs::File::create(folder.join("gateway.log"))?;
        let child = Command::new(std::env::current_exe()?)
            .args(["serve", "--role", "gateway"])
            .env("TIDINGS_DATA_DIR", &folder)
            .envs(environment)
            .current_dir(&folder)
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()?;
        Ok(Gateway { folder, child: Some(child) })
    }

    /// Waits until the gateway has written the address that devices connect to.
    fn listener(&mut self, name: &str) -> Result<SocketAddr, LabError> {
        let started = Instant::now();
        loop {
            if let Some(address) = crate::server::read_listen_address(&self.folder.join("listening"), name) {
                return Ok(address);
            }
            let log = || std::fs::read_to_string(self.folder.join("gateway.log")).unwrap_or_default();
            if let Some(child) = &mut self.child
                && let Some(status) = child.try_wait()?
            {
                return Err(LabError::Server(format!("gateway ended with {status}: {}", log())));
            }
            if started.elapsed() > READY_TIMEOUT {
                return Err(LabError::Server(format!("gateway was not ready in time: {}", log())));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    pub(crate) fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    fn is_running(&mut self) -> bool {
        self.child.as_mut().is_none_or(|child| matches!(child.try_wait(), Ok(None)))
    }

    /// Kills the process (`kill -9`), and waits for its end.
    pub(crate) fn kill(&mut self) -> Result<(), LabError> {
        if let Some(mut child) = self.child.take() {
            child.kill()?;
            child.wait()?;
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<(), LabError> {
        let Some(child) = &mut self.child else { return Ok(()) };
        process::terminate(child.id());
        let asked = Instant::now();
        while child.try_wait()?.is_none() {
            if asked.elapsed() > STOP_TIMEOUT {
                return Err(LabError::Server("gateway did not end after SIGTERM".into()));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        self.child = None;
        Ok(())
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        // The process still runs only when the bench failed.
        let _ = self.kill();
    }
}

/// A self-signed certificate for `localhost`.
struct Certificate {
    pem: String,
    certificate_file: PathBuf,
    key_file: PathBuf,
}

impl Certificate {
    fn make(folder: &tempfile::TempDir) -> Result<Self, LabError> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
            .map_err(|error| LabError::Usage(format!("no certificate: {error}")))?;
        let (certificate_file, key_file) = (folder.path().join("certificate.pem"), folder.path().join("key.pem"));
        let pem = made.cert.pem();
        std::fs::write(&certificate_file, &pem)?;
        std::fs::write(&key_file, made.signing_key.serialize_pem())?;
        Ok(Certificate { pem, certificate_file, key_file })
    }

    fn environment(&self) -> [(String, String); 2] {
        let path = |file: &PathBuf| file.display().to_string();
        [
            ("TIDINGS_TLS_CERTIFICATE_FILE".to_owned(), path(&self.certificate_file)),
            ("TIDINGS_TLS_KEY_FILE".to_owned(), path(&self.key_file)),
        ]
    }
}
