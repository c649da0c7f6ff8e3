//! At the limit of file descriptors new connections are refused, and open ones keep working.

use crate::support::*;
use std::{
    io::{ErrorKind, Read, Write},
    net::{SocketAddr, TcpStream},
    process::Command,
    thread,
    time::{Duration, Instant},
};
use tidings_client::{http::HttpClient, token::sign};
use tidings_protocol::{
    http::UserUpsert,
    miop::{Bind, Frame, VERSION, decode, take_head},
};

/// How long anything that must happen may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

/// Starts a server with a limit of 300 file descriptors, of which it uses the same number for itself on any machine.
fn serve(folder: &Folder, arguments: &str) -> Server {
    let program = folder.program(&[]);
    let mut limited = Command::new("sh");
    let line =
        format!("ulimit -n 300; exec {} serve --engine-shards 2 {arguments}", program.get_program().to_str().unwrap());
    limited.args(["-c", &line]).env_clear().env("PATH", "/usr/bin:/bin").current_dir(folder.path());
    limited.envs(program.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Server::start(limited.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY))
}

/// A connection on which a request with a credential was answered; `None` if the connection was refused.
fn asks(address: SocketAddr) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // A malformed request: its response needs nothing from the store, which may be short of descriptors, too.
    let head = format!("POST /v1/messages HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {API_KEY}\r\n");
    stream.write_all(format!("{head}content-length: 1\r\n\r\n{{").as_bytes()).unwrap();
    let mut answer = [0; 12];
    // Was the connection closed before the refusal could be written?
    stream.read_exact(&mut answer).ok()?;
    if &answer[9..] == b"400" {
        return Some(stream);
    }
    assert_eq!(&answer, b"HTTP/1.1 503");
    None
}

/// A connection with an accepted credential, which is not closed for others.
fn known(server: &Server) -> HttpClient {
    let mut open = server.http();
    assert_eq!(open.exchange("GET", "/v1/users/nobody", b"").unwrap().status, 404);
    open
}

#[test]
fn open_connections_keep_working_at_the_descriptor_limit() {
    let folder = Folder::new();
    let server = serve(&folder, "");
    let mut open = known(&server);
    let crowd: Vec<TcpStream> = (0..60).map_while(|_| asks(server.address)).collect();
    assert!(crowd.len() < 60, "the limit was not reached");
    assert_eq!(open.exchange("GET", "/healthz", b"").unwrap().status, 200);
    drop(crowd);
    assert_eq!(open.exchange("GET", "/readyz", b"").unwrap().status, 200);
}

/// Creates as many users as there could be devices.
fn populate(server: &Server) {
    let user = |n: usize| UserUpsert { id: format!("u{n}"), ..UserUpsert::default() };
    server.http().upsert_users((0..300).map(user).collect()).unwrap();
}

/// Connects and binds a device; `None` if the server refused it.
fn device(address: SocketAddr, user: usize) -> Option<TcpStream> {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let token = sign(TOKEN_KEY, &format!("u{user}"), Duration::from_secs(600));
    let bind = Bind { version: VERSION, token: &token, device_id: "d1", ..Bind::default() };
    // The server may refuse the device before it has sent its bind.
    let _ = stream.write_all(&Frame::Bind(bind).to_bytes());
    let mut buffer = Vec::new();
    loop {
        if let Some(head) = take_head(&buffer, 1 << 20).unwrap() {
            return match decode(head.kind, &buffer[head.payload]).unwrap() {
                Frame::Bound(_) => Some(stream),
                Frame::Error(error) => {
                    assert_eq!((error.code, error.fatal), ("queue_full", true));
                    assert!(error.retry_after_ms.is_some());
                    None
                }
                frame => panic!("{frame:?}"),
            };
        }
        let mut part = [0; 256];
        match stream.read(&mut part) {
            // Closed before the refusal could be written.
            Ok(0) => return None,
            Ok(count) => buffer.extend_from_slice(&part[..count]),
            Err(error) if error.kind() == ErrorKind::ConnectionReset => return None,
            Err(error) => panic!("{error}"),
        }
    }
}

fn is_alive(device: &mut TcpStream) {
    device.write_all(&Frame::Heartbeat { interval_s: None }.to_bytes()).unwrap();
    let mut answer = [0; 2];
    device.read_exact(&mut answer).unwrap();
    assert_eq!(answer, Frame::Heartbeat { interval_s: None }.to_bytes()[..]);
}

fn refusals(open: &mut HttpClient) -> u64 {
    let metrics = text(&open.exchange("GET", "/metrics", b"").unwrap().body);
    let line = metrics.lines().find_map(|line| line.strip_prefix("tidings_descriptor_refusals_total "));
    line.unwrap().parse().unwrap()
}

#[test]
fn devices_are_refused_before_http_at_the_descriptor_limit() {
    let folder = Folder::new();
    let server = serve(&folder, "--admission-descriptors-reserved 220 --http-connections-max 8");
    populate(&server);
    let address = server.listener(&folder, "miop");
    let mut let_in: Vec<TcpStream> = (0..100).map_while(|user| device(address, user)).collect();
    assert!(let_in.len() > 3 && let_in.len() < 100, "{} were let in", let_in.len());
    assert!(device(address, 200).is_none());
    assert!(refusals(&mut server.http()) > 0);
    let_in.iter_mut().for_each(is_alive);

    // When one device leaves, another can connect.
    drop(let_in.pop());
    let mut attempts = std::iter::repeat_with(|| device(address, 200));
    is_alive(&mut attempts.find_map(|let_in| let_in).unwrap());
}

#[test]
fn connections_are_refused_cleanly_without_a_descriptor_reserve() {
    let folder = Folder::new();
    let server = serve(&folder, "--admission-descriptors-reserved 0 --http-connections-per-address-max 75");
    populate(&server);
    let address = server.listener(&folder, "miop");
    let mut open = known(&server);
    assert_eq!(refusals(&mut open), 0);
    let mut devices: Vec<TcpStream> = (0..224).map(|user| device(address, user).unwrap()).collect();
    // HTTP connections take the rest of the descriptors, until one is refused.
    let crowd: Vec<TcpStream> = (0..75).map_while(|_| asks(server.address)).collect();
    assert!(crowd.len() < 74, "the limit was not reached");
    // The store may have closed a file meanwhile, which lets one more connection in.
    devices.extend((224..240).map_while(|user| device(address, user)));
    assert!(devices.len() < 240);
    assert!(refusals(&mut open) > 0);
    devices.iter_mut().for_each(is_alive);
    drop(crowd);
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn unauthenticated_connections_give_their_descriptors_back() {
    let folder = Folder::new();
    let server = serve(&folder, "");
    let mut open = known(&server);
    let strangers: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(server.address).unwrap()).collect();
    // Unauthenticated connections can be closed once they have been idle for a second; until then new ones get 503.
    for path in ["/healthz", "/readyz"] {
        until(path, || server.http().exchange("GET", path, b"").is_ok_and(|answer| answer.status == 200));
    }
    until("a caller is not let in", || asks(server.address).is_some());
    assert_eq!(open.exchange("GET", "/v1/users/nobody", b"").unwrap().status, 404);
    drop(strangers);
}
