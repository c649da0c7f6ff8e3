//! The baseline of messages: a process that reads what is sent and writes one frame to every socket in a loop, with all that has
//! come meanwhile in it. It stores nothing and checks nothing: no server that writes to its receivers one after the other can
//! reach them sooner, or take more.

use crate::{
    client_engine::HANDSHAKES_MAX,
    process::{self, BareLoop},
};
use clap::Args;
use mio::{Events, Interest, Poll, Token};
use std::{
    io::{self, ErrorKind, Read, Write},
    net::{TcpListener, TcpStream},
    process::ExitCode,
};
use tidings_protocol::{
    entry::Entry,
    http::{SendReceipt, SendRequest},
    ws::{Data, OpCode, put_server_frame},
};

#[derive(Debug, Clone, Args)]
pub struct BareServerArgs {
    #[arg(long)]
    pub receivers: usize,
    #[arg(long)]
    pub senders: usize,
    #[arg(long)]
    pub conversation: String,
    /// The client's core
    #[arg(long)]
    pub avoid_core: usize,
}

/// The hidden `bench bare-server` command: prints its address, and serves until the senders close their connections.
pub(crate) fn main(args: &BareServerArgs) -> ExitCode {
    BareLoop::exit_code("bare server", serve(args))
}

/// A connection that sends, one request at a time.
struct Sender {
    stream: mio::net::TcpStream,
    /// The beginning of a request.
    partial: Vec<u8>,
    has_ended: bool,
}

fn serve(args: &BareServerArgs) -> io::Result<()> {
    // Away from the client's core, or this would measure the scheduler.
    process::avoid_core(args.avoid_core)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    // More than the handshakes that the load client has under way: one that is tried again would come after its turn.
    socket2::SockRef::from(&listener).listen(4 * HANDSHAKES_MAX as i32)?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    // The receivers connect first, then the senders.
    let mut receivers = Vec::with_capacity(args.receivers);
    for _ in 0..args.receivers {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        receivers.push(stream);
    }
    let (mut poll, mut events) = (Poll::new()?, Events::with_capacity(args.senders.max(1)));
    let mut senders = Vec::with_capacity(args.senders);
    for number in 0..args.senders {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut stream = mio::net::TcpStream::from_std(stream);
        poll.registry().register(&mut stream, Token(number), Interest::READABLE)?;
        senders.push(Sender { stream, partial: Vec::new(), has_ended: false });
    }
    let mut seq = 0;
    while senders.iter().any(|sender| !sender.has_ended) {
        match poll.poll(&mut events, None) {
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            polled => polled?,
        }
        let (mut entries, mut answers) = (Vec::new(), Vec::new());
        for number in events.iter().map(|event| event.token().0) {
            for request in senders[number].requests()? {
                seq += 1;
                let at = process::unix_ms();
                let receipt = SendReceipt { conversation: args.conversation.clone(), seq, at, duplicate: false };
                entries.push(entry_of(&receipt, request));
                answers.push((number, receipt));
            }
        }
        if !entries.is_empty() {
            write_to_all(&mut receivers, &messages_frame(seq, &entries)?)?;
        }
        for (number, receipt) in answers {
            let body = serde_json::to_vec(&receipt)?;
            let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n", body.len());
            // Nothing else is on its way to this sender: the kernel takes it.
            senders[number].stream.write_all(&[head.as_bytes(), &body].concat())?;
        }
    }
    Ok(())
}

fn write_to_all(receivers: &mut [TcpStream], frame: &[u8]) -> io::Result<()> {
    receivers.iter_mut().try_for_each(|receiver| receiver.write_all(frame))
}

fn entry_of(receipt: &SendReceipt, request: SendRequest) -> Entry {
    let mut entry =
        Entry::message(receipt.conversation.clone(), receipt.seq, receipt.at, request.content_type, request.body);
    entry.from = request.from;
    entry.client_msg_id = request.client_msg_id;
    entry
}

/// The `messages` frame that a Tidings server would write, of the same size.
fn messages_frame(seq: u64, entries: &[Entry]) -> io::Result<Vec<u8>> {
    let mut payload = format!(r#"{{"t":"messages","cursor":"1d2a3b4c.0.{seq}.0","entries":"#).into_bytes();
    serde_json::to_writer(&mut payload, entries)?;
    payload.extend_from_slice(b"}");
    let mut frame = Vec::with_capacity(payload.len() + 10);
    put_server_frame(&mut frame, OpCode::Data(Data::Text), &payload);
    Ok(frame)
}

impl Sender {
    /// The requests that have come.
    fn requests(&mut self) -> io::Result<Vec<SendRequest>> {
        let mut part = [0; 16 * 1024];
        loop {
            match self.stream.read(&mut part) {
                Ok(0) => {
                    self.has_ended = true;
                    break;
                }
                Ok(count) => self.partial.extend_from_slice(&part[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        let mut requests = Vec::new();
        while let Some((request, length)) = first_request(&self.partial)? {
            requests.push(request);
            self.partial.drain(..length);
        }
        Ok(requests)
    }
}

/// The first request of the load client in these bytes with its length, of which only the body is used; `None` while it is
/// incomplete.
fn first_request(bytes: &[u8]) -> io::Result<Option<(SendRequest, usize)>> {
    let bad = |what: &str| io::Error::new(ErrorKind::InvalidData, what.to_owned());
    let mut headers = [httparse::EMPTY_HEADER; 16];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(start) = head.parse(bytes).map_err(|error| bad(&error.to_string()))? else {
        return Ok(None);
    };
    let length = head.headers.iter().find(|header| header.name.eq_ignore_ascii_case("content-length"));
    let length = length.and_then(|header| std::str::from_utf8(header.value).ok()?.parse::<usize>().ok());
    let end = start + length.ok_or_else(|| bad("no length"))?;
    match bytes.get(start..end) {
        None => Ok(None),
        Some(body) => Ok(Some((serde_json::from_slice(body)?, end))),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_are_read_one_after_another_from_any_parts() {
        let body = r#"{"from":"a","client_msg_id":"c","type":"text","body":{"n":1}}"#;
        let one = format!("POST /v1/x HTTP/1.1\r\nHost: h\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        let two = [one.as_bytes(), one.as_bytes()].concat();
        for end in 0..one.len() {
            assert!(first_request(&two[..end]).unwrap().is_none(), "{end}");
        }
        let (request, length) = first_request(&two).unwrap().unwrap();
        assert_eq!((request.client_msg_id.as_deref(), length), (Some("c"), one.len()));
        assert!(first_request(b"POST / HTTP/1.1\r\n\r\n").is_err(), "a request without a length");
    }

    #[test]
    fn a_frame_has_all_entries() {
        let receipt = |seq| SendReceipt { conversation: "g".into(), seq, at: 5, duplicate: false };
        let request =
            || serde_json::from_str::<SendRequest>(r#"{"from":"a","client_msg_id":"c","type":"text","body":1}"#);
        let entries = [entry_of(&receipt(1), request().unwrap()), entry_of(&receipt(2), request().unwrap())];
        let frame = messages_frame(2, &entries).unwrap();
        let text = String::from_utf8_lossy(&frame);
        let json = &text[text.find('{').unwrap()..];
        let value: serde_json::Value = serde_json::from_str(json).unwrap();
        assert_eq!((&value["t"], value["entries"].as_array().unwrap().len()), (&"messages".into(), 2));
    }
}
