//! Bodies that are longer than memory: an upload that is read while it is sent, and a download that is written while it comes.

use crate::{
    ClientError,
    http::HttpResponse,
    wire::{ResponseHead, parse_response_head},
};
use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{Shutdown, SocketAddr, TcpStream},
    time::Duration,
};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const PART_BYTES: usize = 64 * 1024;
/// The longest body of a response that is no download: a problem, or the counts of an upload.
const ANSWER_BYTES_MAX: u64 = 1024 * 1024;

/// Sends what `body` yields, and returns the response. A server that answers before the end is not sent the rest. `sent` is told of
/// each part's bytes.
///
/// # Errors
/// The connection failed, or the response is not HTTP/1.1; `body` cannot be read.
pub fn upload(
    address: SocketAddr,
    authorization: &str,
    path: &str,
    content_type: &str,
    mut body: impl Read,
    mut sent: impl FnMut(usize),
) -> Result<HttpResponse, ClientError> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    let answers = stream.try_clone()?;
    // Whoever only wrote would not see the answer of a server that refuses, and would then lose it with the connection.
    let reader = std::thread::spawn(move || {
        let mut answers = BufReader::new(answers);
        let head = read_head(&mut answers)?;
        let mut body = Vec::new();
        if head.chunked {
            copy_chunks(&mut answers, &mut body)?;
        } else {
            answers.take((head.body_length as u64).min(ANSWER_BYTES_MAX)).read_to_end(&mut body)?;
        }
        Ok(HttpResponse { status: head.status, body, retry_after: head.retry_after })
    });
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: tidings\r\nAuthorization: Bearer {authorization}\r\nContent-Type: {content_type}\r\n\
         Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    );
    let mut written = stream.write_all(head.as_bytes());
    let mut part = vec![0; PART_BYTES];
    let mut read = Ok(());
    while written.is_ok() && !reader.is_finished() {
        match body.read(&mut part) {
            Ok(0) => {
                written = stream.write_all(b"0\r\n\r\n");
                break;
            }
            Ok(count) => {
                let chunk = [format!("{count:x}\r\n").as_bytes(), &part[..count], b"\r\n"].concat();
                written = stream.write_all(&chunk);
                sent(count);
            }
            Err(error) => {
                // A body that ends here would count as whole.
                let _ = stream.shutdown(Shutdown::Both);
                read = Err(error);
                break;
            }
        }
    }
    let answer = reader.join().map_err(|_| ClientError::Protocol("the reader of the response panicked".into()))?;
    read?;
    match (answer, written) {
        (Ok(answer), _) => Ok(answer),
        (Err(_), Err(error)) => Err(error.into()),
        (Err(error), Ok(())) => Err(error),
    }
}

/// Asks for `path`, and writes the body to `out`. A response of any status but 200 is returned instead.
///
/// # Errors
/// The connection failed, or the response is not HTTP/1.1 or broke off; `out` cannot be written.
pub fn download(
    address: SocketAddr,
    authorization: &str,
    path: &str,
    out: &mut impl Write,
) -> Result<Option<HttpResponse>, ClientError> {
    let mut stream = TcpStream::connect_timeout(&address, CONNECT_TIMEOUT)?;
    let request = format!(
        "GET {path} HTTP/1.1\r\nHost: tidings\r\nAuthorization: Bearer {authorization}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(request.as_bytes())?;
    let mut answers = BufReader::new(stream);
    let head = read_head(&mut answers)?;
    let mut refused = Vec::new();
    let out: &mut dyn Write = if head.status == 200 { out } else { &mut refused };
    let length = head.body_length as u64;
    if head.chunked {
        copy_chunks(&mut answers, out)?;
    } else if std::io::copy(&mut answers.take(length), out)? < length {
        return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
    }
    let refusal = HttpResponse { status: head.status, body: refused, retry_after: head.retry_after };
    Ok((head.status != 200).then_some(refusal))
}

fn read_head(answers: &mut impl BufRead) -> Result<ResponseHead, ClientError> {
    let mut bytes = Vec::new();
    loop {
        if answers.read_until(b'\n', &mut bytes)? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        if let Some(head) = parse_response_head(&bytes).map_err(ClientError::Protocol)? {
            return Ok(head);
        }
    }
}

fn copy_chunks(answers: &mut impl BufRead, out: &mut (impl Write + ?Sized)) -> Result<(), ClientError> {
    loop {
        let mut line = String::new();
        answers.read_line(&mut line)?;
        let size = u64::from_str_radix(line.trim(), 16);
        let size = size.map_err(|_| ClientError::Protocol("a chunk without a size: the response broke off".into()))?;
        if size == 0 {
            return Ok(());
        }
        if std::io::copy(&mut answers.take(size), out)? < size {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
        answers.read_line(&mut line)?;
    }
}
