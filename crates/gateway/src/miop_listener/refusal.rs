//! Refuses a device for which there is no room.

use mio::net::TcpStream;
use std::{
    io::{Read, Write},
    net::Shutdown,
};
use tidings_listen::jittered_retry_after_ms;
use tidings_protocol::{
    error::ErrorCode,
    miop::{ErrorFrame, Frame},
};

/// Sends the reason and the time to wait, if the socket takes them at once, and closes it. Under TLS nothing can be sent
/// before a handshake, which is too much work for a refused connection.
pub(super) fn turn_away(socket: &mut TcpStream, tls: bool) {
    if !tls {
        let _ = socket.write(&no_room(jittered_retry_after_ms()));
    }
    let _ = socket.shutdown(Shutdown::Write);
    // A socket that is closed with bytes unread resets the connection, and the frame may be lost (RFC 1122, 4.2.2.13).
    let _ = socket.read(&mut [0; 4_096]);
}

fn no_room(retry_after_ms: u64) -> Vec<u8> {
    let frame = Frame::Error(ErrorFrame {
        code: ErrorCode::QueueFull.as_str(),
        message: "the limit of open connections is reached; connect again",
        retry: true,
        retry_after_ms: Some(retry_after_ms),
        fatal: true,
    });
    frame.to_bytes()
}
