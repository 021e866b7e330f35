//! A configuration is understood as a whole or refused with its line and key.

use super::*;

/// Parses a configuration in `/srv/a2g`.
pub(super) fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("executor.toml"), Path::new("/srv/a2g")).map_err(|error| error.to_string())
}

#[test]
fn the_defaults_are_whole() {
    let config = parse("").unwrap();
    assert_eq!(config.listen.to_string(), "127.0.0.1:7420");
    assert_eq!(config.ceilings.limits[Limit::Memory], 256 << 20);
    assert!(!config.ceilings.network);
    let limits = config.ceilings.limits;
    let counts = [Limit::Created, Limit::Handles, Limit::Subscriptions, Limit::RandomBytes];
    assert_eq!(counts.map(|limit| limits[limit]), [10_000, 1024, 128, 16 << 20]);
    assert_eq!(limits[Limit::Written], 1 << 30);
    assert_eq!((limits[Limit::DirectoryEntries], limits.limited(Limit::Fuel)), (1_000_000, None));
    assert_eq!(config.ceilings.hosts.allowed, Some(Vec::new()));
    assert_eq!((config.egress.allowed_addresses, config.egress.hosts.len()), (Vec::new(), 0));
    let network = config.ceilings.network_budgets;
    assert_eq!((network.requests, network.connections), (100, 8));
    assert_eq!((network.sent_bytes, network.received_bytes), (16 << 20, 64 << 20));
    assert_eq!(config.catalog, Path::new("/srv/a2g/tools"));
    assert_eq!((config.risk, config.drain), (RiskThresholds::default(), None));
    let strict =
        parse("[governor]\nconditions_from = 0\ndeny_from = 1\n[executor]\ndrain_seconds = 3\n").unwrap();
    assert_eq!(
        (strict.risk.conditions_from, strict.risk.escalate_from, strict.risk.deny_from),
        (0.0, 0.7, 1.0)
    );
    assert_eq!(strict.drain, Some(Duration::from_secs(3)));
}

#[test]
fn errors_name_line_and_key() {
    let cases = [
        ("[ceilings]\nmax_memory_mb = 0\n", "line 2", "ceilings.max_memory_mb"),
        ("\nceilings = { max_memory_mb = 0 }\n", "line 2", "ceilings.max_memory_mb"),
        ("[ceilings]\n\n\"max_memory_mb\" = 0\n", "line 3", "ceilings.max_memory_mb"),
        ("[server]\nlisten = \"nowhere\"\n", "line 2", "server.listen"),
        ("\n[ceilings]\nfilesystem_scope = [\"/**\"]\n", "line 3", "ceilings.filesystem_scope"),
        ("[executor]\ndid = \"me\"", "line 2", "executor.did"),
        ("[trust]\nkeys = \"keys\"", "", "`executor.did` has to be set where `trust.keys` is"),
        ("[trust]\nmax_proof_seconds = 604801", "line 2", "trust.max_proof_seconds"),
        ("[governor]\nurl = \"ftp://x\"", "line 2", "governor.url"),
        ("[ceilings]\nmax_memry_mb = 5\n", "line 2", "max_memry_mb"),
        (
            "[ceilings]\nmax_handles = 31\n",
            "line 2",
            "`ceilings.max_handles` must be an integer from 32 to 65536",
        ),
        ("[ceilings]\nmax_subscriptions = 0\n", "line 2", "ceilings.max_subscriptions"),
        ("[ceilings]\nmax_random_bytes = 1000000001\n", "line 2", "ceilings.max_random_bytes"),
        ("[ceilings]\nmax_directory_entries = 0\n", "line 2", "ceilings.max_directory_entries"),
        ("[ceilings]\nmax_fuel = 0\n", "line 2", "ceilings.max_fuel"),
        ("[ceilings]\nmax_memory_mb = \"5\"\n", "line 2", "max_memory_mb"),
        ("[ceilings]\nmax_memory_mb = -1\n", "line 2", "max_memory_mb"),
        ("[ceilings]\ntimeout_seconds = 1e3\n", "line 2", "timeout_seconds"),
        ("[governor]\nheartbeat_seconds = 0\n", "line 2", "governor.heartbeat_seconds"),
        ("[governor]\nconditions_from = -0.1\n", "line 2", "governor.conditions_from"),
        (
            "[governor]\ndeny_from = 1.1\n",
            "line 2",
            "`governor.deny_from` is 1.1 and has to be from 0.7 to 1.0",
        ),
        ("[governor]\nescalate_from = nan\n", "line 2", "governor.escalate_from"),
        (
            "[governor]\nescalate_from = 0.9\n",
            "",
            "`governor.deny_from` is 0.8 and has to be from 0.9 to 1.0",
        ),
        ("[[mount]]\nguest = \"workspace\"\nhost = \".\"\n", "line 2", "mount.guest"),
        ("server = 5\n", "line 1", "server"),
        ("[executor]\nisolation = \"proces\"\n", "line 2", "isolation"),
        (
            "[executor]\nrenew_runs = 0\n",
            "line 2",
            "`executor.renew_runs` must be an integer from 1 to 1000000",
        ),
        (
            "[executor]\nrenew_seconds = 86401\n",
            "line 2",
            "`executor.renew_seconds` must be an integer from 1 to",
        ),
        ("[server\n", "line 1", "server"),
        ("[network]\nallowed_domains = [\"https://a.com\"]\n", "line 2", "network.allowed_domains"),
        ("[network]\nblocked_domains = [\"a@b.com\"]\n", "line 2", "network.blocked_domains"),
        ("[network]\nallowed_addresses = [\"10.0.0.1/8\"]\n", "line 2", "network.allowed_addresses"),
        ("[network]\nmax_requests = 0\n", "line 2", "network.max_requests"),
        ("[network]\nmax_connections = 65\n", "line 2", "network.max_connections"),
        ("[network]\nmax_received_bytes = -1\n", "line 2", "max_received_bytes"),
        ("[network.hosts]\n\"10.0.0.1\" = [\"10.0.0.1\"]\n", "line 1", "network.hosts"),
        ("[network.hosts]\n\"a.com\" = []\n", "line 1", "network.hosts"),
        ("[network.hosts]\n\"a.com\" = [\"b.com\"]\n", "line 2", "a.com"),
    ];
    for (text, line, key) in cases {
        let error = parse(text).unwrap_err();
        assert!(error.contains(line) && error.contains(key), "{text:?}: {error}");
    }
}

#[test]
fn a_wrong_key_is_told_the_nearest_right_one() {
    for (text, nearest) in [
        ("[ceilings]\nmax_memry_mb = 5\n", "`max_memry_mb` (did you mean `max_memory_mb`?), expected"),
        ("[sever]\nlisten = \"x\"\n", "`sever` (did you mean `server`?), expected"),
        ("[executor]\nisolation = \"proces\"\n", "`proces` (did you mean `process`?), expected"),
        ("[doors.a2a]\ndialekt = \"acp\"\n", "`dialekt` (did you mean `dialect`?), expected"),
    ] {
        let error = parse(text).unwrap_err();
        assert!(error.contains(nearest), "{text}: {error}");
    }
    assert!(!parse("[ceilings]\nxyz = 5\n").unwrap_err().contains("did you mean"));
}

#[test]
fn a_name_to_listen_on_is_resolved() {
    assert_eq!(parse("[server]\nlisten = \"localhost:80\"\n").unwrap().listen.to_string(), "127.0.0.1:80");
    assert!(parse("[server]\nlisten = \"localhost\"\n").is_err());
}

#[test]
fn a_door_of_callers_with_certificates_needs_their_list() {
    let tls = "[server.tls]\ncertificate = \"s.pem\"\nkey = \"s.key\"\nclient_ca = \"c.pem\"\n";
    assert!(parse(tls).unwrap_err().contains("`server.tls.client_ca` needs `server.callers`"));
    let config = parse(&format!("[server]\ncallers = \"callers.toml\"\n{tls}")).unwrap();
    assert!(config.tls.unwrap().client_ca.unwrap().ends_with("c.pem"));
    let socket = "[server]\ncallers = \"callers.toml\"\nlisten = \"unix:executor.sock\"\n";
    assert!(parse(socket).unwrap().listen.is_local());
    assert!(parse(&format!("{socket}{tls}")).unwrap_err().contains("is for a TCP port"));
}

#[test]
fn an_issuer_has_keys_an_audience_and_a_list_of_who_its_tokens_are_about() {
    let server = "[executor]\ndid = \"did:a:b\"\n[server]\ncallers = \"callers.toml\"\n";
    let issuer =
        |more: &str| format!("[[server.issuer]]\nissuer = \"https://a.example\"\nkeys = \"a.jwks\"\n{more}");
    let issuers = parse(&format!("{server}{}", issuer(""))).unwrap().issuers;
    let [only] = issuers.as_slice() else { panic!("{issuers:?}") };
    assert_eq!((only.issuer.as_str(), &*only.audience), ("https://a.example", "did:a:b"));
    assert_eq!(only.keys, Path::new("/srv/a2g/a.jwks"));
    let named = parse(&format!("{server}{}", issuer("audience = \"tools\"\n"))).unwrap();
    assert_eq!(named.issuers[0].audience, "tools");
    let refused = |text: String, words: &str| {
        let error = parse(&text).unwrap_err();
        assert!(error.contains("`server.issuer`") && error.contains(words), "{error}");
    };
    refused(format!("[executor]\ndid = \"did:a:b\"\n{}", issuer("")), "needs `server.callers`");
    refused(format!("[server]\ncallers = \"c.toml\"\n{}", issuer("")), "needs an `audience`");
    assert!(parse(&format!("[server]\ncallers = \"c.toml\"\n{}", issuer("audience = \"tools\"\n"))).is_ok());
    refused(format!("{server}{}", issuer("audience = \"\"\n")), "empty `audience`");
    refused(
        format!("{server}{}", issuer("").replace("https://a.example", "a b")),
        "not the name of an issuer",
    );
    refused(format!("{server}{}", issuer("").repeat(2)), "twice");
    let reachable = issuer("").replace("a.jwks", "/tmp/a.jwks");
    assert!(
        parse(&format!("{REACHES_TMP}{server}{reachable}")).unwrap_err().contains("/tmp/a.jwks"),
        "a guest could change it"
    );
}

/// A scope that an operator wrote, which is not narrowed as a default is.
pub(super) const REACHES_TMP: &str = "[ceilings]\nfilesystem_scope = [\"/tmp/**\"]\n";

#[test]
fn a_notification_has_a_reachable_webhook_a_key_and_a_link_that_works() {
    let hook = |url: &str| format!("[[console.notify]]\nurl = \"{url}\"\nkey_file = \"hook.key\"\n");
    let example = hook("https://hooks.example.com/a2g/SECRET");
    let console = parse(&example).unwrap().console;
    let [only] = console.notify.as_slice() else { panic!("{console:?}") };
    assert_eq!(only.url.as_str(), "https://hooks.example.com/a2g/SECRET");
    assert_eq!(
        (only.url.host().to_string(), only.url.to_string()),
        ("hooks.example.com".into(), "https://hooks.example.com:443".into())
    );
    assert_eq!(only.key_file, Path::new("/srv/a2g/hook.key"));
    assert!(console.public_url.is_none() && !format!("{console:?}").contains("SECRET"));
    let public = format!("[console]\npublic_url = \"https://tools.example.com/\"\n{example}");
    assert_eq!(parse(&public).unwrap().console.public_url.unwrap().to_string(), "https://tools.example.com");
    let anywhere = "[server]\nlisten = \"0.0.0.0:7420\"\n";
    assert!(parse(&format!("{anywhere}{public}")).is_ok() && parse(anywhere).is_ok());
    let allowed = "[network]\nallowed_addresses = [\"127.0.0.1:9000\"]\nhosts = { \"chat.internal\" = [\"127.0.0.1\"] }\n";
    for url in ["http://127.0.0.1:9000/", "http://chat.internal:9000/"] {
        assert!(parse(&format!("{allowed}{}", hook(url))).is_ok(), "{url}");
    }
    for (text, words) in [
        (format!("[console]\nenabled = false\n{example}"), "`console.notify` needs the console"),
        (format!("[server]\nlisten = \"unix:a.sock\"\n{example}"), "`console.notify` needs the console"),
        (format!("{anywhere}{example}"), "`console.public_url` is required"),
        (
            "[console]\npublic_url = \"https://a.example/console\"\n".to_owned(),
            "line 2: `console.public_url` has to be",
        ),
        (hook("hooks.example.com"), "line 2: `console.notify.url` has to be"),
        (hook("ftp://hooks.example.com/"), "`console.notify.url` has to be"),
        (hook("https://person@hooks.example.com/SECRET"), "`console.notify.url` has to be"),
        (hook("http://127.0.0.1:9000/"), "list `127.0.0.1:9000` in `network.allowed_addresses`"),
        (hook("https://169.254.169.254/"), "list `169.254.169.254:443` in"),
        (format!("{allowed}{}", hook("http://chat.internal:9001/SECRET")), "list `127.0.0.1:9001` in"),
        (format!("{example}{}", hook("http://[::1]:9000/")), "line 5: `console.notify.url` resolves to ::1"),
        (example.repeat(2), "line 5: `console.notify.url` is also the URL of another"),
        ((0..17).map(|n| hook(&format!("https://{n}.example.com/"))).collect(), "may have at most 16"),
        ("[[console.notify]]\nurl = \"https://a.example/\"\n".to_owned(), "key_file"),
        (format!("{example}secret = \"x\"\n"), "secret"),
        (
            format!("{REACHES_TMP}{}", example.replace("hook.key", "/tmp/hook.key")),
            "(`console.notify.key_file`)",
        ),
    ] {
        let error = parse(&text).unwrap_err();
        assert!(error.contains(words) && (words == "secret" || !error.contains("SECRET")), "{text}: {error}");
    }
}

#[test]
fn an_agent_has_a_share_of_what_there_is() {
    let of = |text: &str| parse(&format!("[executor]\n{text}")).map(|config| config.capacity);
    let share = |capacity: Capacity| (capacity.concurrent_per_agent, capacity.queue_per_agent);
    assert_eq!(share(of("concurrent = 1\nqueue = 1\n").unwrap()), (1, 1));
    assert_eq!(share(of("concurrent = 10\nqueue = 10\n").unwrap()), (8, 3));
    assert_eq!(
        share(of("concurrent = 10\nconcurrent_per_agent = 10\nqueue_per_agent = 7\n").unwrap()),
        (10, 7)
    );
    assert!(of("concurrent = 10\nconcurrent_per_agent = 11\n").unwrap_err().contains("concurrent_per_agent"));
    assert!(of("queue = 10\nqueue_per_agent = 0\n").unwrap_err().contains("queue_per_agent"));
}

#[test]
fn two_mounts_that_share_a_guest_path_are_refused() {
    let mount = "[[mount]]\nguest = \"/workspace\"\nhost = \"a\"\n";
    assert!(parse(mount).is_ok());
    assert!(parse(&mount.repeat(2)).unwrap_err().contains("/workspace"));
    // Under one scope a path would be in the inner one, and under a wider scope in the outer.
    let nested = format!("{mount}[[mount]]\nguest = \"/workspace/deep\"\nhost = \"b\"\n");
    assert!(parse(&nested).unwrap_err().contains("keep mounts apart"));
}

#[test]
fn tools_of_registries_are_pinned_and_different() {
    let table = |digit: &str, more: &str| {
        let digest = digit.repeat(64);
        format!("[[catalog.remote]]\ntool = \"oci://registry.example.com/greet@sha256:{digest}\"\n{more}")
    };
    let tools = parse(&[table("a", "name = \"greet\"\n"), table("b", "")].concat()).unwrap().remote_tools;
    let names = tools.iter().map(|tool| tool.name.as_ref().map(ToolName::as_str)).collect::<Vec<_>>();
    assert_eq!(names, [Some("greet"), None]);
    let refused = |text: String, words: &str| {
        let error = parse(&text).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let tag = "[[catalog.remote]]\ntool = \"oci://registry.example.com/greet:1\"\n";
    refused(tag.to_owned(), "`a2g-executor tool add oci://registry.example.com/greet:1` prints");
    refused(table("a", "") + &table("a", ""), "line 4: `catalog.remote.tool` is the same package");
    let named = |digit| table(digit, "name = \"greet\"\n");
    refused(named("a") + &named("b"), "line 6: `catalog.remote.name` is `greet` in two tables");
    refused(table("a", "name = \"../x\"\n"), "`catalog.remote.name`");
}

#[test]
fn a_fleet_needs_a_build_that_has_it() {
    let parsed =
        parse("\n[fleet]\nname = \"a\"\nnode = \"b\"\nservers = [\"nats://c\"]\nkey_file = \"key\"\n");
    if cfg!(feature = "fleet") {
        assert!(parsed.unwrap().fleet.is_some());
    } else {
        let error = parsed.unwrap_err();
        assert!(
            error.contains("`fleet` needs") && error.contains("build with the feature `fleet`"),
            "{error}"
        );
    }
}
