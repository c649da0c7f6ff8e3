//! At the limit of file descriptors new connections are turned away; those that are open live on.
#![allow(clippy::unwrap_used)]

mod support;

use std::{
    io::{Read, Write},
    net::TcpStream,
    process::Command,
    time::Duration,
};
use support::*;

#[test]
fn open_connections_live_on() {
    let folder = Folder::new();
    let program = folder.program(&["serve", "--dev"]);
    let mut limited = Command::new("sh");
    let line = format!("ulimit -n 300; exec {} serve --dev", program.get_program().to_str().unwrap());
    limited.args(["-c", &line]).env_clear().env("PATH", "/usr/bin:/bin").current_dir(folder.path());
    limited.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let server = Server::start(&mut limited);

    let mut open = server.http();
    assert_eq!(open.exchange("GET", "/healthz", b"").unwrap().status, 200);
    let mut turned_away = 0;
    let crowd: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            stream.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
            let mut answer = [0; 12];
            match stream.read_exact(&mut answer) {
                Ok(()) if &answer[9..] == b"200" => {}
                Ok(()) => {
                    assert_eq!(&answer, b"HTTP/1.1 503");
                    turned_away += 1;
                }
                // Closed before it could be told.
                Err(_) => turned_away += 1,
            }
            stream
        })
        .collect();
    assert!(turned_away > 0, "the limit was not reached");
    assert_eq!(open.exchange("GET", "/healthz", b"").unwrap().status, 200);
    drop(crowd);
    assert_eq!(open.exchange("GET", "/readyz", b"").unwrap().status, 200);
}
