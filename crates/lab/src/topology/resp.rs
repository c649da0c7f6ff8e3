//! Enough of Redis's protocol (RESP2) to set servers up and to ask them how they are.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Reply {
    Text(String),
    Number(i64),
    Nothing,
    List(Vec<Reply>),
}

impl Reply {
    pub(crate) fn text(&self) -> &str {
        match self {
            Reply::Text(text) => text,
            _ => "",
        }
    }

    /// A number, or 0.
    pub(crate) fn number(&self) -> i64 {
        match self {
            Reply::Number(number) => *number,
            _ => 0,
        }
    }
}

/// A connection to one server.
#[derive(Debug)]
pub(crate) struct Redis {
    reader: BufReader<TcpStream>,
    out: Vec<u8>,
}

/// A server that writes its part in the cluster to a busy disk says nothing meanwhile.
const PATIENCE: Duration = Duration::from_secs(30);

impl Redis {
    pub(crate) fn connect(address: SocketAddr) -> io::Result<Self> {
        let stream = TcpStream::connect_timeout(&address, PATIENCE)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Redis { reader: BufReader::with_capacity(1 << 16, stream), out: Vec::new() })
    }

    /// Gathers a command; [`flush`](Self::flush) sends what was gathered.
    pub(crate) fn put(&mut self, words: &[&[u8]]) {
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

    /// One command, with words apart by blanks, and its answer.
    pub(crate) fn ask(&mut self, line: &str) -> io::Result<Reply> {
        let words: Vec<&[u8]> = line.split(' ').map(str::as_bytes).collect();
        self.put(&words);
        self.flush()?;
        self.reply()
    }

    /// The next answer; one that is an error is an error here.
    pub(crate) fn reply(&mut self) -> io::Result<Reply> {
        let mut line = String::new();
        if self.reader.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let line = line.trim_end();
        let Some((kind, rest)) = line.split_at_checked(1) else { return Err(broken("an empty line")) };
        let number = || rest.parse::<i64>().map_err(|_| broken(line));
        match kind {
            "+" => Ok(Reply::Text(rest.to_owned())),
            "-" => Err(io::Error::other(rest.to_owned())),
            ":" => Ok(Reply::Number(number()?)),
            "$" => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nothing) };
                let mut bytes = vec![0; length + 2];
                self.reader.read_exact(&mut bytes)?;
                bytes.truncate(length);
                Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
            }
            "*" => {
                let Ok(length) = usize::try_from(number()?) else { return Ok(Reply::Nothing) };
                (0..length).map(|_| self.reply()).collect::<io::Result<_>>().map(Reply::List)
            }
            _ => Err(broken(line)),
        }
    }
}

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("no answer of Redis: {what}"))
}
