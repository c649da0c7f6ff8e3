//! Interoperability tests of our WebSocket framing and our client: `interop/ws/raw` sends frames to the echo server, and
//! `interop/ws/our-clients` serves the probe with another implementation of WebSocket. Our client against our server
//! would prove nothing about either.

use clap::Args;
use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    process::ExitCode,
    time::Duration,
};
use tidings_client::{ClientError, session::Session};
use tidings_protocol::{
    frames::ServerFrame,
    ws::{Assembly, Control, Data, FrameError, OpCode, Received, derive_accept_key, put_server_frame, take_frame},
};

/// The server that the client under test connects to.
#[derive(Debug, Clone, Args)]
pub struct WsProbeArgs {
    /// A server that says each text that it is sent as the `conversation` of a `typing` frame
    #[arg(long)]
    pub address: std::net::SocketAddr,
}

/// The longest message that the echo server accepts: the longest of the Autobahn suite.
const MESSAGE_BYTES_MAX: usize = 16 * 1024 * 1024;
/// The longest wait for an answer; the machine may be busy.
const PATIENCE: Duration = Duration::from_secs(120);

/// The hidden `bench ws-echo` command: prints its address, and echoes each message until its standard input ends.
pub(crate) fn echo() -> ExitCode {
    let serve = || -> io::Result<()> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        println!("{}", listener.local_addr()?);
        io::stdout().flush()?;
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                std::thread::spawn(move || echo_connection(stream));
            }
        });
        io::copy(&mut io::stdin(), &mut io::sink()).map(drop)
    };
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("ws-echo: {error}");
            ExitCode::FAILURE
        }
    }
}

fn echo_connection(mut stream: TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = Vec::new();
    let key = loop {
        if let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&buffer[..end]).into_owned();
            buffer.drain(..end + 4);
            let key = head.lines().find_map(|line| line.strip_prefix("Sec-WebSocket-Key: "));
            break key.unwrap_or_default().trim().to_owned();
        }
        read_more(&mut stream, &mut buffer)?;
    };
    let accept = derive_accept_key(key.as_bytes());
    write!(
        stream,
        "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Accept: \
         {accept}\r\n\r\n"
    )?;
    let mut assembly = Assembly::default();
    let close = loop {
        let frame = match take_frame(&mut buffer, true, MESSAGE_BYTES_MAX) {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                read_more(&mut stream, &mut buffer)?;
                continue;
            }
            Err(error) => break Err(error),
        };
        let end = frame.payload.end;
        let payload = buffer[frame.payload.clone()].to_vec();
        buffer.drain(..end);
        let mut out = Vec::new();
        match assembly.take(&frame, &payload, MESSAGE_BYTES_MAX) {
            Ok(Received::Part | Received::Pong) => {}
            Ok(Received::Text(text)) => put_server_frame(&mut out, OpCode::Data(Data::Text), text.as_bytes()),
            Ok(Received::Binary(bytes)) => put_server_frame(&mut out, OpCode::Data(Data::Binary), &bytes),
            Ok(Received::Ping) => put_server_frame(&mut out, OpCode::Control(Control::Pong), &payload),
            Ok(Received::Close(code)) => break Ok(code),
            Err(error) => break Err(error),
        }
        stream.write_all(&out)?;
    };
    let code = close.map_err(FrameError::close_code).unwrap_or_else(Some);
    let mut out = Vec::new();
    let payload = code.map(u16::to_be_bytes);
    put_server_frame(&mut out, OpCode::Control(Control::Close), payload.as_ref().map_or(&[][..], |code| code));
    stream.write_all(&out)?;
    stream.shutdown(std::net::Shutdown::Write)?;
    io::copy(&mut stream, &mut io::sink()).map(drop)
}

fn read_more(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> io::Result<()> {
    let mut part = [0; 64 * 1024];
    match stream.read(&mut part)? {
        0 => Err(io::ErrorKind::UnexpectedEof.into()),
        count => {
            buffer.extend_from_slice(&part[..count]);
            Ok(())
        }
    }
}

/// The hidden `bench ws-probe` command: sends texts of every interesting length and checks that each is echoed.
pub(crate) fn probe(args: &WsProbeArgs) -> ExitCode {
    match probe_lengths(args) {
        Ok(count) => {
            println!("{count}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ws-probe: {error}");
            ExitCode::FAILURE
        }
    }
}

fn probe_lengths(args: &WsProbeArgs) -> Result<usize, ClientError> {
    let mut session = Session::connect(args.address)?;
    let lengths = (0..=300).chain(65_500..=65_600).chain([131_072, 1_000_000]);
    let mut count = 0;
    for length in lengths {
        let text: String = (0..length).map(|_| char::from(rand::random_range(b'a'..=b'z'))).collect();
        session.write_text(text.as_bytes())?;
        match session.next(PATIENCE)? {
            Some(ServerFrame::Typing { conversation, .. }) if conversation == text => count += 1,
            other => return Err(ClientError::Protocol(format!("{length} bytes were answered with {other:?}"))),
        }
    }
    Ok(count)
}
