//! The laws of the meet, and patterns that try to be wider than they look.

use super::*;
use crate::limit::{Access, Bound, Budgets, Layer, NetworkBudgets};
use crate::quantity::{CpuPercent, MemoryLimit, OutputLimit, Timeout};
use proptest::prelude::*;

fn tree(path: &str) -> Tree {
    Tree::parse_path(path).unwrap()
}

fn hosts(allowed: Option<&[&str]>, blocked: &[&str]) -> HostClaims {
    let patterns =
        |texts: &[&str]| texts.iter().map(|text| HostPattern::parse(text).unwrap()).collect::<Vec<_>>();
    HostClaims { allowed: allowed.map(patterns), blocked: patterns(blocked), requests_per_minute: None }
}

fn ceilings() -> Ceilings {
    Ceilings {
        memory: MemoryLimit::from_mb(256).unwrap(),
        cpu: CpuPercent::new(100).unwrap(),
        timeout: Timeout::from_seconds(60).unwrap(),
        output: OutputLimit::from_bytes(1 << 20).unwrap(),
        network: true,
        hosts: hosts(Some(&["*.com", "a.org"]), &["evil.com"]),
        network_budgets: NetworkBudgets { requests: 9, connections: 2, sent_bytes: 100, received_bytes: 100 },
        trees: vec![tree("/tmp"), tree("/workspace")],
        access: Access::ReadWrite,
        budgets: Budgets { written: MemoryLimit::from_mb(1024).unwrap(), created: 1000, hard_links: false },
    }
}

fn claims() -> impl Strategy<Value = Claims> {
    let paths = prop::sample::subsequence(vec!["/a", "/a/b", "/a/bc", "/a/b/c", "/d", "/d/e"], 0..4);
    let trees = prop::option::of(paths.prop_map(|paths| paths.into_iter().map(tree).collect()));
    let blocked = prop::sample::subsequence(vec!["/a/b/**", "/z/**", "/a/*.md"], 0..3);
    let names = || prop::sample::subsequence(vec!["*", "*.com", "a.com", "a.org"], 0..4);
    let reach = (prop::option::of(names()), names());
    (
        prop::option::of(1u64..4),
        prop::option::of(1u64..4),
        prop::option::of(1u64..4),
        prop::option::of(1u64..4),
        prop::option::of(any::<bool>()),
        reach,
        trees,
        prop::option::of(prop::sample::select(vec![Access::ReadOnly, Access::ReadWrite])),
        blocked,
    )
        .prop_map(|(memory, cpu, timeout, output, network, reach, trees, access, blocked)| Claims {
            memory: memory.map(|n| MemoryLimit::from_mb(n).unwrap()),
            cpu: cpu.map(|n| CpuPercent::new(n).unwrap()),
            timeout: timeout.map(|n| Timeout::from_seconds(n).unwrap()),
            output: output.map(|n| OutputLimit::from_bytes(n).unwrap()),
            network,
            hosts: hosts(reach.0.as_deref(), &reach.1),
            trees,
            access,
            blocked: blocked.into_iter().map(|text| Pattern::parse(text).unwrap()).collect(),
        })
}

fn limits() -> impl Strategy<Value = Limits> {
    let layers = [Layer::Verdict, Layer::Condition, Layer::StandingPolicy, Layer::Tool];
    (prop::sample::select(layers.to_vec()), claims()).prop_map(|(layer, claims)| Limits::of(layer, claims))
}

fn no_wider<T: Ord>(met: Option<&Bound<T>>, side: Option<&Bound<T>>) -> bool {
    match (met, side) {
        (Some(met), Some(side)) => met.value <= side.value,
        (None, Some(_)) => false,
        (_, None) => true,
    }
}

proptest! {
    #[test]
    fn meet_is_commutative(a in limits(), b in limits()) {
        prop_assert_eq!(a.clone().meet(b.clone()), b.meet(a));
    }

    #[test]
    fn meet_is_associative(a in limits(), b in limits(), c in limits()) {
        let left = a.clone().meet(b.clone()).meet(c.clone());
        prop_assert_eq!(left, a.meet(b.meet(c)));
    }

    #[test]
    fn meet_is_idempotent_and_says_nothing_new_to_silence(a in limits()) {
        prop_assert_eq!(a.clone().meet(a.clone()), a.clone());
        prop_assert_eq!(a.clone().meet(Limits::default()), a);
    }

    #[test]
    fn meet_is_never_wider(a in limits(), b in limits()) {
        let met = a.clone().meet(b.clone());
        for side in [&a, &b] {
            prop_assert!(no_wider(met.memory.as_ref(), side.memory.as_ref()));
            prop_assert!(no_wider(met.cpu.as_ref(), side.cpu.as_ref()));
            prop_assert!(no_wider(met.timeout.as_ref(), side.timeout.as_ref()));
            prop_assert!(no_wider(met.output.as_ref(), side.output.as_ref()));
            prop_assert!(no_wider(met.network.as_ref(), side.network.as_ref()));
            prop_assert!(no_wider(met.access.as_ref(), side.access.as_ref()));
            prop_assert!(met.blocked.is_superset(&side.blocked));
            if let Some(allowed) = &side.trees {
                let met = met.trees.as_ref().unwrap();
                prop_assert!(met.keys().all(|tree| allowed.keys().any(|wide| wide.covers(tree))));
            }
        }
    }

    #[test]
    fn a_grant_is_never_wider_than_the_ceilings(a in claims(), b in claims()) {
        let ceilings = ceilings();
        if let Ok(grant) = Grant::new([(Layer::Verdict, a), (Layer::Tool, b)], &ceilings) {
            prop_assert!(grant.memory().value <= ceilings.memory);
            prop_assert!(grant.cpu().value <= ceilings.cpu);
            prop_assert!(grant.timeout().value <= ceilings.timeout);
            prop_assert!(grant.output().value <= ceilings.output);
            for (pattern, _) in grant.reach().allowed() {
                let ceiling = ceilings.hosts.allowed.as_ref().unwrap();
                prop_assert!(ceiling.iter().any(|wide| wide.covers(pattern)));
            }
            prop_assert!(!grant.network().value || grant.reach().allowed().next().is_some());
            for tree in grant.trees() {
                prop_assert!(ceilings.trees.iter().any(|wide| wide.covers(&tree.value)));
            }
        }
    }
}

#[test]
fn patterns() {
    for (text, root) in [("/tmp/**", "/tmp"), ("/a/b/**", "/a/b")] {
        assert_eq!(Pattern::parse(text), Ok(Pattern::Tree(tree(root))));
    }
    for text in ["/tmp/x", "/tmp/*.md", "/tmp/*/**", "/data/{a,b}", "/data/2026-??.csv"] {
        let pattern = Pattern::parse(text).unwrap();
        assert!(matches!(pattern.into_tree(), Err(ScopeError::Unenforceable { .. })), "{text}");
    }
    let malformed = [
        "",
        "tmp/**",
        "/",
        "/**",
        "/*",
        "/*/x",
        "/a//b",
        "/a/../b/**",
        "/a/./b",
        "/a/**/",
        "/a\0/**",
        "/a/[x",
    ];
    for text in malformed {
        assert!(matches!(Pattern::parse(text), Err(ScopeError::Malformed { .. })), "{text:?}");
    }
}

#[test]
fn a_tree_covers_whole_components_only() {
    assert!(tree("/tmp").covers(&tree("/tmp/foo")));
    assert!(tree("/tmp").covers(&tree("/tmp")));
    assert!(!tree("/tmp").covers(&tree("/tmpfoo")));
    assert!(!tree("/tmp/foo").covers(&tree("/tmp")));
}

#[test]
fn a_grant_names_the_layer_of_each_limit() {
    let verdict = Claims {
        memory: MemoryLimit::from_mb(50).ok(),
        trees: Some(vec![tree("/tmp/a"), tree("/etc")]),
        network: Some(false),
        ..Claims::default()
    };
    let tool = Claims { access: Some(Access::ReadOnly), ..Claims::default() };
    let grant = Grant::new([(Layer::Verdict, verdict), (Layer::Tool, tool)], &ceilings()).unwrap();
    assert_eq!(grant.memory().layer, Layer::Verdict);
    assert_eq!(grant.timeout().layer, Layer::Executor);
    assert_eq!(grant.access(), Bound { value: Access::ReadOnly, layer: Layer::Tool });
    assert_eq!(grant.trees(), [Bound { value: tree("/tmp/a"), layer: Layer::Verdict }]);
    assert_eq!(grant.emptied_by(), None);
}

#[test]
fn a_grant_names_the_layer_that_left_no_tree() {
    let trees = |trees| Claims { trees: Some(trees), ..Claims::default() };
    let by = |verdict, standing| {
        let layers = [(Layer::Verdict, trees(verdict)), (Layer::StandingPolicy, trees(standing))];
        Grant::new(layers, &ceilings()).unwrap().emptied_by()
    };
    assert_eq!(by(vec![], vec![tree("/tmp")]), Some(Layer::Verdict));
    assert_eq!(by(vec![tree("/tmp")], vec![tree("/workspace")]), Some(Layer::StandingPolicy));
    assert_eq!(by(vec![tree("/etc")], vec![tree("/etc")]), Some(Layer::Executor));
}

#[test]
fn blocked_trees_are_taken_out_or_refuse() {
    let grant = |blocked: &str| {
        let claims = Claims {
            trees: Some(vec![tree("/tmp/a"), tree("/tmp/b")]),
            blocked: vec![Pattern::parse(blocked).unwrap()],
            ..Claims::default()
        };
        Grant::new([(Layer::StandingPolicy, claims)], &ceilings())
    };
    let left = grant("/tmp/a/**").unwrap();
    assert_eq!(left.trees().iter().map(|tree| tree.value.path()).collect::<Vec<_>>(), ["/tmp/b"]);
    assert_eq!(grant("/etc/**").unwrap().trees().len(), 2);
    assert!(matches!(grant("/tmp/a/secret/**"), Err(ScopeError::Unenforceable { .. })));
    assert!(matches!(grant("/tmp/a/*.key"), Err(ScopeError::Unenforceable { .. })));
}

#[test]
fn conditions() {
    assert_eq!(claims_of("read_only").unwrap().access, Some(Access::ReadOnly));
    assert_eq!(claims_of("no_network").unwrap().network, Some(false));
    assert_eq!(claims_of("max_memory_mb:5").unwrap().memory, MemoryLimit::from_mb(5).ok());
    assert_eq!(claims_of("timeout_seconds:5").unwrap().timeout, Timeout::from_seconds(5).ok());
    assert_eq!(claims_of("max_output_bytes:5").unwrap().output, OutputLimit::from_bytes(5).ok());
    assert_eq!(claims_of("filesystem_scope:/tmp/**").unwrap().trees, Some(vec![tree("/tmp")]));
    for unknown in
        ["", "read_only:", "READ_ONLY", "max_memory_mb", "max_memory_mb:", "max_memory_mb:+5", "human"]
    {
        assert!(matches!(claims_of(unknown), Err(ConditionError::Unknown(_))), "{unknown:?}");
    }
    assert!(matches!(claims_of("max_memory_mb:0"), Err(ConditionError::Number { .. })));
    assert!(matches!(claims_of("filesystem_scope:/tmp/*.md"), Err(ConditionError::Scope(_))));
}

#[test]
fn a_root_is_opened_beneath_its_mount_and_never_through_a_link() {
    let host = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(host.path().join("inside/deep")).unwrap();
    std::os::unix::fs::symlink("/etc", host.path().join("link")).unwrap();
    std::fs::write(host.path().join("file"), "").unwrap();
    let ceilings = ceilings();
    let mounts = Mounts::new(vec![Mount { guest: tree("/workspace"), host: host.path().into() }]).unwrap();
    let open = |path: &str| {
        let claims = Claims { trees: Some(vec![tree(path)]), ..Claims::default() };
        let grant = Grant::new([(Layer::Verdict, claims)], &ceilings).unwrap();
        Roots::open(&grant, &mounts, &ceilings.trees)
    };
    assert_eq!(open("/workspace/inside/deep").unwrap().as_slice().len(), 1);
    assert_eq!(open("/workspace").unwrap().as_slice().len(), 1);
    assert!(matches!(open("/workspace/absent"), Err(RootsError::Missing(_))));
    assert!(matches!(open("/workspace/link"), Err(RootsError::NotAFolder(_))));
    assert!(matches!(open("/workspace/file"), Err(RootsError::NotAFolder(_))));
}
