//! A small client of Redis (RESP2), to set servers up and to read their state.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Text(String),
    Number(i64),
    Nil,
    List(Vec<Reply>),
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        match self {
            Reply::Text(text) => text,
            _ => "",
        }
    }
}

/// A connection to one server.
#[derive(Debug)]
pub(crate) struct RedisConnection {
    reader: BufReader<TcpStream>,
    out: Vec<u8>,
}

/// The longest wait for a reply: a server that writes its cluster configuration to a busy disk does not answer meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

impl RedisConnection {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(RedisConnection { reader: BufReader::with_capacity(1 << 16, stream), out: Vec::new() })
    }

    /// Queues a command; [`flush`](Self::flush) sends the queued commands.
    pub(crate) fn queue(&mut self, words: &[&[u8]]) {
        let _ = write!(self.out, "*{}\r\n", words.len());
        for word in words {
            let _ = write!(self.out, "${}\r\n", word.len());
            self.out.extend_from_slice(word);
            self.out.extend_from_slice(b"\r\n");
        }
    }

    pub(crate) fn flush(&mut self) -> io::Result<()> {
        self.reader.get_mut().write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// Sends one command, whose words are separated by spaces, and reads its reply.
    pub(crate) fn execute(&mut self, line: &str) -> io::Result<Reply> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.queue(&words);
        self.flush()?;
        self.read_reply()
    }

    /// Reads the next reply; an error reply is an error.
    pub(crate) fn read_reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else { return Err(invalid_reply("an empty line")) };
        let number = || rest.parse::<i64>().map_err(|_| invalid_reply(line));
        match kind {
            "+" => Ok(Reply::Text(rest.to_owned())),
            "-" => Err(io::Error::other(rest.to_owned())),
            ":" => Ok(Reply::Number(number()?)),
            "$" => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
                let mut bytes = vec![0; length + 2];
                self.reader.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            "*" => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nil) };
                (0..length).map(|_| self.read_reply()).collect::<io::Result<_>>().map(Reply::List)
            }
            _ => Err(invalid_reply(line)),
        }
    }
}

fn invalid_reply(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no answer of Redis: {what}"))
}
