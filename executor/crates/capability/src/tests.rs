//! The algebraic laws of `meet`, and patterns that could match more than they appear to.

use super::*;
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::ident::ToolName;
use a2g_types::limit::{
    Access, Bound, ClaimedLimits, FileEffects, LIMITS, Layer, Limit, LimitMap, NetworkBudgets, budget_rows,
};
use a2g_types::quantity::MemoryLimit;
use a2g_types::tool::CallTargets;
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::time::Duration;

fn tree(path: &str) -> Tree {
    Tree::parse_path(path).unwrap()
}

fn hosts(allowed: Option<&[&str]>, blocked: &[&str]) -> HostClaims {
    let patterns =
        |texts: &[&str]| texts.iter().map(|text| HostPattern::parse(text).unwrap()).collect::<Vec<_>>();
    HostClaims { allowed: allowed.map(patterns), blocked: patterns(blocked), ..HostClaims::default() }
}

fn ceilings() -> Ceilings {
    Ceilings {
        network: true,
        hosts: hosts(Some(&["*.com", "a.org"]), &["evil.com"]),
        network_budgets: NetworkBudgets {
            requests: 9,
            connections: 2,
            sent_bytes: 100,
            received_bytes: 100,
            ..NetworkBudgets::ZERO
        },
        areas: vec![tree("/tmp").into(), tree("/workspace").into()],
        access: Access::ReadWrite,
        ..Ceilings::closed()
    }
}

/// A grant under [`ceilings`].
fn meet(layers: impl IntoIterator<Item = (Layer, Claims)>) -> Result<Grant, ScopeError> {
    Grant::meet(&Authority::for_tests(), layers, &ceilings())
}

fn claims() -> impl Strategy<Value = Claims> {
    let patterns = vec![
        "/a/**",
        "/a/b/**",
        "/a/bc/**",
        "/a/b/c/**",
        "/d/**",
        "/d/e/**",
        "/a/*/c",
        "/a/**/*.md",
        "/a/b/{c,d.md}",
        "/a/b/*/**",
        "/d/e",
    ];
    let patterns = prop::sample::subsequence(patterns, 0..4);
    let areas = prop::option::of(
        patterns.prop_map(|texts| texts.into_iter().flat_map(|text| Area::parse(text).unwrap()).collect()),
    );
    let blocked = prop::sample::subsequence(vec!["/a/b/**", "/z/**", "/a/*.md"], 0..3);
    let names = || prop::sample::subsequence(vec!["*", "*.com", "a.com", "a.org"], 0..4);
    let reach = (prop::option::of(names()), names());
    (
        prop::collection::vec(prop::option::of(1u64..4), Limit::ALL.len()),
        prop::option::of(any::<bool>()),
        reach,
        areas,
        prop::option::of(prop::sample::select(vec![Access::ReadOnly, Access::ReadWrite])),
        prop::option::of(prop::sample::select(vec![
            FileEffects::Direct,
            FileEffects::Atomic,
            FileEffects::Staged,
        ])),
        blocked,
        prop::option::of(targets()),
        prop::option::of(prop::sample::subsequence(vec!["a", "b", "c"], 0..3)),
    )
        .prop_map(|(numbers, network, reach, areas, access, effects, blocked, calls, secrets)| {
            let mut numbers = numbers.into_iter();
            Claims {
                // A number of units of each limit.
                limits: LimitMap::from_fn(|limit| {
                    let unit = limit.row().map_or(1, |row| row.unit.size());
                    numbers.next().flatten().map(|number| number * unit)
                }),
                network,
                hosts: hosts(reach.0.as_deref(), &reach.1),
                areas,
                access,
                effects,
                blocked: blocked.into_iter().flat_map(|text| Glob::parse_blocking(text).unwrap()).collect(),
                calls,
                secrets: secrets
                    .map(|names| names.into_iter().map(|name| SecretName::parse(name).unwrap()).collect()),
            }
        })
}

fn targets() -> impl Strategy<Value = CallTargets> {
    prop::sample::subsequence(vec!["*", "a", "b", "c"], 0..3)
        .prop_map(|names| CallTargets::parse(&names).unwrap())
}

/// Those of the tools `a`, `b` and `c` that a run with these limits can call.
fn callable(limits: &Limits) -> Vec<&'static str> {
    let included = |name: &str| {
        let name = ToolName::parse(name).unwrap();
        limits.calls.iter().all(|(_, targets)| targets.includes(&name))
    };
    ["a", "b", "c"].into_iter().filter(|name| included(name)).collect()
}

fn limits() -> impl Strategy<Value = Limits> {
    let layers = [Layer::Verdict, Layer::Operator, Layer::Condition, Layer::StandingPolicy, Layer::Tool];
    (prop::sample::select(layers.to_vec()), claims())
        .prop_map(|(layer, claims)| Limits::from_claims(layer, claims))
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
    fn meet_is_idempotent_and_empty_limits_change_nothing(a in limits()) {
        prop_assert_eq!(a.clone().meet(a.clone()), a.clone());
        prop_assert_eq!(a.clone().meet(Limits::default()), a);
    }

    #[test]
    fn meet_is_never_wider(a in limits(), b in limits()) {
        let met = a.clone().meet(b.clone());
        for side in [&a, &b] {
            for limit in Limit::ALL {
                prop_assert!(no_wider(met.limits[*limit].as_ref(), side.limits[*limit].as_ref()));
            }
            prop_assert!(no_wider(met.network.as_ref(), side.network.as_ref()));
            prop_assert!(no_wider(met.access.as_ref(), side.access.as_ref()));
            prop_assert!(no_wider(met.effects.as_ref(), side.effects.as_ref()));
            prop_assert!(met.blocked.is_superset(&side.blocked));
            prop_assert!(callable(&met).iter().all(|tool| callable(side).contains(tool)));
            if let Some(allowed) = &side.areas {
                let met = met.areas.as_ref().unwrap();
                prop_assert!(met.iter().all(|area| allowed.iter().any(|wide| wide.covers(area))));
            }
        }
    }

    #[test]
    fn a_grant_is_never_wider_than_the_ceilings(a in claims(), b in claims()) {
        let ceilings = ceilings();
        let numbers = [a.limits, b.limits];
        let effects = a.effects.max(b.effects).unwrap_or_default();
        if let Ok(grant) = Grant::meet(&Authority::for_tests(), [(Layer::Verdict, a), (Layer::Tool, b)], &ceilings) {
            for limit in Limit::ALL {
                let claimed = numbers.iter().filter_map(|numbers| numbers[*limit]);
                let least = claimed.chain([ceilings.limits[*limit]]).min();
                prop_assert_eq!(Some(grant.limit(*limit).value), least);
            }
            prop_assert_eq!(grant.effects().value, effects);
            prop_assert_eq!(grant.memory().value.bytes(), grant.limit(Limit::Memory).value);
            prop_assert_eq!(u64::from(grant.cpu().value.get()), grant.limit(Limit::Cpu).value);
            let timeout = Duration::from_millis(grant.limit(Limit::Time).value);
            prop_assert_eq!(grant.timeout().value.duration(), timeout);
            prop_assert_eq!(grant.output().value.bytes(), grant.limit(Limit::Output).value);
            prop_assert_eq!(u64::from(grant.calls().max_calls().value), grant.limit(Limit::Calls).value);
            let parallel = grant.calls().max_parallel().value;
            prop_assert_eq!(u64::from(parallel), grant.limit(Limit::ParallelCalls).value);
            for row in budget_rows() {
                let budgets = grant.budgets();
                let bound = Bound { value: budgets.amount(row.limit), layer: budgets.layer(row.limit) };
                prop_assert_eq!(bound, grant.limit(row.limit));
            }
            for (pattern, _) in grant.reach().allowed_patterns() {
                let ceiling = ceilings.hosts.allowed.as_ref().unwrap();
                prop_assert!(ceiling.iter().any(|wide| wide.covers(pattern)));
            }
            prop_assert!(!grant.network().value || grant.reach().allowed_patterns().next().is_some());
            for area in grant.roots().iter().flat_map(|root| root.areas()) {
                prop_assert!(ceilings.areas.iter().any(|wide| wide.covers(&area.value)));
            }
        }
    }
}

/// Paths of up to four names, which are chosen from a few.
fn paths() -> impl Strategy<Value = String> {
    let name = prop::sample::select(vec![
        "a", "b", "bc", "c", "d", "e", "x.md", "d.md", ".md", "{", "a,b", "-", "]",
    ]);
    prop::collection::vec(name, 1..5).prop_map(|names| format!("/{}", names.join("/")))
}

/// Patterns made of the elements of the pattern syntax. Many are malformed.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop::sample::select(vec![
        "/a",
        "/b",
        "/",
        "*",
        "**",
        "?",
        "/**",
        "/**/",
        "/*",
        "[ab]",
        "[!a]",
        "[a-c]",
        "[]a]",
        "{a,b}",
        "{",
        "}",
        ",",
        "{a/b,c}",
        "{a,{b,c}}",
        "{a,b/**}",
        "{/**,b}",
        "{**/b,c}",
        "{b/,*}",
        "{*",
        "*}",
        "{**",
        ",**",
        "\\*",
        "\\{",
        ".md",
        "bc",
        "x",
        "[",
        "]",
        "[a-]",
        "[-c]",
        "[!]x]",
        "..",
        "/./",
    ]);
    prop::collection::vec(piece, 0..6).prop_map(|pieces| format!("/a{}", pieces.concat()))
}

/// The result of globset for a path, with `/` as a separator. It counts bytes, so the path has to be ASCII.
fn globset_says(pattern: &str, path: &str) -> bool {
    let glob = globset::GlobBuilder::new(pattern).literal_separator(true).empty_alternates(true).build();
    glob.is_ok_and(|glob| glob.compile_matcher().is_match(path))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    #[test]
    fn a_pattern_means_what_globset_says(text in texts(), path in paths()) {
        if let Ok(globs) = Glob::parse_alternatives(&text) {
            let matches = globs.iter().any(|glob| glob.matches(&path));
            let expected = globset_says(&text, &path);
            // In globset, a negated class matches `/`. Here no class does.
            let is_exception = text.contains("[!") && expected;
            prop_assert!(matches == expected || is_exception, "{} {}: {}", text, path, matches);
        }
    }

    #[test]
    fn can_match_below_and_matches_all_below_agree_with_matches(text in texts(), path in paths()) {
        for glob in Glob::parse_alternatives(&text).into_iter().flatten() {
            for (at, _) in path.match_indices('/').skip(1) {
                let above = &path[..at];
                prop_assert!(!glob.matches(&path) || glob.can_match_below(above), "{} {}", text, path);
                prop_assert!(!glob.matches_all_below(above) || glob.matches(&path), "{} {}", text, path);
            }
        }
    }

    #[test]
    fn a_grant_covers_exactly_what_every_layer_allows(a in claims(), b in claims(), path in paths()) {
        let everywhere = Ceilings { areas: ["/a", "/d"].map(|root| tree(root).into()).to_vec(), ..ceilings() };
        let allows = |claims: &Claims| {
            let allowed = claims.areas.as_ref().is_none_or(|areas| areas.iter().any(|area| area.contains(&path)));
            allowed && !claims.blocked.iter().any(|glob| glob.matches_at_or_above(&path))
        };
        let inside = everywhere.areas.iter().any(|area| area.contains(&path));
        let expected = inside && allows(&a) && allows(&b);
        let grant = Grant::meet(&Authority::for_tests(), [(Layer::Verdict, a), (Layer::Tool, b)], &everywhere).unwrap();
        let held: Vec<_> = grant.roots().iter().filter(|root| root.tree().contains(&path)).collect();
        prop_assert!(held.len() <= 1, "one root at most");
        prop_assert_eq!(held.iter().any(|root| root.grants(&path)), expected, "{} {:?}", path, grant);
        for root in held {
            for (at, _) in path.match_indices('/').skip(1).filter(|(at, _)| root.tree().contains(&path[..*at])) {
                prop_assert!(!root.grants(&path) || root.can_grant_below(&path[..at]));
                prop_assert!(!root.grants_all_below(&path[..at]) || root.grants(&path));
            }
        }
    }
}

#[test]
fn patterns() {
    for (text, root) in [("/tmp/**", "/tmp"), ("/a/b/**", "/a/b"), ("/{a,a}/b/**", "/a/b")] {
        assert!(Area::parse(text).unwrap().iter().all(|area| *area == tree(root).into()), "{text}");
    }
    for (text, shown) in [
        ("/tmp/x", vec!["/tmp/x"]),
        ("/tmp/*.md", vec!["/tmp/*.md"]),
        ("/data/{a,b}", vec!["/data/b", "/data/a"]),
        ("/data/{a,b/**}", vec!["/data/b/**", "/data/a"]),
    ] {
        let areas = Area::parse(text).unwrap();
        assert_eq!(areas.iter().map(ToString::to_string).collect::<Vec<_>>(), shown);
    }
    let roots = |text: &str| Area::parse(text).unwrap()[0].root().path().to_owned();
    assert_eq!(roots("/data/reports/2026-??.csv"), "/data/reports");
    assert_eq!(roots("/data/reports/exact.csv"), "/data/reports");
    assert_eq!(roots("/data/*/x/**"), "/data");
    let many = format!("/a/{}", "{a,b}".repeat(7));
    let deep = format!("/a{}", "/*".repeat(60));
    let nested = format!("/a/{}b{}", "{".repeat(33), "}".repeat(33));
    let long = format!("/a/{}*", "b/".repeat(2047));
    let malformed = [
        "",
        "tmp/**",
        "/",
        "/**",
        "/*",
        "/*/x",
        "/tmp",
        "/tmp/",
        "**",
        "*",
        "./**",
        "~/**",
        "/a//b",
        "/a/../b/**",
        "/a/./b",
        "/a/**/",
        "/a\0/**",
        "/a/\0",
        "/a/**/..",
        "/a/[x",
        "/a/{b",
        "/a/b}",
        "/a/{b,..}/c",
        "/a/{b,}/c",
        "/a/b**",
        "/a/***",
        "/a/{b,c/**}/d",
        "/a/{b,c/**}/**",
        "/a/{**,b}",
        "/a/{*,b}*",
        "/a/{b/,c}**",
        "/a/**{/b,/c}",
        "/a/b\\",
        "C:\\a\\**",
        "c:/a/**",
        "\\\\host\\a\\**",
        "//host/a/**",
        "/a/[^x]",
        "/a/{b,[^x]}",
        "/a/[^]x]",
        &many,
        &deep,
        &nested,
        &long,
    ];
    for text in malformed {
        assert!(matches!(Area::parse(text), Err(ScopeError::Malformed { .. })), "{text:?}");
    }
    for text in ["C:\\a\\**", "c:/a", "\\\\host\\a", "//host/a/**"] {
        for refused in [Area::parse(text).map(drop), Glob::parse_blocking(text).map(drop)] {
            let said = refused.unwrap_err().to_string();
            assert!(said.contains("another system or host"), "{text:?}: {said}");
        }
    }
    // A name may contain a colon, and a relative pattern a backslash before a special character.
    assert!(Area::parse("/a/c:/**").is_ok() && Glob::parse_blocking("\\*.tmp").is_ok());
}

/// A governor that matches with `fnmatch` would read the first class as `^` or x.
#[test]
fn an_ambiguous_class_is_refused_and_the_error_shows_how_to_write_it() {
    let refused = Area::parse("/a/[^x]*").unwrap_err().to_string();
    assert!(refused.contains("`/a/[^x]*`") && refused.contains("write `[!x]`"), "{refused}");
    assert!(Glob::parse_blocking("[^x]").is_err() && parse_condition("filesystem_scope:/a/[^x]/**").is_err());
    let contains = |pattern: &str, path: &str| Area::parse(pattern).unwrap()[0].contains(path);
    assert!(contains("/a/[!x]", "/a/^") && contains("/a/[x^]", "/a/^") && contains("/a/\\[^x]", "/a/[^x]"));
}

#[test]
fn wildcards_match_characters_and_not_bytes() {
    for (pattern, path, matches) in [
        ("/a/?.md", "/a/é.md", true),
        ("/a/[à-ö].md", "/a/é.md", true),
        ("/a/[!x].md", "/a/é.md", true),
        ("/a/*é", "/a/xxé", true),
        ("/a/??.md", "/a/é.md", false),
        ("/a/[!à-ö].md", "/a/é.md", false),
        ("/a/[à-é][à-é].md", "/a/é.md", false),
        ("/a/?", "/a/e\u{301}", false),
    ] {
        assert_eq!(Area::parse(pattern).unwrap()[0].contains(path), matches, "{pattern} {path}");
    }
    assert!(Glob::parse_blocking("?.key").unwrap()[0].matches("/a/b/ß.key"));
}

#[test]
fn too_many_overlaps_are_refused() {
    let areas = |text: String| Some(Area::parse(&text).unwrap());
    let letters = |from: u8| {
        (0..60)
            .map(|i| format!("{}*", char::from(from + i % 26).to_string().repeat(1 + usize::from(i / 26))))
            .collect::<Vec<_>>()
            .join(",")
    };
    let claims = |text: String| Claims { areas: areas(text), ..Claims::default() };
    let layers = [
        (Layer::Verdict, claims(format!("/tmp/{{{}}}", letters(b'a')))),
        (Layer::StandingPolicy, claims(format!("/tmp/{{{}}}", letters(b'A')))),
    ];
    assert!(matches!(meet(layers), Err(ScopeError::TooMany { .. })));
}

/// Reducing the 65,536 overlaps of the maximum number of patterns of two layers would take minutes.
#[test]
fn too_many_overlaps_are_refused_before_they_are_reduced() {
    let letters = ('a'..='z').chain('A'..='Z').chain('0'..='9').chain(['+', '=']).map(String::from);
    let letters = letters.collect::<Vec<_>>().join(",");
    let claims = |kind: fn(&str, usize) -> String| {
        let areas = (0..4).flat_map(|nth| Area::parse(&kind(&letters, nth)).unwrap()).collect::<Vec<_>>();
        assert_eq!(areas.len(), 256);
        Claims { areas: Some(areas), ..Claims::default() }
    };
    let layers = [
        (Layer::Verdict, claims(|letters, nth| format!("/tmp/{nth}{{{letters}}}*"))),
        (Layer::Condition, claims(|letters, nth| format!("/tmp/*{{{letters}}}{nth}"))),
    ];
    let began = SystemClock.monotonic();
    assert!(matches!(meet(layers), Err(ScopeError::TooMany { .. })));
    assert!(began.elapsed() < std::time::Duration::from_secs(10), "{:?}", began.elapsed());
}

#[test]
fn a_tree_covers_whole_components_only() {
    assert!(tree("/tmp").covers(&tree("/tmp/foo")));
    assert!(tree("/tmp").covers(&tree("/tmp")));
    assert!(!tree("/tmp").covers(&tree("/tmpfoo")));
    assert!(!tree("/tmp/foo").covers(&tree("/tmp")));
}

#[test]
fn an_area_is_written_as_the_patterns_that_lie_in_it() {
    for (pattern, folder, expected) in [
        ("/w/**", "/w/src", Some(vec!["/w/src/**"])),
        ("/w/src/**", "/w", Some(vec!["/w/src/**"])),
        ("/w/**/*.rs", "/w", Some(vec!["/w/**/*.rs"])),
        ("/w/**/*.rs", "/w/src", Some(vec!["/w/src/**/*.rs"])),
        ("/w/*/a/*.rs", "/w/src", Some(vec!["/w/src/a/*.rs"])),
        // The folder itself matches, and nothing below it.
        ("/w/*", "/w/src", Some(vec![])),
        ("/w/*/**", "/w/src", Some(vec!["/w/src/**"])),
        ("/w/**/src/*", "/w/src", Some(vec!["/w/src/**/src/*", "/w/src/*"])),
        ("/w/a?/**", "/w/b", None),
    ] {
        let area = Area::parse(pattern).unwrap().pop().unwrap().meet(&Area::from(tree(folder)));
        let patterns = area.as_ref().map(|area| area.to_patterns().unwrap());
        let expected = expected.map(|texts| texts.into_iter().map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(patterns, expected, "{pattern}");
        let Some(area) = area else { continue };
        let written = patterns.iter().flatten().flat_map(|text| Area::parse(text).unwrap());
        let written = written.collect::<Vec<_>>();
        for path in ["/w/src/a", "/w/src/a/x.rs", "/w/src/src/x", "/w/src/x.rs", "/w/x.rs", "/w/y/x.rs"] {
            let is_written = written.iter().any(|area| area.contains(path));
            assert_eq!(is_written, area.contains(path), "{pattern}: {path}");
        }
    }
    let globs = Area::parse("/w/*.rs").unwrap().pop().unwrap();
    let both = globs.meet(&Area::parse("/w/a*").unwrap().pop().unwrap()).unwrap();
    assert_eq!(both.to_patterns(), None, "no pattern is an intersection of two");
}

#[test]
fn a_grant_names_the_layer_of_each_limit() {
    let verdict = Claims {
        limits: ClaimedLimits::default().with(MemoryLimit::from_mb(50).ok()),
        areas: Some(vec![tree("/tmp/a").into(), tree("/etc").into()]),
        network: Some(false),
        ..Claims::default()
    };
    let tool = Claims { access: Some(Access::ReadOnly), ..Claims::default() };
    let grant = meet([(Layer::Verdict, verdict), (Layer::Tool, tool)]).unwrap();
    assert_eq!(grant.memory().layer, Layer::Verdict);
    assert_eq!(grant.timeout().layer, Layer::Executor);
    assert_eq!(grant.access(), Bound { value: Access::ReadOnly, layer: Layer::Tool });
    let [root] = grant.roots() else { panic!("{grant:?}") };
    assert_eq!(root.areas(), [Bound { value: tree("/tmp/a").into(), layer: Layer::Verdict }]);
    assert_eq!(grant.emptied_by(), None);
}

#[test]
fn the_narrowest_time_of_effects_holds_and_names_the_first_layer_that_set_it() {
    let claims = |effects| Claims { effects: Some(effects), ..Claims::default() };
    let direct = claims(FileEffects::Direct);
    let atomic = claims(FileEffects::Atomic);
    for (layers, ceiling, expected, set_by) in [
        (vec![], FileEffects::Direct, FileEffects::Direct, Layer::Executor),
        (vec![(Layer::Tool, direct.clone())], FileEffects::Direct, FileEffects::Direct, Layer::Tool),
        (vec![(Layer::Tool, direct.clone())], FileEffects::Atomic, FileEffects::Atomic, Layer::Executor),
        (vec![(Layer::Tool, atomic.clone())], FileEffects::Direct, FileEffects::Atomic, Layer::Tool),
        (
            vec![(Layer::Verdict, direct), (Layer::Tool, atomic.clone()), (Layer::Condition, atomic.clone())],
            FileEffects::Atomic,
            FileEffects::Atomic,
            Layer::Condition,
        ),
        (
            vec![(Layer::Condition, atomic), (Layer::Tool, claims(FileEffects::Staged))],
            FileEffects::Atomic,
            FileEffects::Staged,
            Layer::Tool,
        ),
    ] {
        let ceilings = Ceilings { effects: ceiling, ..ceilings() };
        let grant = Grant::meet(&Authority::for_tests(), layers, &ceilings).unwrap();
        assert_eq!(grant.effects(), Bound { value: expected, layer: set_by });
    }
    let ceilings = Ceilings { effects: FileEffects::Atomic, ..ceilings() };
    let without_access = Permit::without_access(&ceilings);
    assert!(without_access.grant().effects().value.is_direct(), "a run without files has no upper");
}

#[test]
fn limits_of_the_operator_are_not_attributed_to_a_verdict() {
    let claims = Claims {
        limits: ClaimedLimits::default().with(MemoryLimit::from_mb(50).ok()),
        network: Some(false),
        areas: Some(vec![tree("/tmp/a").into()]),
        ..Claims::default()
    };
    let grant = Grant::for_operator(&Authority::for_tests(), claims.clone(), &ceilings()).unwrap();
    assert_eq!((grant.memory().layer, grant.network().layer), (Layer::Operator, Layer::Operator));
    assert_eq!(grant.timeout().layer, Layer::Executor);
    assert_eq!(grant.roots()[0].areas()[0].layer, Layer::Operator);
    let host = tempfile::tempdir().unwrap();
    let folders = [(host.path().to_owned(), "/".to_owned())];
    let permit = Permit::for_operator(&Authority::for_tests(), claims, &ceilings(), &folders).unwrap();
    assert!(permit.grant().roots().is_empty(), "the folders are opened without an area of the grant");
    assert_eq!(permit.roots().as_slice()[0].guest, "/");
}

#[test]
fn a_run_that_may_only_read_has_no_effects() {
    let network = Claims { network: Some(false), ..Claims::default() };
    let reads = Claims {
        areas: Some(Area::parse("/workspace/**").unwrap()),
        access: Some(Access::ReadOnly),
        ..network.clone()
    };
    let writes = Claims { access: Some(Access::ReadWrite), ..reads.clone() };
    let none = Claims { areas: Some(Vec::new()), ..writes.clone() };
    let reaches = Claims { network: Some(true), ..reads.clone() };
    let calls = Claims { calls: Some(CallTargets::parse(&["*"]).unwrap()), ..reads.clone() };
    for (claims, has_effects) in
        [(reads, false), (none, false), (writes, true), (reaches, true), (calls, true)]
    {
        let grant = meet([(Layer::Tool, claims.clone())]).unwrap();
        assert_eq!(grant.allows_effects(), has_effects, "{claims:?}");
    }
}

#[test]
fn a_tool_with_hosts_of_its_own_reaches_those_and_no_others() {
    let own =
        |text: &str| (ToolName::parse(text).unwrap(), hosts(Some(&["https://a.net"]), &[]).allowed.unwrap());
    let ceilings = Ceilings { tool_hosts: [own("weather")].into(), ..ceilings() };
    let patterns = |tool: &str| {
        let own_ceilings = ceilings.for_tool(&ToolName::parse(tool).unwrap());
        let grant = Grant::meet(&Authority::for_tests(), [], &own_ceilings).unwrap();
        let allowed = grant.reach().allowed_patterns().map(|(pattern, _)| pattern.to_string());
        let blocked = grant.reach().blocked_patterns().count();
        (allowed.collect::<Vec<_>>(), blocked)
    };
    assert_eq!(patterns("weather"), (vec!["https://a.net".to_owned()], 1));
    assert_eq!(patterns("other"), (vec!["*.com".to_owned(), "a.org".to_owned()], 1));
}

#[test]
fn a_permit_without_access_has_no_file_and_no_network() {
    let ceilings = ceilings();
    assert!(ceilings.network && !ceilings.areas.is_empty());
    let permit = Permit::without_access(&ceilings);
    let grant = permit.grant();
    assert!(!grant.network().value && grant.reach().allowed_patterns().next().is_none());
    assert!(grant.roots().is_empty() && permit.roots().as_slice().is_empty());
    assert_eq!(grant.access().value, Access::ReadOnly);
    assert_eq!(grant.memory(), Bound { value: ceilings.limits.quantity(), layer: Layer::Executor });
}

#[test]
fn a_grant_without_trees_names_the_layer_that_excluded_the_last() {
    let areas = |trees: Vec<Tree>| {
        let areas = trees.into_iter().map(Area::from).collect();
        Claims { areas: Some(areas), ..Claims::default() }
    };
    let by = |verdict, standing| {
        let layers = [(Layer::Verdict, areas(verdict)), (Layer::StandingPolicy, areas(standing))];
        meet(layers).unwrap().emptied_by()
    };
    assert_eq!(by(vec![], vec![tree("/tmp")]), Some(Layer::Verdict));
    assert_eq!(by(vec![tree("/tmp")], vec![tree("/workspace")]), Some(Layer::StandingPolicy));
    assert_eq!(by(vec![tree("/etc")], vec![tree("/etc")]), Some(Layer::Executor));
}

#[test]
fn blocked_paths_are_excluded_from_a_grant() {
    let grant = |blocked: &str| {
        let claims = Claims {
            areas: Some(vec![tree("/tmp/a").into(), tree("/tmp/b").into()]),
            blocked: Glob::parse_blocking(blocked).unwrap(),
            ..Claims::default()
        };
        meet([(Layer::StandingPolicy, claims)]).unwrap()
    };
    let left = grant("/tmp/a/**");
    assert_eq!(left.roots().iter().map(|root| root.tree().path()).collect::<Vec<_>>(), ["/tmp/b"]);
    assert_eq!(grant("/tmp/*").emptied_by(), Some(Layer::StandingPolicy));
    assert!(grant("/etc/**").has_only_whole_trees());
    for blocked in ["/tmp/a/secret/**", "/tmp/a/secret", "secret"] {
        let grant = grant(blocked);
        let [a, _b] = grant.roots() else { panic!("{grant:?}") };
        assert!(!grant.has_only_whole_trees() && !a.is_whole());
        assert!(
            !a.grants("/tmp/a/secret") && !a.grants("/tmp/a/secret/x") && !a.can_grant_below("/tmp/a/secret")
        );
        assert!(a.grants("/tmp/a/secrets") && a.grants_all_below("/tmp/a/secrets") == (blocked != "secret"));
        assert!(!a.grants_all_below("/tmp/a"));
    }
}

#[test]
fn a_folder_above_a_match_is_not_granted_itself() {
    let claims =
        Claims { areas: Some(Area::parse("/tmp/{w/*/x.md,w/deep/**}").unwrap()), ..Claims::default() };
    let grant = meet([(Layer::Verdict, claims)]).unwrap();
    let [root] = grant.roots() else { panic!("{grant:?}") };
    assert_eq!(root.tree().path(), "/tmp/w");
    assert!(
        root.can_grant_below("/tmp/w") && root.can_grant_below("/tmp/w/any") && !root.grants("/tmp/w/any")
    );
    assert!(!root.can_grant_below("/tmp/w/any/x.md") && root.grants("/tmp/w/any/x.md"));
    assert!(root.grants("/tmp/w/deep") && root.grants_all_below("/tmp/w/deep/er"));
    assert!(!root.grants_all_below("/tmp/w") && !root.can_grant_below("/tmp/w/any/other"));
}

#[test]
fn conditions() {
    assert_eq!(parse_condition("read_only").unwrap().access, Some(Access::ReadOnly));
    assert_eq!(parse_condition("no_network").unwrap().network, Some(false));
    let named = BTreeSet::from([SecretName::parse("github").unwrap()]);
    for (condition, secrets) in [("no_secrets", BTreeSet::new()), ("secrets:github", named)] {
        assert_eq!(parse_condition(condition), Ok(Claims { secrets: Some(secrets), ..Claims::default() }));
    }
    let pattern = |text: &str| vec![HostPattern::parse(text).unwrap()];
    let no_hosts = HostClaims::default;
    for (condition, hosts) in [
        ("host:*.a.example", HostClaims { allowed: Some(pattern("*.a.example")), ..no_hosts() }),
        ("host:https://a.example", HostClaims { allowed: Some(pattern("https://a.example")), ..no_hosts() }),
        ("blocked_host:a.example", HostClaims { blocked: pattern("a.example"), ..no_hosts() }),
        ("max_requests_per_minute:20", HostClaims { requests_per_minute: Some(20), ..no_hosts() }),
    ] {
        assert_eq!(parse_condition(condition), Ok(Claims { hosts, ..Claims::default() }), "{condition}");
    }
    for pattern in ["", "http://a.example", "a.example/path", "a@b"] {
        for name in ["host", "blocked_host"] {
            let parsed = parse_condition(&format!("{name}:{pattern}"));
            assert!(matches!(parsed, Err(ConditionError::Host(_))), "{name}:{pattern}");
        }
    }
    for (condition, effects) in
        [("effects:atomic", FileEffects::Atomic), ("effects:staged", FileEffects::Staged)]
    {
        let claims = Claims { effects: Some(effects), ..Claims::default() };
        assert_eq!(parse_condition(condition), Ok(claims));
        let sentence = parse_condition("unknown").unwrap_err().to_string();
        assert!(sentence.contains(&format!("`{condition}`")), "{sentence}");
    }
    let amounts = [
        ("max_memory_mb:5", Limit::Memory, 5 << 20),
        ("timeout_seconds:5", Limit::Time, 5000),
        ("max_output_bytes:5", Limit::Output, 5),
        ("max_calls:0", Limit::Calls, 0),
        ("max_calls:4294967295", Limit::Calls, u32::MAX.into()),
    ];
    for (condition, limit, amount) in amounts {
        let claims = parse_condition(condition).unwrap();
        assert_eq!(claims, Claims { limits: claims.limits, ..Claims::default() }, "{condition}");
        assert_eq!(claims.limits, ClaimedLimits::default().with_amount(limit, Some(amount)));
    }
    let sentence = parse_condition("unknown").unwrap_err().to_string();
    for row in &LIMITS {
        let condition = format!("{}:{}", row.key(), row.max);
        let is_known = row.set_by.contains(&Layer::Condition);
        assert_eq!(parse_condition(&condition).is_ok(), is_known, "{condition}");
        assert_eq!(sentence.contains(&format!("`{}:N`", row.key())), is_known, "{sentence}");
    }
    assert_eq!(parse_condition("filesystem_scope:/tmp/**").unwrap().areas, Some(vec![tree("/tmp").into()]));
    for unknown in [
        "",
        "read_only:",
        "read_only ",
        "read_only:true",
        "READ_ONLY",
        "no_network:1",
        "effects",
        "effects:",
        "effects:direct",
        "effects:ATOMIC",
        "max_memory_mb",
        "max_memory_mb:",
        "max_memory_mb:+5",
        "max_memory_mb: 5",
        "max_memory_mb:-1",
        "max_memory_mb:5.0",
        "max_memory_mb:5e1",
        "max_output_bytes:18446744073709551616",
        "max_cpu_percent:5",
        "secrets",
        "secrets:",
        "secrets:GitHub",
        "secrets:*",
        "no_secrets:x",
        "host",
        "max_requests_per_minute:",
        "human",
    ] {
        assert!(matches!(parse_condition(unknown), Err(ConditionError::Unknown(_))), "{unknown:?}");
    }
    for number in ["max_memory_mb:0", "timeout_seconds:0", "max_output_bytes:0"] {
        assert!(matches!(parse_condition(number), Err(ConditionError::Number { .. })), "{number}");
    }
    assert!(matches!(parse_condition("filesystem_scope:/tmp/{a"), Err(ConditionError::Scope(_))));
    let blocked =
        |pattern: &str| parse_condition(&format!("blocked_path:{pattern}")).map(|claims| claims.blocked);
    assert_eq!(blocked(".env"), Ok(Glob::parse_blocking(".env").unwrap()));
    assert_eq!(blocked("/tmp/a/**"), Ok(Glob::parse_blocking("/tmp/a").unwrap()));
    for pattern in ["", "/tmp/{a", "../a", "a/./b", "C:\\a"] {
        assert!(matches!(blocked(pattern), Err(ConditionError::Scope(_))), "{pattern:?}");
    }
}

#[test]
fn a_root_is_opened_beneath_its_mount_and_never_through_a_link() {
    let host = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(host.path().join("inside/deep")).unwrap();
    std::os::unix::fs::symlink("/etc", host.path().join("link")).unwrap();
    std::fs::write(host.path().join("file"), "").unwrap();
    let ceilings = ceilings();
    let mounts = Mounts::new(vec![Mount { guest: tree("/workspace"), host: host.path().into() }]).unwrap();
    let open_if = |path: &str, is_needed: bool| {
        let claims = Claims { areas: Some(vec![tree(path).into()]), ..Claims::default() };
        let grant = Grant::meet(&Authority::for_tests(), [(Layer::Verdict, claims)], &ceilings).unwrap();
        Permit::open(grant, &mounts, &ceilings.areas, |_| is_needed)
    };
    let open = |path: &str| open_if(path, true);
    assert_eq!(open("/workspace/inside/deep").unwrap().roots().as_slice().len(), 1);
    assert_eq!(open("/workspace").unwrap().roots().as_slice().len(), 1);
    assert!(matches!(open("/workspace/absent"), Err(RootsError::Missing(_))));
    assert!(matches!(open("/workspace/link"), Err(RootsError::NotAFolder(_))));
    assert!(matches!(open("/workspace/file"), Err(RootsError::NotAFolder(_))));
    // What exists and cannot be opened is refused even if it is not needed.
    assert!(matches!(open_if("/workspace/link", false), Err(RootsError::NotAFolder(_))));
    let permit = open_if("/workspace/absent", false).unwrap();
    let [absent] = permit.roots().as_slice() else { panic!("{permit:?}") };
    assert!(absent.is_missing && !open("/workspace/inside").unwrap().roots().as_slice()[0].is_missing);
    let stat = |permit: &Permit| rustix::fs::fstat(&permit.roots().as_slice()[0].dir).unwrap();
    assert_eq!((&*absent.guest, stat(&permit).st_mode & 0o777), ("/workspace/absent", 0o777));
    for error in [
        absent.dir.create("new").map(drop),
        absent.dir.create_dir("new"),
        absent.dir.symlink("x", "new"),
        absent.dir.metadata("new").map(drop),
    ] {
        assert_eq!(error.unwrap_err().kind(), std::io::ErrorKind::NotFound);
    }
    assert!(absent.dir.entries().unwrap().next().is_none());
    std::fs::create_dir(host.path().join("absent")).unwrap();
    assert!(absent.dir.create("new").is_err(), "the folder was created too late for this permit");
    let other = open_if("/workspace/other", false).unwrap();
    assert_ne!(stat(&permit).st_ino, stat(&other).st_ino, "a folder that two runs share");
}
