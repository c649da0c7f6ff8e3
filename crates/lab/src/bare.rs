//! The bare limit of a broadcast: a process that takes one message and writes one ready-made frame to every
//! socket in a loop. It stores nothing, checks nothing and knows nobody: no server can reach its
//! receivers sooner by writing to one after the other.

use crate::{args::BareArgs, process};
use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
};
use tidings_protocol::{
    entry::{Entry, EntryKind},
    http::{SendReceipt, SendRequest},
    ws::{Data, OpCode, put_server_frame},
};

/// The hidden `bench bare-server` command: prints its address, serves until its sender hangs up.
pub(crate) fn main(args: &BareArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &BareArgs) -> io::Result<()> {
    // Its best case: one thread that the scheduler puts beside the client would measure the scheduler.
    process::avoid_core(args.avoid_core)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    // Receivers connect first, then the one that sends.
    let mut receivers = Vec::with_capacity(args.receivers);
    for _ in 0..args.receivers {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        receivers.push(stream);
    }
    let (mut sender, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    let mut seq = 0;
    while let Some(request) = take_request(&mut sender)? {
        seq += 1;
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let receipt = SendReceipt { conversation: args.conversation.clone(), seq, at, duplicate: false };
        let frame = ready_made(&receipt, request)?;
        for receiver in &mut receivers {
            receiver.write_all(&frame)?;
        }
        let body = serde_json::to_vec(&receipt)?;
        let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n", body.len());
        sender.write_all(&[head.as_bytes(), &body].concat())?;
    }
    Ok(())
}

/// The frame that a real server would write, of the same size.
fn ready_made(receipt: &SendReceipt, request: SendRequest) -> io::Result<Vec<u8>> {
    let entry = Entry {
        conversation: receipt.conversation.clone(),
        seq: receipt.seq,
        kind: EntryKind::Message,
        at: receipt.at,
        from: request.from,
        client_msg_id: request.client_msg_id,
        content_type: request.content_type,
        body: request.body,
        mentions: Vec::new(),
        silent: false,
    };
    let mut payload = format!(r#"{{"t":"messages","cursor":"1d2a3b4c.0.{}.0","entries":["#, receipt.seq).into_bytes();
    serde_json::to_writer(&mut payload, &entry)?;
    payload.extend_from_slice(b"]}");
    let mut frame = Vec::with_capacity(payload.len() + 10);
    put_server_frame(&mut frame, OpCode::Data(Data::Text), &payload);
    Ok(frame)
}

/// One request of the lab's own client: its body is all that matters. `None` when it hung up.
fn take_request(sender: &mut TcpStream) -> io::Result<Option<SendRequest>> {
    let bad = |what: &str| io::Error::new(io::ErrorKind::InvalidData, what.to_owned());
    let mut bytes = Vec::new();
    loop {
        let text = String::from_utf8_lossy(&bytes);
        if let Some((head, body)) = text.split_once("\r\n\r\n") {
            let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
            let length: usize = length.and_then(|l| l.parse().ok()).ok_or_else(|| bad("no length"))?;
            if body.len() >= length {
                return Ok(Some(serde_json::from_str(&body[..length])?));
            }
        }
        let mut part = [0; 4096];
        match sender.read(&mut part)? {
            0 => return Ok(None),
            count => bytes.extend_from_slice(&part[..count]),
        }
    }
}
