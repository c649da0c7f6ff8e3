//! TLS over a non-blocking socket: rustls keeps the state, this module moves the bytes.

use mio::net::TcpStream;
use rustls::ServerConnection;
use std::{
    io::{self, ErrorKind, Read, Write},
    net::Shutdown,
};

/// Plaintext that is encrypted before the previous record has left: the most that a record holds (RFC 8446, 5.1). A slow
/// reader costs us this much beyond its session's buffer.
const RECORD_BYTES: usize = 16 * 1024;

pub(crate) struct TlsStream {
    pub(super) socket: TcpStream,
    pub(super) session: Box<ServerConnection>,
}

impl TlsStream {
    /// Sends encrypted bytes. `WouldBlock`: some of them wait for the socket.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Reads from the socket: a part of the handshake, or records. Answers false at the end of the stream.
    fn receive(&mut self) -> io::Result<bool> {
        let received = self.session.read_tls(&mut self.socket)?;
        let processed = self.session.process_new_packets();
        // An answer of the handshake, or the alert that says what was wrong. Bytes that the socket does not take now wait
        // until it is writable.
        let sent = self.send();
        if let Err(error) = processed {
            tracing::debug!(%error, "TLS ended");
            return Err(io::Error::new(ErrorKind::InvalidData, error));
        }
        match sent {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(received > 0),
        }
    }

    /// The client has closed its side. Bytes that came before are handed out first; the next read answers with the end.
    fn read_end(&self, filled: usize) -> io::Result<usize> {
        if filled > 0 {
            // After a short read the caller may wait for the socket's next event. An end by `close_notify` alone causes none;
            // this does.
            let _ = self.socket.shutdown(Shutdown::Read);
        }
        Ok(filled)
    }

    /// Closes our side (RFC 8446, 6.1), as far as the socket takes the alert at once.
    pub(super) fn send_close_notify(&mut self) {
        self.session.send_close_notify();
        let _ = self.send();
    }
}

impl Read for TlsStream {
    /// Fills the buffer as far as there are bytes. A short read, or `WouldBlock`, means that both the socket and the TLS
    /// state are empty, so that the caller does not wait in vain for the socket's next event.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buffer.len() {
            match self.session.reader().read(&mut buffer[filled..]) {
                Ok(0) => return self.read_end(filled),
                Ok(n) => {
                    filled += n;
                    continue;
                }
                // The stream ended without a `close_notify`: every frame has a length, so a cut frame is noticed.
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return self.read_end(filled),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
            match self.receive() {
                Ok(true) => {}
                Ok(false) => return self.read_end(filled),
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock && filled > 0 => break,
                // The bytes before the error are good; a broken connection is still broken at the next read.
                Err(_) if filled > 0 => return self.read_end(filled),
                Err(error) => return Err(error),
            }
        }
        Ok(filled)
    }
}

impl Write for TlsStream {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        // Earlier bytes first, so that never more than one record is held.
        self.send()?;
        let taken = self.session.writer().write(&bytes[..bytes.len().min(RECORD_BYTES)])?;
        match self.send() {
            Err(error) if error.kind() != ErrorKind::WouldBlock => Err(error),
            _ => Ok(taken),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.send()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, crypto::ring};
    use std::{net::TcpListener, sync::Arc};

    type Client = rustls::StreamOwned<ClientConnection, std::net::TcpStream>;

    /// Both ends of a connection, the handshake done.
    fn pair() -> (TlsStream, Client) {
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).unwrap();
        let key = rustls::pki_types::PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        let provider = Arc::new(ring::default_provider());
        let server = ServerConfig::builder_with_provider(provider.clone()).with_safe_default_protocol_versions();
        let server = server.unwrap().with_no_client_auth().with_single_cert(vec![made.cert.der().clone()], key);
        let mut roots = RootCertStore::empty();
        roots.add(made.cert.der().clone()).unwrap();
        let client = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let client = Arc::new(client.with_root_certificates(roots).with_no_client_auth());
        let client = ClientConnection::new(client, "localhost".try_into().unwrap()).unwrap();

        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (socket, _) = listener.accept().unwrap();
        socket.set_nonblocking(true).unwrap();
        let session = ServerConnection::new(Arc::new(server.unwrap())).unwrap();
        let mut stream = TlsStream { socket: TcpStream::from_std(socket), session: Box::new(session) };
        let mut client = rustls::StreamOwned::new(client, ours);
        while client.conn.is_handshaking() || stream.session.is_handshaking() {
            while client.conn.wants_write() {
                client.conn.write_tls(&mut client.sock).unwrap();
            }
            assert_eq!(stream.read(&mut [0; 16]).unwrap_err().kind(), ErrorKind::WouldBlock);
            if client.conn.is_handshaking() {
                client.conn.read_tls(&mut client.sock).unwrap();
                client.conn.process_new_packets().unwrap();
            }
        }
        (stream, client)
    }

    /// Reads again until bytes have come.
    fn read(stream: &mut TlsStream, buffer: &mut [u8]) -> usize {
        loop {
            match stream.read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                outcome => return outcome.unwrap(),
            }
        }
    }

    #[test]
    fn with_a_full_socket_one_record_is_held_until_flush_succeeds() {
        let (mut stream, mut client) = pair();
        let mut taken = 0;
        while stream.flush().is_ok() {
            taken += stream.write(&[7; 100_000]).unwrap();
        }
        assert_eq!(stream.write(b"more").unwrap_err().kind(), ErrorKind::WouldBlock);
        let reader = std::thread::spawn(move || {
            let mut all = vec![0; taken];
            client.read_exact(&mut all).unwrap();
            all.iter().all(|byte| *byte == 7)
        });
        while stream.flush().is_err() {
            std::thread::yield_now();
        }
        assert!(reader.join().unwrap());
    }

    #[test]
    fn a_short_read_leaves_nothing_buffered() {
        let (mut stream, mut client) = pair();
        const SENT: usize = 200_000;
        client.write_all(&[7; SENT]).unwrap();
        let mut buffer = vec![0; SENT + 1];
        let mut filled = 0;
        while filled < SENT {
            filled += read(&mut stream, &mut buffer[filled..]);
            assert_eq!(stream.session.process_new_packets().unwrap().plaintext_bytes_to_read(), 0);
        }
        assert_eq!(filled, SENT);
        // A small buffer leaves the rest for the next read, which needs nothing from the socket.
        client.write_all(b"abcdef").unwrap();
        assert_eq!(read(&mut stream, &mut buffer[..4]), 4);
        assert_eq!(stream.read(&mut buffer).unwrap(), 2);
    }

    #[test]
    fn bytes_before_the_end_are_read_first() {
        for says_goodbye in [true, false] {
            let (mut stream, mut client) = pair();
            client.write_all(b"last words").unwrap();
            if says_goodbye {
                client.conn.send_close_notify();
            }
            client.flush().unwrap();
            client.sock.shutdown(Shutdown::Write).unwrap();
            let mut buffer = [0; 64];
            assert_eq!(read(&mut stream, &mut buffer), 10);
            assert_eq!(read(&mut stream, &mut buffer), 0);
        }
    }

    #[test]
    fn input_that_is_not_tls_is_answered_with_an_alert() {
        let (mut stream, mut client) = pair();
        client.sock.write_all(&[23, 3, 3, 0, 5, 1, 2, 3, 4, 5]).unwrap();
        let error = loop {
            match stream.read(&mut [0; 64]) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
                outcome => break outcome.unwrap_err(),
            }
        };
        assert_eq!(error.kind(), ErrorKind::InvalidData);
        let error = client.read(&mut [0; 64]).unwrap_err();
        assert!(error.to_string().contains("alert"), "{error}");
    }
}
