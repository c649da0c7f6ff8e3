//! The baseline of a broadcast: a process that reads one message and writes one frame to every socket in a loop. It stores
//! nothing and checks nothing: no server that writes to its receivers one after the other can reach them sooner.

use crate::process;
use clap::Args;
use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream},
    process::ExitCode,
    time::{SystemTime, UNIX_EPOCH},
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
    pub conversation: String,
    /// The client's core
    #[arg(long)]
    pub avoid_core: usize,
}

/// The hidden `bench bare-server` command: prints its address, and serves until the sender closes its connection.
pub(crate) fn main(args: &BareServerArgs) -> ExitCode {
    match serve(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bare server: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &BareServerArgs) -> io::Result<()> {
    // Away from the client's core, or this would measure the scheduler.
    process::avoid_core(args.avoid_core)?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{}", listener.local_addr()?);
    io::stdout().flush()?;
    // The receivers connect first, then the sender.
    let mut receivers = Vec::with_capacity(args.receivers);
    for _ in 0..args.receivers {
        let (stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        receivers.push(stream);
    }
    let (mut sender, _) = listener.accept()?;
    sender.set_nodelay(true)?;
    let mut seq = 0;
    while let Some(request) = read_request(&mut sender)? {
        seq += 1;
        let at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let receipt = SendReceipt { conversation: args.conversation.clone(), seq, at, duplicate: false };
        let frame = messages_frame(&receipt, request)?;
        for receiver in &mut receivers {
            receiver.write_all(&frame)?;
        }
        let body = serde_json::to_vec(&receipt)?;
        let head = format!("HTTP/1.1 201 Created\r\nContent-Length: {}\r\n\r\n", body.len());
        sender.write_all(&[head.as_bytes(), &body].concat())?;
    }
    Ok(())
}

/// The `messages` frame that a Tidings server would write, of the same size.
fn messages_frame(receipt: &SendReceipt, request: SendRequest) -> io::Result<Vec<u8>> {
    let mut entry =
        Entry::message(receipt.conversation.clone(), receipt.seq, receipt.at, request.content_type, request.body);
    entry.from = request.from;
    entry.client_msg_id = request.client_msg_id;
    let mut payload = format!(r#"{{"t":"messages","cursor":"1d2a3b4c.0.{}.0","entries":["#, receipt.seq).into_bytes();
    serde_json::to_writer(&mut payload, &entry)?;
    payload.extend_from_slice(b"]}");
    let mut frame = Vec::with_capacity(payload.len() + 10);
    put_server_frame(&mut frame, OpCode::Data(Data::Text), &payload);
    Ok(frame)
}

/// Reads one request of the load client, of which only the body is used. `None`: the client has closed its connection.
fn read_request(sender: &mut TcpStream) -> io::Result<Option<SendRequest>> {
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
