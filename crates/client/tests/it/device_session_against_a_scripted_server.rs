//! The device's side of MIOP, against a server that says exactly what a case needs.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    thread::JoinHandle,
    time::Duration,
};
use tidings_client::{
    ClientError,
    device::{DeviceFrame, DeviceSession},
};
use tidings_protocol::{
    frames::{ClientFrame, ServerFrame},
    miop::{Bind, Bound, ErrorFrame, Frame, HEARTBEAT, Push, decode, take_head},
};

const PATIENCE: Duration = Duration::from_secs(300);
const BIND: Bind<'_> = Bind {
    version: 1,
    token: "a.b.c",
    device_id: "d1",
    device_kind: None,
    app_version: None,
    cursor: None,
    wants: None,
    heartbeat_s: None,
};

/// The other end of one connection.
struct Peer {
    socket: TcpStream,
    buffer: Vec<u8>,
}

impl Peer {
    /// The next frame, if the other side has not closed.
    fn next<T>(&mut self, look: impl FnOnce(Frame) -> T) -> Option<T> {
        loop {
            if let Some(head) = take_head(&self.buffer, 1 << 20).unwrap() {
                let seen = look(decode(head.kind, &self.buffer[head.payload.clone()]).unwrap());
                self.buffer.drain(..head.payload.end);
                return Some(seen);
            }
            let mut part = [0; 1024];
            match self.socket.read(&mut part).unwrap() {
                0 => return None,
                count => self.buffer.extend_from_slice(&part[..count]),
            }
        }
    }

    fn write(&mut self, frame: &Frame) {
        self.socket.write_all(&frame.to_bytes()).unwrap();
    }

    fn take_bind(&mut self) {
        self.next(|frame| assert_eq!(frame, Frame::Bind(BIND))).unwrap();
        self.write(&bound());
    }
}

fn bound() -> Frame<'static> {
    Frame::Bound(Bound {
        version: 1,
        session: "s",
        user: "ada",
        heartbeat_s: 30,
        frame_bytes_max: 196_608,
        cursor: Some("1.0.0.0"),
        resume: Some(br#"{"complete":true}"#),
        pushes: None,
    })
}

/// A server of one connection that follows the script.
fn serve(script: impl FnOnce(&mut Peer) + Send + 'static) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let thread = std::thread::spawn(move || {
        let (socket, _) = listener.accept().unwrap();
        socket.set_nodelay(true).unwrap();
        script(&mut Peer { socket, buffer: Vec::new() });
    });
    (address, thread)
}

#[test]
fn a_session_binds_and_reads_frames_sent_byte_by_byte() {
    let (address, server) = serve(|peer| {
        peer.next(|frame| assert_eq!(frame, Frame::Bind(BIND))).unwrap();
        let push = Push {
            push: 7,
            expires_at: 5,
            content_type: "text",
            body: b"\"hi\"",
            priority: 1,
            collapse_key: Some("k"),
        };
        let chat = br#"{"t":"messages","cursor":"1.0.9.0","entries":[]}"#;
        let mut bytes = bound().to_bytes();
        // What this client does not know and may skip.
        bytes.extend([0x90, 2, 1, 0]);
        bytes.extend(Frame::Push(push).to_bytes());
        bytes.extend(Frame::Chat { json: chat }.to_bytes());
        for byte in bytes {
            peer.socket.write_all(&[byte]).unwrap();
        }
        peer.next(|frame| assert_eq!(frame, Frame::Ack { pushes: vec![7] })).unwrap();
        let is_ping = |frame: Frame| matches!(frame, Frame::Chat { json } if json == br#"{"t":"ping","ref":3}"#);
        assert!(peer.next(is_ping).unwrap());
        peer.next(|frame| assert_eq!(frame, Frame::Unbind { reason: Some("done") })).unwrap();
    });
    let mut session = DeviceSession::open(address, &BIND).unwrap();
    let bound = session.bound.clone().unwrap();
    assert_eq!((&*bound.user, bound.heartbeat_s, bound.resume.unwrap().complete), ("ada", 30, true));
    assert_eq!(session.cursor.as_deref(), Some("1.0.0.0"));

    let Some(DeviceFrame::Push(push)) = session.next(PATIENCE).unwrap() else { panic!("no push") };
    assert_eq!(
        (push.push, push.priority, &*push.body, push.collapse_key.as_deref()),
        (7, 1, &b"\"hi\""[..], Some("k"))
    );
    let chat = session.next(PATIENCE).unwrap();
    assert!(matches!(chat, Some(DeviceFrame::Chat(ServerFrame::Messages { .. }))), "{chat:?}");
    assert_eq!(session.cursor.as_deref(), Some("1.0.9.0"), "for the next bind");

    session.acknowledge(&[7]).unwrap();
    session.write_chat(&ClientFrame::Ping { reference: Some(3) }).unwrap();
    session.unbind(Some("done")).unwrap();
    server.join().unwrap();
}

#[test]
fn heartbeats_carry_the_granted_interval() {
    let (address, server) = serve(|peer| {
        peer.take_bind();
        peer.next(|frame| assert_eq!(frame, Frame::Heartbeat { interval_s: None })).unwrap();
        peer.socket.write_all(&HEARTBEAT).unwrap();
        peer.next(|frame| assert_eq!(frame, Frame::Heartbeat { interval_s: Some(9_999) })).unwrap();
        peer.write(&Frame::Heartbeat { interval_s: Some(1_800) });
    });
    let mut session = DeviceSession::open(address, &BIND).unwrap();
    session.heartbeat().unwrap();
    assert!(matches!(session.next(PATIENCE).unwrap(), Some(DeviceFrame::Heartbeat { interval_s: None })));
    assert_eq!(session.heartbeat_s, 30);
    session.propose_heartbeat(9_999).unwrap();
    assert!(matches!(session.next(PATIENCE).unwrap(), Some(DeviceFrame::Heartbeat { interval_s: Some(1_800) })));
    assert_eq!(session.heartbeat_s, 1_800);
    server.join().unwrap();
}

#[test]
fn a_fatal_error_frame_ends_the_session_with_its_code() {
    let error = |fatal| {
        let (code, message) = if fatal { ("draining", "back soon") } else { ("forbidden", "no chat") };
        Frame::Error(ErrorFrame { code, message, retry: fatal, retry_after_ms: fatal.then_some(70), fatal })
    };
    let (address, server) = serve(move |peer| {
        peer.take_bind();
        peer.write(&error(false));
        peer.write(&Frame::Redirect { address: Some("[::1]:8081"), after_ms: 50 });
        peer.write(&error(true));
    });
    let mut session = DeviceSession::open(address, &BIND).unwrap();
    let refused = session.next(PATIENCE).unwrap();
    assert!(matches!(&refused, Some(DeviceFrame::Error { code, .. }) if code == "forbidden"), "{refused:?}");
    let redirect = session.next(PATIENCE).unwrap();
    assert!(matches!(redirect, Some(DeviceFrame::Redirect { address: Some(_), after_ms: 50 })), "{redirect:?}");
    match session.next(PATIENCE) {
        Err(ClientError::Ended { code, retry_after_ms, .. }) => {
            assert_eq!((&*code, retry_after_ms), ("draining", Some(70)));
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(session.next(PATIENCE), Err(ClientError::Io(_))), "then the end");
    server.join().unwrap();
}

#[test]
fn invalid_bytes_are_a_protocol_error_at_once() {
    for bytes in [&b"HTTP/1.1 400 Bad Request\r\n"[..], &[0x04, 0xff, 0xff, 0xff, 0x7f], &[0x05, 3, 1, 1, 1]] {
        let (address, server) = serve(move |peer| {
            peer.take_bind();
            peer.socket.write_all(bytes).unwrap();
            assert!(peer.next(|_| ()).is_none(), "it closes");
        });
        let mut session = DeviceSession::open(address, &BIND).unwrap();
        assert!(matches!(session.next(PATIENCE), Err(ClientError::Protocol(_))), "{bytes:?}");
        drop(session);
        server.join().unwrap();
    }
}

#[test]
fn a_read_timeout_is_not_an_error() {
    let (address, server) = serve(|peer| {
        peer.take_bind();
        assert!(peer.next(|_| ()).is_none());
    });
    let mut session = DeviceSession::open(address, &BIND).unwrap();
    assert!(session.next(Duration::from_millis(20)).unwrap().is_none());
    assert!(session.next(Duration::ZERO).unwrap().is_none());
    drop(session);
    server.join().unwrap();
}
