//! The servers of NATS that the tests of fleets start.

use harness::*;
use serde_json::{Value, json};

/// Creates a stream with this many replicas and no messages.
fn create_stream(servers: &NatsServers, nth: usize, replicas: usize) -> Option<Value> {
    let stream = json!({ "name": "kept", "subjects": ["kept"], "num_replicas": replicas });
    servers.ask(nth, "$JS.API.STREAM.CREATE.kept", &stream).filter(|answer| answer.get("error").is_none())
}

/// Publishes a message over one server, and waits until it is stored.
fn publish(servers: &NatsServers, nth: usize) {
    eventually("a message is stored", || servers.ask(nth, "kept", &json!({}))?["seq"].as_u64());
}

/// The number of messages that the stream has.
fn messages(servers: &NatsServers, nth: usize) -> Option<u64> {
    servers.ask(nth, "$JS.API.STREAM.INFO.kept", &json!({}))?["state"]["messages"].as_u64()
}

#[test]
fn a_killed_nats_server_starts_again_with_its_messages() {
    let Some(mut servers) = NatsServers::start_with(1, "jetstream { max_file_store: 8MB }") else { return };
    let large = json!({ "name": "large", "subjects": ["large"], "max_bytes": 9 << 20 });
    let refused = servers.ask(0, "$JS.API.STREAM.CREATE.large", &large).unwrap();
    assert!(refused["error"]["description"].as_str().unwrap().contains("storage"), "{refused}");
    create_stream(&servers, 0, 1).unwrap();
    publish(&servers, 0);
    servers.kill(0);
    assert_eq!(servers.ask(0, "kept", &json!({})), None);
    servers.restart(0);
    assert_eq!(messages(&servers, 0), Some(1));
    assert_eq!(servers.ask(0, "nobody.listens", &json!({})), None);
}

#[test]
fn three_nats_servers_go_on_without_their_leader() {
    let Some(mut servers) = NatsServers::start(3) else { return };
    eventually("a stream with three replicas", || create_stream(&servers, 0, 3));
    publish(&servers, 0);
    let killed = servers.leader().unwrap();
    servers.kill(killed);
    servers.wait_for_leader();
    let other = servers.leader().unwrap();
    assert_ne!(other, killed);
    publish(&servers, other);
    servers.restart(killed);
    servers.wait_for_leader();
    eventually("the restarted one answers", || messages(&servers, killed).filter(|messages| *messages >= 2));
    servers.pause(killed);
    // The signal reaches the threads of the server one after another.
    eventually("the paused one does not answer", || servers.monitor(killed, "/varz").is_none().then_some(()));
    servers.wait_for_leader();
    servers.resume(killed);
    eventually("the resumed one answers", || servers.monitor(killed, "/varz"));
    assert_eq!(servers.urls().len(), 3);
}
