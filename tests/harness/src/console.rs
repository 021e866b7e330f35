//! A client of the console that is no browser.

use super::Executor;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// The link with which the person who started the executor signs in.
pub fn link(executor: &Executor) -> String {
    link_at(executor, executor.address())
}

/// The same for a console at another address.
pub fn link_at(executor: &Executor, console: SocketAddr) -> String {
    let mut file = executor.home().journal().into_os_string();
    file.push(".console");
    let link = std::fs::read_to_string(file).expect("the link is written");
    let path = link.trim().strip_prefix(&format!("http://{console}")).expect("it is a link to this executor");
    path.to_owned()
}

/// Sends one request as raw HTTP. Returns the status, the head and the body.
pub fn request(address: SocketAddr, head: &str, body: &str) -> (u16, String, String) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let length = body.len();
    let head = format!("{head}\r\nHost: {address}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    stream.write_all(body.as_bytes()).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    // A download may be of any bytes.
    let answer = String::from_utf8_lossy(&answer);
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head.to_owned(), body.to_owned())
}

/// A session of a client that is no browser: its cookie, and the token of its forms.
pub struct Client {
    pub address: SocketAddr,
    pub cookie: String,
    pub token: String,
}

impl Client {
    pub fn local(executor: &Executor) -> Self {
        Self::local_at(executor, executor.address())
    }

    pub fn local_at(executor: &Executor, console: SocketAddr) -> Self {
        let link = link_at(executor, console);
        let (status, head, _) = request(console, &format!("GET {link} HTTP/1.1"), "");
        assert_eq!(status, 200, "{head}");
        Self::new(console, &head)
    }

    pub fn with_token(executor: &Executor, token: &str) -> Self {
        let post = "POST /console/sign-in HTTP/1.1\r\nContent-Type: application/x-www-form-urlencoded";
        let (status, head, _) = request(executor.address(), post, &format!("token={token}"));
        assert_eq!(status, 303, "{head}");
        Self::new(executor.address(), &head)
    }

    fn new(address: SocketAddr, head: &str) -> Self {
        let cookie = head.lines().find_map(|line| line.strip_prefix("set-cookie: ")).expect("a cookie");
        for attribute in ["HttpOnly", "SameSite=Strict", "Path=/console", "Max-Age=43200"] {
            assert!(cookie.contains(attribute), "{cookie}");
        }
        let cookie = cookie.split(';').next().unwrap().to_owned();
        let mut client = Self { address, cookie, token: String::new() };
        let (status, page) = client.get("/console");
        assert_eq!(status, 200, "{page}");
        client.token = field(&page, "form_token");
        client
    }

    pub fn get(&self, path: &str) -> (u16, String) {
        let (status, _, body) =
            request(self.address, &format!("GET {path} HTTP/1.1\r\nCookie: {}", self.cookie), "");
        (status, body)
    }

    pub fn post(&self, path: &str, fields: &[(&str, &str)], headers: &str) -> (u16, String) {
        let fields = fields.iter().map(|(name, value)| format!("{name}={}", percent(value)));
        let body = fields.collect::<Vec<_>>().join("&");
        let head = format!(
            "POST {path} HTTP/1.1\r\nCookie: {}\r\nContent-Type: application/x-www-form-urlencoded{headers}",
            self.cookie
        );
        let (status, _, answer) = request(self.address, &head, &body);
        (status, answer)
    }
}

pub fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// The value of the first hidden field with this name.
pub fn field(page: &str, name: &str) -> String {
    let marker = format!("name=\"{name}\" value=\"");
    page.split_once(&marker).expect("the field").1.split('"').next().unwrap().to_owned()
}

/// The names and values of a form's fields.
pub type Fields = Vec<(String, String)>;

/// The fields of the decision page as it is shown.
pub fn shown(page: &str) -> Fields {
    let number = |name: &str| {
        let input = page.split_once(&format!("id=\"{name}\"")).expect("the limit").1;
        let input = input.split_once('>').unwrap().0;
        (name.to_owned(), input.split_once("value=\"").unwrap().1.split('"').next().unwrap().to_owned())
    };
    let mut fields = ["memory", "cpu", "timeout"].map(number).to_vec();
    fields.push(("basis".to_owned(), field(page, "basis")));
    // As if the page had been open for longer than an approval needs.
    let shown_at = field(page, "shown_at").parse::<u64>().expect("a time") - 1_500;
    fields.push(("shown_at".to_owned(), shown_at.to_string()));
    for scope in page.split("name=\"scope\" value=\"").skip(1) {
        fields.push(("scope".to_owned(), scope.split('"').next().unwrap().to_owned()));
    }
    fields
}
