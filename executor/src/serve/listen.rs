//! Where a door is: a port, or a socket in a folder.

use std::fmt;
use std::fs::Permissions;
use std::io::{Error, ErrorKind, Result};
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener, UnixStream};

/// What a path begins with, to tell it from an address.
const UNIX: &str = "unix:";
/// Who may connect to a socket in a folder: its owner and its group.
const MODE: u32 = 0o660;
/// How many connections the system keeps until they are taken, as far as it lets us. When there is no room,
/// whoever asks next is not heard for a second; the 128 of the standard library are full in a moment.
const BACKLOG: u32 = 4096;

/// Where to listen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Listen {
    /// A port.
    Tcp(SocketAddr),
    /// A socket in a folder.
    Unix(PathBuf),
}

impl Listen {
    /// Whether only this machine can connect.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.ip().is_none_or(|ip| ip.is_loopback())
    }

    /// The address, when it is a port.
    #[must_use]
    pub fn ip(&self) -> Option<IpAddr> {
        match self {
            Self::Tcp(address) => Some(address.ip()),
            Self::Unix(_) => None,
        }
    }
}

impl fmt::Display for Listen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => address.fmt(f),
            Self::Unix(path) => write!(f, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for Listen {
    type Err = &'static str;

    /// Reads an address or a name with a port, or `unix:` and a path. A name is resolved; of its addresses,
    /// IPv4 comes first, because not every machine has the other.
    fn from_str(text: &str) -> std::result::Result<Self, Self::Err> {
        if let Some(path) = text.strip_prefix(UNIX).filter(|path| !path.is_empty()) {
            return Ok(Self::Unix(path.into()));
        }
        let found = text.to_socket_addrs().ok().and_then(|found| found.min_by_key(SocketAddr::is_ipv6));
        found.map(Self::Tcp).ok_or(
            "has to be an address or a name and a port, such as `127.0.0.1:7420` or `localhost:7420`, or a socket such as \
             `unix:/run/a2g/executor.sock`",
        )
    }
}

/// A place that is listened on.
pub(super) enum Listener {
    Tcp(TcpListener),
    Unix(Socket),
}

/// A socket in a folder, which is gone with this value.
pub(super) struct Socket {
    listener: UnixListener,
    path: PathBuf,
    /// Which file it is: another one at the same path is somebody else's.
    file: Option<(u64, u64)>,
}

/// Somebody who connected.
pub(super) enum Stream {
    Tcp(TcpStream),
    Unix(UnixStream),
}

impl Listener {
    /// Binds a place, and says where it is: the system chooses a port for port 0.
    ///
    /// # Ambient Authority
    /// Takes the port; or makes the socket, in the place of one that nobody listens on any more.
    pub(super) async fn bind(place: &Listen) -> Result<(Self, Listen)> {
        match place {
            Listen::Tcp(address) => {
                let listener = port(*address)?;
                let place = Listen::Tcp(listener.local_addr()?);
                Ok((Self::Tcp(listener), place))
            }
            Listen::Unix(path) => {
                remove_stale(path).await?;
                let listener = private_socket(path)?;
                Ok((Self::Unix(Socket { listener, path: path.clone(), file: file_at(path) }), place.clone()))
            }
        }
    }

    pub(super) async fn accept(&self) -> Result<Stream> {
        match self {
            Self::Tcp(listener) => {
                let (stream, _) = listener.accept().await?;
                if let Err(error) = stream.set_nodelay(true) {
                    tracing::debug!(%error, "a connection keeps Nagle's algorithm");
                }
                Ok(Stream::Tcp(stream))
            }
            Self::Unix(socket) => socket.listener.accept().await.map(|(stream, _)| Stream::Unix(stream)),
        }
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if self.file.is_some() && file_at(&self.path) == self.file {
            let _gone_already = std::fs::remove_file(&self.path);
        }
    }
}

/// Takes a port.
fn port(address: SocketAddr) -> Result<TcpListener> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // As the standard library does: a port that was closed a moment ago is free.
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(BACKLOG)
}

/// Makes a socket to which nobody else could ever connect: it gets its mode where only we can look.
fn private_socket(path: &Path) -> Result<UnixListener> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let hidden = tempfile::Builder::new().prefix(".a2g").tempdir_in(folder)?;
    let made = hidden.path().join("s");
    let listener = UnixListener::bind(&made)?;
    std::fs::set_permissions(&made, Permissions::from_mode(MODE))?;
    std::fs::rename(&made, path)?;
    Ok(listener)
}

/// Which file is at a path, by its device and its number there.
fn file_at(path: &Path) -> Option<(u64, u64)> {
    std::fs::symlink_metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Removes a socket that a process left which did not end by itself.
async fn remove_stale(path: &Path) -> Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            Err(Error::new(ErrorKind::AlreadyExists, "something else than a socket is there"))
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
    fn places_are_read_as_they_are_written() {
        for text in ["127.0.0.1:7420", "[::1]:1", "unix:/run/a2g/executor.sock", "unix:here"] {
            assert_eq!(text.parse::<Listen>().unwrap().to_string(), text);
        }
        for text in ["unix:", "7420", "127.0.0.1", ""] {
            assert!(text.parse::<Listen>().is_err(), "{text}");
        }
        assert!("unix:/x".parse::<Listen>().unwrap().is_local());
        assert!(!"0.0.0.0:1".parse::<Listen>().unwrap().is_local());
    }

    #[tokio::test]
    async fn a_socket_that_was_left_behind_is_replaced_and_one_in_use_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let place = Listen::Unix(folder.path().join("socket"));
        let Listen::Unix(path) = &place else { unreachable!() };
        // The standard library leaves its sockets behind.
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
        let (first, _) = Listener::bind(&place).await.unwrap();
        assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, MODE);
        assert_eq!(Listener::bind(&place).await.err().unwrap().kind(), ErrorKind::AddrInUse);
        drop(first);
        assert!(!path.exists());
        let (moved, _) = Listener::bind(&place).await.unwrap();
        std::fs::rename(path, folder.path().join("away")).unwrap();
        std::fs::write(path, "somebody else's").unwrap();
        drop(moved);
        std::fs::remove_file(path).unwrap();
        std::fs::write(path, "a file").unwrap();
        assert_eq!(Listener::bind(&place).await.err().unwrap().kind(), ErrorKind::AlreadyExists);
    }

    /// While nobody takes them: those who are not heard try again only after a second.
    #[tokio::test]
    async fn many_may_ask_at_once() {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
        let many = most.trim().parse::<usize>().unwrap().min(200);
        let (listener, place) = Listener::bind(&"127.0.0.1:0".parse().unwrap()).await.unwrap();
        let Listen::Tcp(address) = place else { panic!("{place}") };
        let soon = std::time::Duration::from_secs(5);
        let ask = || std::net::TcpStream::connect_timeout(&address, soon);
        let held: Vec<_> = (0..many).map(|_| ask().unwrap()).collect();
        drop((held, listener));
    }
}
