//! A way to a PostgreSQL server that can be cut, as a network is: nobody is told.

use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

const SOCKET: &str = ".s.PGSQL.5432";

/// A proxy between a socket of its own and the database's. While it is cut, bytes wait in it.
pub(crate) struct CuttableLink {
    folder: tempfile::TempDir,
    cut: Arc<AtomicBool>,
}

impl CuttableLink {
    /// A link to the server whose socket is in `server`, with the name of port 5432.
    pub(crate) fn to(server: &Path) -> CuttableLink {
        let (folder, cut) = (tempfile::tempdir().unwrap(), Arc::new(AtomicBool::new(false)));
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let (socket, is_cut) = (server.join(SOCKET), cut.clone());
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let Ok(server) = UnixStream::connect(&socket) else { continue };
                for (mut from, mut to) in [(client.try_clone().unwrap(), server.try_clone().unwrap()), (server, client)]
                {
                    let is_cut = is_cut.clone();
                    std::thread::spawn(move || {
                        let mut bytes = [0; 16 * 1024];
                        while let Ok(count @ 1..) = from.read(&mut bytes) {
                            while is_cut.load(Ordering::Acquire) {
                                std::thread::park_timeout(Duration::from_millis(5));
                            }
                            if to.write_all(&bytes[..count]).is_err() {
                                break;
                            }
                        }
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        CuttableLink { folder, cut }
    }

    /// The url of a database through this link.
    pub(crate) fn url(&self, direct: &str) -> String {
        let database = direct.rsplit('/').next().unwrap();
        format!("postgres://postgres@{}/{database}", self.folder.path().display().to_string().replace('/', "%2F"))
    }

    pub(crate) fn cut(&self, is_cut: bool) {
        self.cut.store(is_cut, Ordering::Release);
    }
}
