//! Without a free descriptor in the whole process new connections are refused, and nothing spins or breaks. Alone in its process,
//! since the limit is the process's.
#![allow(clippy::unwrap_used)]

#[allow(dead_code)]
#[path = "it/support/devices.rs"]
mod devices;
#[allow(dead_code)]
#[path = "it/support/mod.rs"]
mod support;

use devices::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use socket2::{Domain, Socket, Type};
use std::{fs::File, net::TcpStream};
use support::*;
use tidings_gateway::miop_listener::MiopListenerConfig;
use tidings_protocol::{error::ErrorCode, miop::Frame};

#[test]
fn connections_are_refused_until_descriptors_are_free_again() {
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(256), ..limit }).unwrap();
    let server = Server::start();
    server.users(&["ann"]);
    let config = MiopListenerConfig::open(vec![LOCAL]);
    let descriptors = config.descriptors.clone();
    let listener = RunningListener::open(&server, config);
    let mut stays = Device::bound(connect(listener.address), "ann");

    // The clients' sockets take descriptors too: they are opened before the last descriptor is taken.
    let sockets: Vec<Socket> = (0..3).map(|_| Socket::new(Domain::IPV4, Type::STREAM, None).unwrap()).collect();
    let taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    for socket in sockets {
        socket.connect(&listener.address.into()).unwrap();
        let stream = TcpStream::from(socket);
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut device = Device::new(stream);
        device.expect(|frame| {
            let Frame::Error(error) = frame else { panic!("{frame:?}") };
            assert_eq!((error.code, error.fatal), (ErrorCode::QueueFull.as_str(), true));
        });
        assert_eq!(device.next(|_| ()).unwrap(), None);
        // The descriptor of this client must not be free for the next one.
        std::mem::forget(device);
    }
    assert_eq!(descriptors.refused(), 3);
    stays.is_alive();

    drop(taken);
    Device::bound(connect(listener.address), "ann");
}
