//! The memory of a peak goes back to the system when the peak is over.
// Slow: left out by `make test-quick`.

use crate::support::*;
use std::{
    io::Write,
    net::TcpStream,
    thread,
    time::{Duration, Instant},
};

const MIB: usize = 1 << 20;
/// How long anything that must happen may take on a slow machine.
const PATIENCE: Duration = Duration::from_secs(300);

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !holds() {
        assert!(Instant::now() < end, "{what}");
        thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn memory_of_unfinished_bodies_is_bounded_and_returned() {
    let folder = Folder::new();
    let server = folder.serve();
    let before = server.resident_bytes();
    let head = format!(
        "POST /v1/messages/batch HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {API_KEY}\r\nContent-Length: {}\r\n\r\n",
        8 * MIB
    );
    let unfinished: Vec<TcpStream> = (0..60)
        .map(|_| {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(&vec![b' '; 7 * MIB]).unwrap();
            stream
        })
        .collect();
    until("the bodies were not read", || server.resident_bytes() > before + 100 * MIB);
    // 420 MiB are sent; bodies may hold 192 MiB, and the connections' buffers some more.
    assert!(server.resident_bytes() < before + 320 * MIB, "{} MiB", (server.resident_bytes() - before) / MIB);
    drop(unfinished);
    until("the memory was kept", || server.resident_bytes() < before + 60 * MIB);
    assert_eq!(server.http().exchange("GET", "/readyz", b"").unwrap().status, 200);
}
