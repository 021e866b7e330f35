//! The console on a port of its own.

use harness::console::{Client, request, shown};
use harness::methods::{ESCALATES, write};
use harness::*;
use std::net::SocketAddr;

/// An executor whose console has a port of its own, and the address of that port.
fn start(options: Options) -> (Executor, SocketAddr) {
    let executor = Executor::start(options.set("console.listen", "127.0.0.1:0"));
    let line = executor.line_with("the console is at http://");
    let origin = line.split("http://").nth(1).expect("an origin").split('/').next().expect("an address");
    let address = origin.parse().expect("an address");
    (executor, address)
}

#[test]
fn the_console_has_a_port_of_its_own_and_nothing_else_is_on_it() {
    let (executor, console) = start(Options::new());
    let get = |address, path: &str| request(address, &format!("GET {path} HTTP/1.1"), "").0;
    assert_eq!([get(executor.address(), "/console"), get(executor.address(), "/health")], [404, 200]);
    let others = ["/jsonrpc", "/metrics", "/mcp", "/v1/tasks", "/.well-known/agent-card.json"];
    assert_eq!(others.map(|path| get(console, path)), [404; 5]);
    assert_eq!([get(console, "/health"), get(console, "/console/sign-in")], [200, 200]);
    let posted = request(console, "POST /jsonrpc HTTP/1.1\r\nContent-Type: application/json", "{}");
    assert_eq!(posted.0, 404, "{}", posted.1);
    // A page of another site, or of the agents' port, is refused as on the other port.
    for (name, value) in [("Host", "evil.example"), ("Origin", &*format!("http://{}", executor.address()))] {
        let head = match name {
            "Host" => format!("GET /console/sign-in HTTP/1.1\r\nX: y\r\nHost: {value}"),
            _ => format!("POST /console/stop HTTP/1.1\r\n{name}: {value}"),
        };
        let (status, _, body) = request(console, &head, "");
        assert!([400, 403].contains(&status), "{name}: {status} {body}");
    }
    // The link leads to this port, and a decision there runs the call.
    let client = Client::local_at(&executor, console);
    let call = intent("write_file", write("decided", ESCALATES));
    assert_eq!(result(&executor.rpc("a2g/intent", &call))["verdict"], "ESCALATE");
    let path = format!("/console/decide/{}", call["intent_id"].as_str().expect("an id"));
    let fields = shown(&client.get(&path).1);
    let mut form = vec![("form_token", client.token.as_str()), ("action", "approve")];
    form.extend(fields.iter().map(|(name, value)| (name.as_str(), value.as_str())));
    assert_eq!(client.post(&path, &form, "").0, 303);
    eventually("it ran", || executor.file("decided"));
}

#[test]
fn a_port_that_other_machines_reach_needs_callers() {
    let home =
        Home::new(Options::new().set("console.listen", "0.0.0.0:0").set("server.listen", "127.0.0.1:0"));
    let refused = home.run(&["serve"]);
    let text = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && text.contains("`console.listen` is 0.0.0.0:0"), "{text}");
    for (listen, words) in [
        ("unix:/tmp/console.sock", "is a Unix socket, which no browser opens"),
        ("127.0.0.1", "has to be an address or a name and a port"),
        ("127.0.0.1:7420", "is the same address as `server.listen`"),
    ] {
        let options = Options::new().set("server.listen", "127.0.0.1:7420").set("console.listen", listen);
        let checked = Home::new(options).run(&["config", "check"]);
        let text = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert!(
            !checked.status.success() && text.contains("`console.listen`") && text.contains(words),
            "{listen}: {text}"
        );
    }
}
