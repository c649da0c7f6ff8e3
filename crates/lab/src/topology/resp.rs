//! A small client of Redis (RESP2), to set servers up and to read their state.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

/// The longest wait for a reply: a server that writes its cluster configuration to a busy disk does not answer meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

/// Sends one command, whose words are separated by spaces, on a connection of its own, and reads its reply. An error reply is an
/// error; a number is its digits, and nothing is an empty text. No command that is sent here is answered with a list.
pub(super) fn execute(address: SocketAddr, line: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let words: Vec<&str> = line.split(' ').collect();
    let mut command = format!("*{}\r\n", words.len());
    command.extend(words.iter().map(|word| format!("${}\r\n{word}\r\n", word.len())));
    stream.write_all(command.as_bytes())?;
    let mut reader = BufReader::new(stream);
    let mut reply = String::new();
    if reader.read_line(&mut reply)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let reply = reply.trim_end();
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, format!("no answer of Redis: {reply}"));
    let (kind, rest) = reply.split_at_checked(1).ok_or_else(invalid)?;
    match kind {
        "+" | ":" => Ok(rest.to_owned()),
        "-" => Err(io::Error::other(rest.to_owned())),
        "$" => {
            // -1: there is none.
            let Ok(length) = usize::try_from(rest.parse::<i64>().map_err(|_| invalid())?) else {
                return Ok(String::new());
            };
            let mut bytes = vec![0; length];
            reader.read_exact(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        _ => Err(invalid()),
    }
}
