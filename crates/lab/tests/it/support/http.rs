//! What the small servers of trials have in common: connections on threads, requests over HTTP, frames over WebSocket.

use std::{
    io::{BufRead, Write},
    net::{SocketAddr, TcpListener, TcpStream},
};
use tidings_protocol::ws::{Data, OpCode, put_server_frame};

/// Serves each connection on a thread of its own until the process ends; returns the address.
pub(crate) fn listen(serve: impl Fn(TcpStream) -> Option<()> + Clone + Send + 'static) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (serve, stream) = (serve.clone(), stream.unwrap());
            std::thread::spawn(move || stream.set_nodelay(true).ok().and_then(|()| serve(stream)));
        }
    });
    address
}

pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    /// Of a server that others wrote.
    pub(crate) api_key: String,
    pub(crate) body: Vec<u8>,
}

/// The next request; none when the client has closed its connection.
pub(crate) fn read_request(reader: &mut impl BufRead) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok().filter(|count| *count > 0)?;
    let mut words = line.split(' ').map(str::to_owned);
    let mut request = Request { method: words.next()?, path: words.next()?, api_key: String::new(), body: Vec::new() };
    loop {
        let mut header = String::new();
        reader.read_line(&mut header).ok()?;
        let (name, value) = header.split_once(": ").unwrap_or_default();
        match name.to_ascii_lowercase().as_str() {
            "content-length" => request.body = vec![0; value.trim().parse().ok()?],
            "x-api-key" => request.api_key = value.trim().to_owned(),
            _ if header == "\r\n" => break,
            _ => {}
        }
    }
    reader.read_exact(&mut request.body).ok()?;
    Some(request)
}

/// `headers`: beside the length, each with its end.
pub(crate) fn write_answer(stream: &mut impl Write, status: &str, headers: &str, body: &str) -> Option<()> {
    let answer = format!("HTTP/1.1 {status}\r\n{headers}Content-Length: {}\r\n\r\n{body}", body.len());
    stream.write_all(answer.as_bytes()).ok()
}

pub(crate) fn write_frame(stream: &mut impl Write, payload: &str) {
    let mut bytes = Vec::new();
    put_server_frame(&mut bytes, OpCode::Data(Data::Text), payload.as_bytes());
    // Fails when the client has disconnected, at the end of a case.
    let _ = stream.write_all(&bytes);
}
