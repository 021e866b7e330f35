//! Names whose answer changes or never arrives, which needs a resolver of the test's own.

use super::resolve::Resolve;
use super::*;
use a2g_capability::{Ceilings, Claims, Domain, Grant, HostClaims, HostPattern};
use a2g_types::clock::{Clock, SystemClock};
use a2g_types::ident::AgentDid;
use a2g_types::limit::{FileEffects, Layer, LimitMap, NetworkBudgets};
use a2g_types::outcome::DenialReason;
use a2g_types::quantity::{MemoryLimit, OutputLimit, Timeout};
use a2g_types::request::DeclaredRequest;
use http_body_util::{BodyExt as _, Empty, Full};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _};
use std::net::SocketAddr;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// A grant of the network under these budgets, for every name.
fn grant(budgets: NetworkBudgets) -> Grant {
    grant_with(budgets, FileEffects::Direct)
}

fn grant_with(budgets: NetworkBudgets, effects: FileEffects) -> Grant {
    grant_to(Claims::default(), budgets, effects)
}

/// As [`grant_with`], to a tool that sets these limits.
fn grant_to(tool: Claims, budgets: NetworkBudgets, effects: FileEffects) -> Grant {
    let ceilings = Ceilings {
        limits: LimitMap::defaults()
            .with(MemoryLimit::from_mb(64).unwrap())
            .with(Timeout::from_seconds(30).unwrap())
            .with(OutputLimit::from_bytes(1024).unwrap()),
        network: true,
        effects,
        hosts: HostClaims { allowed: Some(vec![HostPattern::EveryName]), ..HostClaims::default() },
        network_budgets: budgets,
        ..Ceilings::closed()
    };
    Grant::meet(super::test_authority(), [(Layer::Tool, tool)], &ceilings).unwrap()
}

fn agent() -> AgentDid {
    AgentDid::parse("did:a2g:one:1").unwrap()
}

/// A small budget of each kind.
const BUDGETS: NetworkBudgets = NetworkBudgets {
    requests: 10,
    connections: 2,
    sent_bytes: 1 << 20,
    received_bytes: 1 << 20,
    ..NetworkBudgets::ZERO
};

/// A resolver with one answer per look-up; it never answers after the last.
struct Changing(Mutex<Vec<Vec<IpAddr>>>);

impl Resolve for Changing {
    fn addresses<'a>(
        &'a self,
        _: &'a Domain,
    ) -> Pin<Box<dyn Future<Output = std::io::Result<Vec<IpAddr>>> + Send + 'a>> {
        Box::pin(async {
            let next = self.0.lock().pop();
            match next {
                Some(addresses) => Ok(addresses),
                None => std::future::pending().await,
            }
        })
    }
}

fn egress(answers: &[&[&str]], allowed_addresses: SocketAddr) -> Arc<Egress> {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock);
    let settings = EgressSettings {
        allowed_addresses: vec![allowed_addresses.to_string().parse().unwrap()],
        hosts: BTreeMap::new(),
        connect: Duration::from_millis(500),
    };
    let answers = answers.iter().rev().map(|list| list.iter().map(|text| text.parse().unwrap()).collect());
    let mut egress = Egress::new(settings, None, clock).unwrap();
    egress.resolver = Arc::new(Changing(Mutex::new(answers.collect())));
    Arc::new(egress)
}

/// A server that answers each connection with 204 and counts them.
async fn server() -> (SocketAddr, Arc<Mutex<usize>>) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let count = Arc::<Mutex<usize>>::default();
    let counting = Arc::clone(&count);
    a2g_runtime::spawn::spawn_run_task(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            *counting.lock() += 1;
            let mut head = [0; 1024];
            let _read = stream.read(&mut head).await;
            let _written = stream.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await;
        }
    });
    (address, count)
}

async fn ask(network: &Network, port: u16) -> Result<u16, EgressError> {
    ask_by("GET", network, port).await
}

async fn ask_by(method: &str, network: &Network, port: u16) -> Result<u16, EgressError> {
    let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::from_bytes(method.as_bytes()).unwrap();
    *request.uri_mut() = format!("http://changes.example:{port}/").parse().unwrap();
    let backend = network.backend().unwrap();
    backend.send(request, Timeouts::default()).await.map(|answer| answer.status().as_u16())
}

#[tokio::test]
async fn a_name_that_changes_its_answer_is_checked_each_time_and_asked_once() {
    let (address, connections) = server().await;
    // A second look-up for the same request would get the next answer, or none.
    let answers: [&[&str]; 5] =
        [&["127.0.0.1"], &["127.0.0.2"], &["127.0.0.1", "10.0.0.1"], &["127.0.0.1"], &[]];
    let egress = egress(&answers, address);
    let network = egress.open(&agent(), &grant(BUDGETS));
    let port = address.port();
    let denied = Err(DenialReason::Address.into());
    assert_eq!(ask(&network, port).await, Ok(204));
    assert_eq!(ask(&network, port).await, denied);
    assert_eq!(ask(&network, port).await, denied);
    assert_eq!(ask(&network, port).await, Ok(204));
    assert_eq!(*connections.lock(), 2);
    assert_eq!(ask(&network, port).await, Err(NetworkError::Name.into()));
    // A name server that never answers.
    assert_eq!(ask(&network, port).await, Err(NetworkError::ConnectTimeout.into()));
    let what = network.session().unwrap().denials().0;
    let what = what.iter().map(|denial| denial.what.as_str()).collect::<Vec<_>>();
    let authority = format!("http://changes.example:{port}");
    assert_eq!(what, [format!("{authority} (127.0.0.2)"), format!("{authority} (10.0.0.1)")]);
}

#[tokio::test]
async fn a_line_that_is_closed_sends_nothing() {
    let (address, connections) = server().await;
    let egress = egress(&[&["127.0.0.1"]], address);
    let network = egress.open(&agent(), &grant(BUDGETS));
    network.close();
    assert_eq!(ask(&network, address.port()).await, Err(NetworkError::RunEnded.into()));
    assert_eq!(*connections.lock(), 0);
}

async fn connect(network: &Network, address: SocketAddr) -> Result<Body, EgressError> {
    let upload = Empty::new().map_err(|never| match never {}).boxed_unsync();
    network.backend().unwrap().connect(address, upload).await
}

#[tokio::test]
async fn a_run_connects_only_to_what_its_own_look_ups_gave() {
    let (address, _) = server().await;
    // The second answer is for another name; after the last one no name resolves.
    let answers: [&[&str]; 3] = [&["127.0.0.1"], &["127.0.0.1", "10.0.0.1"], &["127.0.0.1"]];
    let egress = egress(&answers, address);
    let open = || egress.open(&agent(), &grant(BUDGETS));
    let run = open();
    let other = open();
    let look_up = |network: &Network, name: &str| network.backend().unwrap().look_up(name.to_owned());
    let not_looked_up = EgressError::from(DenialReason::NotLookedUp);
    assert_eq!(connect(&run, address).await.err(), Some(not_looked_up));
    assert_eq!(look_up(&run, "One.example.").await, Ok(vec![address.ip()]));
    assert_eq!(look_up(&other, "two.example").await, Err(DenialReason::Address.into()));
    assert_eq!(connect(&other, address).await.err(), Some(not_looked_up), "what one run found is no other's");
    // The name is not looked up again; it would have no address.
    drop(connect(&run, address).await.unwrap());
    drop(connect(&run, address).await.unwrap());
    let elsewhere = SocketAddr::new(address.ip(), address.port().wrapping_add(1));
    assert_eq!(connect(&run, elsewhere).await.err(), Some(DenialReason::Address.into()));
    let usage = run.session().unwrap().usage();
    // Refused, looked up and connected, connected again, refused.
    assert_eq!((usage.requests, usage.connections), (4, 1));
    assert_eq!(usage.contacted.len(), 1);
    assert_eq!(usage.contacted[0].authority, format!("tcp://one.example:{}", address.port()));
    assert_eq!(usage.contacted[0].requests, 2);
    run.close();
    assert_eq!(connect(&run, address).await.err(), Some(NetworkError::RunEnded.into()));
    assert_eq!(look_up(&run, "one.example").await, Err(NetworkError::RunEnded.into()));
}

#[tokio::test]
async fn a_run_whose_changes_wait_only_asks() {
    // Methods are case-sensitive.
    let methods = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "get", "QUERY"];
    for (effects, sent) in
        [(FileEffects::Direct, methods.len()), (FileEffects::Atomic, methods.len()), (FileEffects::Staged, 2)]
    {
        let (address, connections) = server().await;
        let egress = egress(&[&["127.0.0.1"][..]; 16], address);
        let open = || egress.open(&agent(), &grant_with(BUDGETS, effects));
        for (index, method) in methods.into_iter().enumerate() {
            let expected = if index < sent { Ok(204) } else { Err(DenialReason::Staged.into()) };
            assert_eq!(ask_by(method, &open(), address.port()).await, expected, "{effects:?}: {method}");
        }
        assert_eq!(*connections.lock(), sent, "{effects:?}");
        let run = open();
        run.backend().unwrap().look_up("one.example".to_owned()).await.unwrap();
        let refused = connect(&run, address).await.err();
        let expected = (effects == FileEffects::Staged).then(|| EgressError::from(DenialReason::Staged));
        assert_eq!(refused, expected, "{effects:?}");
        let usage = run.session().unwrap().usage();
        assert_eq!(usage.contacted.is_empty(), refused.is_some(), "{effects:?}");
    }
}

/// Requests that wait, with their bodies, and the room for more.
struct InMemory(Mutex<Vec<(HeldRequest, String)>>, Mutex<u64>);

impl HeldRequests for InMemory {
    fn reserve(&self, bytes: u64) -> bool {
        let mut left = self.1.lock();
        let rest = left.checked_sub(bytes);
        *left = rest.unwrap_or(*left);
        rest.is_some()
    }

    fn make_body(&self) -> std::io::Result<BodyFile> {
        Ok(BodyFile { name: 0, file: tempfile::tempfile()? })
    }

    fn keep(&self, request: HeldRequest, body: BodyFile) -> std::io::Result<u32> {
        let BodyFile { name: _, mut file } = body;
        let mut text = String::new();
        file.rewind()?;
        file.read_to_string(&mut text)?;
        let mut kept = self.0.lock();
        kept.push((request, text));
        Ok(u32::try_from(kept.len()).unwrap())
    }
}

/// Returns the status of the answer, and the number of the request that waits.
async fn post(network: &Network, url: &str, text: String) -> Result<(u16, String), EgressError> {
    let body = Full::new(Bytes::from(text)).map_err(|never| match never {}).boxed_unsync();
    let mut request = http::Request::new(body);
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = url.parse().unwrap();
    request.headers_mut().insert("x-one", "1".parse().unwrap());
    request.headers_mut().insert("connection", "x-one".parse().unwrap());
    let answer = network.backend().unwrap().send(request, Timeouts::default()).await?;
    let number = answer.headers().get("a2g-held").map(|number| number.to_str().unwrap().to_owned());
    Ok((answer.status().as_u16(), number.unwrap_or_default()))
}

#[tokio::test]
async fn requests_that_may_wait_are_kept_whole_and_sent_once_later() {
    let (address, connections) = server().await;
    let egress = egress(&[&["127.0.0.1"][..]; 4], address);
    let budgets = NetworkBudgets { held_requests: 3, sent_bytes: 4 << 20, ..BUDGETS };
    let kept = Arc::new(InMemory(Mutex::default(), Mutex::new(u64::MAX)));
    let open = |held| {
        let grant = grant_with(budgets, FileEffects::Staged);
        egress.open_holding(&agent(), &grant, held, SentSecrets::default())
    };
    let url = format!("http://changes.example:{}/one?x=1", address.port());
    let without = post(&open(None), &url, String::new()).await;
    assert_eq!(without, Err(DenialReason::Staged.into()));

    let held: Arc<dyn HeldRequests> = Arc::<InMemory>::clone(&kept);
    let run = open(Some(held));
    let body = "x".repeat(1 << 20);
    assert_eq!(post(&run, &url, body.clone()).await, Ok((202, "1".to_owned())));
    let refused = Err(DenialReason::HeldRequests.into());
    assert_eq!(post(&run, &url, format!("{body}x")).await, refused);
    assert_eq!(post(&run, &format!("{url}{}", "y".repeat(2048)), String::new()).await, refused);
    assert_eq!(post(&run, &url, String::new()).await, refused, "refused ones count");
    let other = format!("http://127.0.0.1:{}/", address.port());
    assert_eq!(post(&run, &other, String::new()).await, Err(DenialReason::IpLiteral.into()));
    assert_eq!(*connections.lock(), 0);

    let (request, text) = kept.0.lock().pop().unwrap();
    assert!(kept.0.lock().is_empty());
    let fields = vec![("x-one".to_owned(), "1".to_owned())];
    let expected = HeldRequest { method: "POST".into(), url, fields, secrets: Vec::new() };
    assert_eq!((&request, text == body), (&expected, true));
    let send = async |ceilings: &Ceilings| {
        egress.send_held(&agent(), ceilings, Vec::new(), &[], &request, b"sent".to_vec()).await
    };
    assert_eq!(send(&Ceilings::closed()).await, Err(DenialReason::DomainNotAllowed.into()));
    let hosts = HostClaims { allowed: Some(vec![HostPattern::EveryName]), ..HostClaims::default() };
    assert_eq!(send(&Ceilings { network: true, hosts, ..Ceilings::closed() }).await, Ok(204));
    assert_eq!(*connections.lock(), 1);
}

#[tokio::test]
async fn a_tool_that_declares_requests_sends_no_other_and_opens_no_connection() {
    let (address, connections) = server().await;
    let port = address.port();
    let url = format!("http://changes.example:{port}");
    let declared = ["GET", "POST"].map(|method| DeclaredRequest::parse(&format!("{method} {url}/")).unwrap());
    let claims = Claims { hosts: HostClaims::of_requests(&declared.into()), ..Claims::default() };
    let budgets = NetworkBudgets { held_requests: 3, ..BUDGETS };
    let kept = Arc::new(InMemory(Mutex::default(), Mutex::new(u64::MAX)));
    let held: Arc<dyn HeldRequests> = Arc::<InMemory>::clone(&kept);
    let egress = egress(&[&["127.0.0.1"][..]; 4], address);
    let grant = grant_to(claims, budgets, FileEffects::Staged);
    let run = egress.open_holding(&agent(), &grant, Some(held), SentSecrets::default());
    assert_eq!(ask(&run, port).await, Ok(204));
    for method in ["HEAD", "PUT", "get"] {
        let refused = Err(DenialReason::RequestNotDeclared.into());
        assert_eq!(ask_by(method, &run, port).await, refused, "{method}");
    }
    for path in ["/x", "//", "/%2e"] {
        let refused = Err(DenialReason::RequestNotDeclared.into());
        assert_eq!(post(&run, &format!("{url}{path}"), String::new()).await, refused, "{path}");
    }
    assert!(kept.0.lock().is_empty(), "what is refused does not wait");
    assert_eq!(post(&run, &format!("{url}/?x=1"), String::new()).await, Ok((202, "1".to_owned())));
    run.backend().unwrap().look_up("changes.example".to_owned()).await.unwrap();
    let refused = EgressError::from(DenialReason::RequestNotDeclared);
    assert_eq!(connect(&run, address).await.err(), Some(refused));
    assert_eq!(*connections.lock(), 1);
    let session = run.session().unwrap();
    assert_eq!(session.usage().allowed_requests.len(), 2);
    let denied = session.denials().0;
    assert_eq!(denied.first().unwrap().what, format!("HEAD {url}/"));
    assert_eq!(denied.last().unwrap().what, format!("tcp://changes.example:{port}"));
    assert!(denied.iter().all(|denial| denial.set_by == Some(Layer::Tool)), "{denied:?}");
}

#[tokio::test]
async fn each_part_of_what_waits_is_bounded() {
    let (address, _) = server().await;
    let egress = egress(&[], address);
    let budgets = NetworkBudgets { requests: 20, held_requests: 20, ..BUDGETS };
    let url = format!("http://changes.example:{}/", address.port());
    let open = |room: u64| {
        let held: Arc<dyn HeldRequests> = Arc::new(InMemory(Mutex::default(), Mutex::new(room)));
        egress.open_holding(
            &agent(),
            &grant_with(budgets, FileEffects::Staged),
            Some(held),
            SentSecrets::default(),
        )
    };
    let send = async |network: &Network, method: &str, field_bytes: usize| {
        let body = Empty::new().map_err(|never| match never {}).boxed_unsync();
        let mut request = http::Request::new(body);
        *request.method_mut() = http::Method::from_bytes(method.as_bytes()).unwrap();
        *request.uri_mut() = url.parse().unwrap();
        request.headers_mut().insert("x-long", "x".repeat(field_bytes).parse().unwrap());
        let answer = network.backend().unwrap().send(request, Timeouts::default()).await;
        answer.map(|answer| answer.status().as_u16())
    };
    let refused = EgressError::from(DenialReason::HeldRequests);
    let run = open(u64::MAX);
    assert_eq!(send(&run, &"X".repeat(32), 0).await, Ok(202));
    assert_eq!(send(&run, &"X".repeat(33), 0).await, Err(refused));
    assert_eq!(send(&run, &"X".repeat(65 << 10), 0).await, Err(NetworkError::RequestHead.into()));
    for _ in 0..4 {
        assert_eq!(send(&run, "POST", 60 << 10).await, Ok(202));
    }
    assert_eq!(send(&run, "POST", 60 << 10).await, Err(refused), "all fields of a run count together");
    assert_eq!(send(&run, "POST", 0).await, Ok(202));
    let small = open(9 << 10);
    assert_eq!(send(&small, "POST", 5 << 10).await, Err(refused), "no room for the fields");
    assert_eq!(post(&small, &url, "x".repeat(5 << 10)).await, Err(refused), "no room for the body");
    assert_eq!(send(&small, "POST", 0).await, Ok(202));
}

#[tokio::test]
async fn a_run_remembers_so_many_look_ups_and_the_latest() {
    let (address, _) = server().await;
    let answers = std::iter::once(&["127.0.0.1"][..]).chain([&["93.184.216.34"][..]; 256]);
    let egress = egress(&answers.collect::<Vec<_>>(), address);
    let run = egress.open(&agent(), &grant(NetworkBudgets { requests: 1000, ..BUDGETS }));
    let backend = run.backend().unwrap();
    for number in 0..256 {
        Arc::clone(&backend).look_up(format!("n{number}.example")).await.unwrap();
    }
    drop(connect(&run, address).await.unwrap());
    backend.look_up("last.example".to_owned()).await.unwrap();
    assert_eq!(connect(&run, address).await.err(), Some(DenialReason::NotLookedUp.into()));
}
