//! The steps, one after the other. A connection is named by its number among those that were tried.

use a2g_guest_sdk::prelude::*;

use std::io::{Error, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream, ToSocketAddrs, UdpSocket};
use std::time::Duration;
use wasip2::sockets::instance_network::instance_network;
use wasip2::sockets::ip_name_lookup::resolve_addresses;
use wasip2::sockets::network::{ErrorCode, IpAddressFamily};
use wasip2::sockets::tcp_create_socket::create_tcp_socket;

/// The steps to take.
#[derive(Arguments)]
struct HostileTcp {
    /// The steps.
    steps: Vec<Step>,
}

/// One step.
#[derive(a2g_guest_sdk::serde::Deserialize, a2g_guest_sdk::schemars::JsonSchema)]
#[serde(crate = "a2g_guest_sdk::serde", rename_all = "snake_case")]
#[schemars(crate = "a2g_guest_sdk::schemars")]
enum Step {
    /// Looks a name up by the interface itself.
    LookUp(String),
    /// Looks a host with a port up by the standard library, as often as said.
    Resolve(String, u32),
    /// Connects to a host and port.
    Connect(String),
    /// Sends a text, as often as said.
    Write(usize, String, u32),
    /// Reads up to so many bytes.
    Read(usize, u64),
    /// Ends a direction: `read`, `write` or both.
    Shutdown(usize, String),
    /// Reads once without waiting, again and again until there is something, with a pause between or none.
    Poll(usize, u64),
    /// Sends so many bytes without ever waiting.
    Spin(usize, usize),
    /// Sends a text without waiting, and leaves the connection at once.
    WriteAndClose(usize, String),
    /// Leaves the connection.
    Close(usize),
    /// Binds a socket that would listen.
    Bind(String),
    /// Listens and accepts, on a socket that is bound to nothing.
    Listen,
    /// Binds a socket of UDP.
    Udp(String),
    /// Waits for so many milliseconds.
    Sleep(u64),
}

fn error_value(error: &Error) -> Value {
    json!({ "error": format!("{:?}", error.kind()), "text": error.to_string() })
}

fn code(error: ErrorCode) -> Value {
    json!({ "error": format!("{error:?}") })
}

fn hostile_tcp(_: &mut Context, arguments: HostileTcp) -> Result<Value, ToolError> {
    let mut connections = Vec::new();
    let steps = arguments.steps.iter().map(|step| take(step, &mut connections));
    Ok(Value::Array(steps.map(|told| told.unwrap_or_else(|error| error_value(&error))).collect()))
}

type Connections = Vec<Option<TcpStream>>;

fn connection(connections: &mut Connections, which: usize) -> Result<&mut TcpStream, Error> {
    connections.get_mut(which).and_then(Option::as_mut).ok_or_else(|| ErrorKind::NotFound.into())
}

fn take(step: &Step, connections: &mut Connections) -> Result<Value, Error> {
    Ok(match step {
        Step::LookUp(name) => look_up(name),
        Step::Resolve(host, times) => {
            let mut last = Err(ErrorKind::NotFound.into());
            for _ in 0..*times {
                last = host
                    .to_socket_addrs()
                    .map(|found| json!(found.map(|at| at.to_string()).collect::<Vec<_>>()));
            }
            last?
        }
        Step::Connect(to) => {
            let connected = TcpStream::connect(to.as_str());
            let told = connected.as_ref().map_err(error_value).and_then(|stream| {
                let peer = stream.peer_addr().map_err(|error| error_value(&error))?;
                let local = stream.local_addr().map_err(|error| error_value(&error))?;
                Ok(json!({ "peer": peer.to_string(), "local": local.to_string() }))
            });
            connections.push(connected.ok());
            told.unwrap_or_else(|error| error)
        }
        Step::Write(which, text, times) => {
            let stream = connection(connections, *which)?;
            let mut written = 0_usize;
            for _ in 0..*times {
                if let Err(error) = stream.write_all(text.as_bytes()) {
                    return Ok(json!({ "written": written, "error": format!("{:?}", error.kind()) }));
                }
                written += text.len();
            }
            json!({ "written": written })
        }
        Step::Read(which, most) => read(connection(connections, *which)?, *most),
        Step::Shutdown(which, how) => {
            let how = match how.as_str() {
                "read" => Shutdown::Read,
                "write" => Shutdown::Write,
                _both => Shutdown::Both,
            };
            connection(connections, *which)?.shutdown(how)?;
            json!("shut")
        }
        Step::Poll(which, pause) => {
            let stream = connection(connections, *which)?;
            stream.set_nonblocking(true)?;
            let (mut waits, mut piece) = (0_u32, [0; 4096]);
            loop {
                match stream.read(&mut piece) {
                    Ok(read) => {
                        let text =
                            String::from_utf8_lossy(piece.get(..read).unwrap_or_default()).into_owned();
                        stream.set_nonblocking(false)?;
                        break json!({ "text": text, "waited": waits > 0 });
                    }
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {
                        waits = waits.saturating_add(1);
                        if *pause > 0 {
                            std::thread::sleep(Duration::from_millis(*pause));
                        }
                    }
                    Err(error) => break error_value(&error),
                }
            }
        }
        Step::Spin(which, bytes) => {
            let stream = connection(connections, *which)?;
            stream.set_nonblocking(true)?;
            let piece = vec![b's'; 16 << 10];
            let mut left = *bytes;
            while left > 0 {
                match stream.write(piece.get(..left.min(piece.len())).unwrap_or_default()) {
                    Ok(written) => left = left.saturating_sub(written),
                    Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                    Err(error) => return Ok(error_value(&error)),
                }
            }
            stream.set_nonblocking(false)?;
            json!("spun")
        }
        Step::WriteAndClose(which, text) => {
            let stream = connection(connections, *which)?;
            stream.set_nonblocking(true)?;
            let written = stream.write(text.as_bytes())?;
            connections.remove(*which);
            json!({ "written": written })
        }
        Step::Close(which) => {
            connections.get_mut(*which).map(Option::take);
            json!("closed")
        }
        Step::Bind(to) => TcpListener::bind(to.as_str()).map(|_| json!("bound"))?,
        Step::Listen => listen(),
        Step::Udp(to) => UdpSocket::bind(to.as_str()).map(|_| json!("bound"))?,
        Step::Sleep(milliseconds) => {
            std::thread::sleep(Duration::from_millis(*milliseconds));
            json!("slept")
        }
    })
}

fn look_up(name: &str) -> Value {
    let stream = match resolve_addresses(&instance_network(), name) {
        Ok(stream) => stream,
        Err(error) => return code(error),
    };
    let mut addresses = Vec::new();
    loop {
        match stream.resolve_next_address() {
            Ok(Some(address)) => addresses.push(format!("{address:?}")),
            Ok(None) => return json!({ "addresses": addresses }),
            Err(ErrorCode::WouldBlock) => stream.subscribe().block(),
            Err(error) => return code(error),
        }
    }
}

fn read(stream: &mut TcpStream, most: u64) -> Value {
    let (mut read, mut first, mut piece) = (0_u64, Vec::new(), vec![0; 64 << 10]);
    while read < most {
        let room = usize::try_from(most - read).unwrap_or(usize::MAX).min(piece.len());
        match stream.read(piece.get_mut(..room).unwrap_or_default()) {
            Ok(0) => break,
            Ok(more) => {
                read += more as u64;
                if first.len() < 4096 {
                    first.extend(piece.get(..more).unwrap_or_default());
                }
            }
            Err(error) => {
                return json!({ "read": read, "error": format!("{:?}", error.kind()), "text": error.to_string() });
            }
        }
    }
    first.truncate(4096);
    json!({ "read": read, "first": String::from_utf8_lossy(&first) })
}

fn listen() -> Value {
    let socket = match create_tcp_socket(IpAddressFamily::Ipv4) {
        Ok(socket) => socket,
        Err(error) => return code(error),
    };
    let listened = socket.start_listen().err().map(code);
    let accepted = socket.accept().err().map(code);
    json!({ "listen": listened, "accept": accepted })
}

export_tool!(hostile_tcp, description = "Takes the steps of its arguments, and tells what came of each");
