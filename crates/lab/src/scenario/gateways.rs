//! Gateways of a server of the lab's own: processes that hold the connections of its devices. And its certificate, for devices that
//! connect by TLS.

use crate::{
    LabError, interrupt,
    managed_process::{ManagedProcess, READY_TIMEOUT},
    server::read_listen_address,
};
use std::{
    net::{Ipv4Addr, SocketAddr},
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// Where devices connect, as the server's `listening` file and its settings name it.
pub(super) struct DeviceListener {
    pub(super) name: &'static str,
    setting: &'static str,
}

pub(super) const PLAIN: DeviceListener = DeviceListener { name: "miop", setting: "TIDINGS_MIOP_LISTEN" };
pub(super) const TLS: DeviceListener = DeviceListener { name: "miop_tls", setting: "TIDINGS_MIOP_TLS_LISTEN" };

impl DeviceListener {
    /// On a port that is free.
    pub(super) fn at(&self, address: Ipv4Addr) -> (String, String) {
        (self.setting.to_owned(), SocketAddr::from((address, 0)).to_string())
    }
}

/// A process that holds connections.
#[derive(Debug)]
pub(super) struct Gateway {
    folder: PathBuf,
    pub(super) process: ManagedProcess,
}

impl Gateway {
    /// Starts gateway `number` of a core that listens for links.
    pub(super) fn start(
        number: usize,
        folder: &Path,
        listeners: &[&DeviceListener],
        environment: &[(String, String)],
    ) -> Result<Self, LabError> {
        // Each gateway has its own address: between two addresses there are ports for some 28,000 connections.
        let address = Ipv4Addr::new(127, 0, (number / 250) as u8, (number % 250 + 2) as u8);
        let folder = folder.join(format!("gateway-{number}"));
        std::fs::create_dir_all(&folder)?;
        let mut process = ManagedProcess::new(format!("gateway {number}"), folder.join("gateway.log"));
        let mut command = Command::new(std::env::current_exe()?);
        command
            .args(["serve", "--role", "gateway"])
            .env("TIDINGS_DATA_DIR", &folder)
            .envs(listeners.iter().map(|listener| listener.at(address)))
            .envs(environment.iter().cloned())
            .current_dir(&folder)
            .stdin(Stdio::null());
        if interrupt::is_installed() {
            command.process_group(0);
        }
        process.start(command)?;
        Ok(Gateway { folder, process })
    }

    /// Waits until the gateway has written the address that devices connect to.
    pub(super) fn wait_until_ready(&mut self, listener: &DeviceListener) -> Result<(), LabError> {
        let file = self.folder.join("listening");
        self.process
            .wait_until(READY_TIMEOUT, LabError::Environment, || read_listen_address(&file, listener.name).is_some())
    }

    pub(super) fn address(&self, listener: &DeviceListener) -> Option<SocketAddr> {
        read_listen_address(&self.folder.join("listening"), listener.name)
    }
}

/// A self-signed certificate for `localhost`.
pub(super) struct Certificate {
    pub(super) pem: String,
    certificate_file: PathBuf,
    key_file: PathBuf,
}

impl Certificate {
    pub(super) fn make(folder: &Path) -> Result<Self, LabError> {
        let made = rcgen::generate_simple_self_signed(vec!["localhost".to_owned()])
            .map_err(|error| LabError::Usage(format!("no certificate: {error}")))?;
        let (certificate_file, key_file) = (folder.join("certificate.pem"), folder.join("key.pem"));
        let pem = made.cert.pem();
        std::fs::write(&certificate_file, &pem)?;
        std::fs::write(&key_file, made.signing_key.serialize_pem())?;
        Ok(Certificate { pem, certificate_file, key_file })
    }

    pub(super) fn environment(&self) -> [(String, String); 2] {
        let path = |file: &PathBuf| file.display().to_string();
        [
            ("TIDINGS_TLS_CERTIFICATE_FILE".to_owned(), path(&self.certificate_file)),
            ("TIDINGS_TLS_KEY_FILE".to_owned(), path(&self.key_file)),
        ]
    }
}
