//! Listening addresses: a TCP port, or a Unix socket in a folder.

use std::fmt;
use std::fs::Permissions;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

/// The prefix of a Unix socket's path.
const UNIX_PREFIX: &str = "unix:";
/// Mode of a Unix socket: its owner and its group may connect.
const SOCKET_MODE: u32 = 0o660;
/// Maximum number of connections that the kernel queues until they are accepted, up to its own limit (`somaxconn`). A
/// client that finds the queue full retries after a second, and a burst would at once fill the standard library's queue
/// of 128.
const BACKLOG: u32 = 4096;

/// A listening address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListenAddress {
    /// An IP address and a TCP port; port 0 lets the system choose.
    Tcp(SocketAddr),
    /// The path of a Unix socket.
    Unix(PathBuf),
}

impl ListenAddress {
    /// Returns `true` if only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.ip().is_none_or(|ip| ip.is_loopback())
    }

    /// The IP address; `None` for a Unix socket.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for ListenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX_PREFIX}{}", path.display()),
        }
    }
}

impl FromStr for ListenAddress {
    type Err = &'static str;

    /// Parses an address or a name with a port, or `unix:` and a path. A name is resolved; IPv4 is preferred, because
    /// not every machine has IPv6.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix(UNIX_PREFIX).filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let address = text.to_socket_addrs().ok().and_then(|all| all.min_by_key(SocketAddr::is_ipv6));
        address.map(Self::Tcp).ok_or(
            "has to be an address or a name and a port, such as `127.0.0.1:7420` or `localhost:7420`, or a socket such as \
             `unix:/run/a2g/executor.sock`",
        )
    }
}

/// A bound listener.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(BoundSocket),
}

/// A Unix socket. Dropping it removes its file.
pub(super) struct BoundSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file: another file at the same path belongs to another process.
    file: Option<(u64, u64)>,
}

pub(super) enum ClientStream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Binds an address, and returns the address that was bound: for port 0, the system chooses the port.
    ///
    /// # Ambient Authority
    /// Binds the port; or creates the socket, replacing one that no process listens on.
    pub(super) async fn bind(address: &ListenAddress) -> Result<(Self, ListenAddress)> {
        match address {
            ListenAddress::Tcp(port) => {
                let listener = bind_tcp(*port)?;
                let bound = ListenAddress::Tcp(listener.local_addr()?);
                Ok((Self::Tcp(listener), bound))
            }
            ListenAddress::Unix(path) => {
                remove_stale(path).await?;
                let listener = bind_unix(path)?;
                Ok((
                    Self::Unix(BoundSocket { listener, path: path.clone(), file: file_id(path) }),
                    address.clone(),
                ))
            }
        }
    }

    pub(super) async fn accept(&self) -> Result<ClientStream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection keeps Nagle's algorithm");
                }
                Ok(ClientStream::Tcp(stream))
            }
            Self::Unix(socket) => {
                socket.listener.accept().await.map(|(stream, _)| ClientStream::Unix(stream))
            }
        }
    }
}

impl ClientStream {
    /// The address of the client; `None` for a Unix socket.
    pub(super) fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(stream) => stream.peer_addr().ok().map(|address| address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl Drop for BoundSocket {
    fn drop(&mut self) {
        if self.file.is_some() && file_id(&self.path) == self.file {
            let _already_removed = std::fs::remove_file(&self.path);
        }
    }
}

fn bind_tcp(address: SocketAddr) -> Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As in the standard library, so that a port with connections in TIME_WAIT can be bound.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Creates a socket that no other user can connect to at any time: it gets its mode in a private folder, and is then
/// moved into place.
fn bind_unix(path: &Path) -> Result<UnixListener> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let hidden = tempfile::Builder::new().prefix(".a2g").tempdir_in(folder)?;
    let temporary = hidden.path().join("s");
    let listener = UnixListener::bind(&temporary)?;
    std::fs::set_permissions(&temporary, Permissions::from_mode(SOCKET_MODE))?;
    std::fs::rename(&temporary, path)?;
    Ok(listener)
}

/// Device and inode of the file at a path.
fn file_id(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Removes the socket that a killed process has left behind, if there is one.
async fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(Error::new(ErrorKind::AlreadyExists, "the path is a file that is not a socket"))
        }
        Ok(_) => match UnixStream::connect(path).await {
            Err(error) if error.kind() == ErrorKind::ConnectionRefused => std::fs::remove_file(path),
            Ok(_) | Err(_) => Err(Error::new(ErrorKind::AddrInUse, "another process listens there")),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listening_address_formats_as_it_was_parsed() {
        for text in ["127.0.0.1:7420", "[::1]:1", "unix:/run/a2g/executor.sock", "unix:here"] {
            assert_eq!(text.parse::<ListenAddress>().unwrap().to_string(), text);
        }
        for text in ["unix:", "7420", "127.0.0.1", ""] {
            assert!(text.parse::<ListenAddress>().is_err(), "{text}");
        }
        assert!("unix:/x".parse::<ListenAddress>().unwrap().is_local());
        assert!(!"0.0.0.0:1".parse::<ListenAddress>().unwrap().is_local());
    }

    #[tokio::test]
    async fn a_stale_socket_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let address = ListenAddress::Unix(folder.path().join("socket"));
        let ListenAddress::Unix(path) = &address else { unreachable!() };
        // The standard library leaves its sockets behind.
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        let (first, _) = Listener::bind(&address).await.unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, SOCKET_MODE);
        assert_eq!(Listener::bind(&address).await.err().unwrap().kind(), ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        let (moved, _) = Listener::bind(&address).await.unwrap();
        std::fs::rename(path, folder.path().join("away")).unwrap();
        std::fs::write(path, "somebody else's").unwrap();
        drop(moved);
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, "a file").unwrap();
        assert_eq!(Listener::bind(&address).await.err().unwrap().kind(), ErrorKind::AlreadyExists);
    }

    /// The test accepts no connection: a client that finds the queue full would retry only after a second.
    #[tokio::test]
    async fn a_burst_of_connections_is_queued() {
        let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let count = somaxconn.trim().parse::<usize>().unwrap().min(200);
        let (listener, bound) = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let ListenAddress::Tcp(address) = bound else { panic!("{bound}") };
        let timeout = std::time::Duration::from_secs(5);
        let connect = || std::net::TcpStream::connect_timeout(&address, timeout);
        let streams: Vec<_> = (0..count).map(|_| connect().unwrap()).collect();
        drop((streams, listener));
    }
}
