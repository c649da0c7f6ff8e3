//! A small HTTP/1.1 server for the fakes: a thread for each connection, requests one after another.

use super::tally::fault_of;
use crate::{LabError, offline_push::notice::NoticeSink};
use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

/// The head of a request. The server under test sends a few hundred bytes.
const HEAD_BYTES_MAX: u64 = 16 * 1024;
const HEADERS_MAX: usize = 32;
/// The body of a request: the server under test closes a delivery at a megabyte.
const BODY_BYTES_MAX: usize = 16 * 1024 * 1024;

/// A request as far as fakes read it.
pub(crate) struct Request<'a> {
    pub(crate) path: &'a str,
    pub(crate) body: &'a [u8],
}

/// An answer to a request.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) body: String,
}

impl Answer {
    pub(crate) fn empty(status: u16) -> Answer {
        Answer { status, body: String::new() }
    }
}

/// Answers requests. `None`: the connection ends without an answer, which it may have kept waiting before.
pub(crate) trait Handler: Send + Sync {
    fn answer(&self, request: Request<'_>) -> Result<Option<Answer>, String>;
    fn sink(&self) -> &dyn NoticeSink;
}

/// A listener with its threads. It ends with this handle.
pub(crate) struct HttpServer {
    pub(crate) address: SocketAddr,
    stop: Arc<AtomicBool>,
}

impl HttpServer {
    pub(crate) fn start(name: &str, handler: Arc<dyn Handler>) -> Result<HttpServer, LabError> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (of_thread, name) = (stop.clone(), name.to_owned());
        let thread = std::thread::Builder::new().name(name.clone());
        thread.spawn(move || accept(&listener, &name, &handler, &of_thread))?;
        Ok(HttpServer { address, stop })
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // Wakes the thread that waits for connections.
        let _ = TcpStream::connect(self.address);
    }
}

fn accept(listener: &TcpListener, name: &str, handler: &Arc<dyn Handler>, stop: &AtomicBool) {
    for connection in listener.incoming() {
        if stop.load(Ordering::Acquire) {
            return;
        }
        let (handler, fake) = (handler.clone(), name.to_owned());
        let serve = move || {
            // A connection ends when the server closes it, or is killed.
            let Err(error) = connection.and_then(|connection| serve(&connection, &*handler)) else { return };
            if error.kind() == io::ErrorKind::InvalidData {
                handler.sink().fault(fault_of(&fake, &error.to_string()));
            }
        };
        let _ = std::thread::Builder::new().name(name.to_owned()).spawn(serve);
    }
}

/// Answers the requests of one connection.
fn serve(connection: &TcpStream, handler: &dyn Handler) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let (mut reader, mut writer) = (BufReader::with_capacity(64 * 1024, connection), connection);
    let mut body = Vec::new();
    while let Some((path, length)) = read_head(&mut reader)? {
        body.resize(length, 0);
        reader.read_exact(&mut body)?;
        let answer = handler.answer(Request { path: &path, body: &body });
        let Some(Answer { status, body }) = answer.map_err(|why| wrong(&why))? else { return Ok(()) };
        let length = match status {
            204 => String::new(),
            _ => format!("Content-Length: {}\r\n", body.len()),
        };
        // One write: what comes in two waits for an acknowledgement.
        writer.write_all(format!("HTTP/1.1 {status} -\r\n{length}\r\n{body}").as_bytes())?;
    }
    Ok(())
}

fn wrong(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Reads the head of a request and answers its path and the length of its body; `None` at the end of the connection.
fn read_head(reader: &mut impl BufRead) -> io::Result<Option<(String, usize)>> {
    let mut head = Vec::new();
    loop {
        if reader.by_ref().take(HEAD_BYTES_MAX).read_until(b'\n', &mut head)? == 0 {
            return if head.is_empty() { Ok(None) } else { Err(io::ErrorKind::UnexpectedEof.into()) };
        }
        if head.ends_with(b"\r\n\r\n") {
            break;
        }
        if head.len() as u64 > HEAD_BYTES_MAX {
            return Err(wrong("a head without an end"));
        }
    }
    let mut headers = [httparse::EMPTY_HEADER; HEADERS_MAX];
    let mut request = httparse::Request::new(&mut headers);
    request.parse(&head).map_err(|error| wrong(&error.to_string()))?;
    let length = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse().ok());
    let length: Option<usize> = length.filter(|length| *length <= BODY_BYTES_MAX);
    let length = length.ok_or_else(|| wrong("a body without a length"))?;
    Ok(Some((request.path.unwrap_or_default().to_owned(), length)))
}
