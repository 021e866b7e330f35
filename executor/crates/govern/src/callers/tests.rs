//! Authentication of callers, and invalid lists.

use super::*;
use std::os::unix::fs::PermissionsExt as _;

const AGENT: &str = "did:a2g:agent:1.0:planner";

fn entry(name: &str, role: Role) -> (CallerEntry, Token) {
    let token = Token::new().unwrap();
    let agents = if role == Role::Agent { BTreeSet::from([AGENT.to_owned()]) } else { BTreeSet::new() };
    let entry = CallerEntry {
        name: name.to_owned(),
        roles: BTreeSet::from([role]),
        agents,
        token_sha256: Some(token.sha256()),
        certificate: None,
        expires_at: None,
        jwt: None,
    };
    (entry, token)
}

/// An entry of an operator without a token, with this change.
fn operator(name: &str, change: impl FnOnce(&mut CallerEntry)) -> CallerEntry {
    let mut entry = CallerEntry { token_sha256: None, ..entry(name, Role::Operator).0 };
    change(&mut entry);
    entry
}

fn shown(token: Option<&Token>, names: &[&str]) -> Credential {
    Credential::new(
        token.map(|token| token.reveal().as_bytes()),
        names.iter().map(|name| (*name).into()).collect(),
    )
}

fn now() -> OffsetDateTime {
    OffsetDateTime::UNIX_EPOCH + time::Duration::days(20_000)
}

fn of(entries: &[CallerEntry]) -> Result<Callers, CallersError> {
    Callers::from_entries(entries, TokenIssuers::default())
}

fn named(callers: &Callers, shown: &Credential) -> Option<String> {
    callers.identify(shown, now()).map(|caller| caller.name().to_owned()).ok()
}

#[test]
fn a_token_is_known_by_its_hash_alone() {
    let (planner, token) = entry("planner", Role::Agent);
    let callers = of(&[planner, entry("other", Role::Governor).0]).unwrap();
    let found = callers.identify(&shown(Some(&token), &[]), now()).unwrap();
    assert_eq!(found.name(), "planner");
    assert!(found.may_act_as(&AgentDid::parse(AGENT).unwrap()));
    assert!(!found.may_act_as(&AgentDid::parse("did:a2g:agent:1.0:other").unwrap()));
    assert!(!found.is_any_of(&[Role::Governor, Role::Approver, Role::Operator]));
    assert_eq!(named(&callers, &shown(None, &[])), None);
    let hash = Credential::new(Some(token.sha256().as_bytes()), Arc::default());
    assert_eq!(named(&callers, &hash), None, "the hash is no token");
    assert_eq!(named(&callers, &shown(Some(&Token::new().unwrap()), &[])), None);
    assert!(!format!("{token:?}").contains(token.reveal()));
}

#[test]
fn a_certificate_is_known_by_one_of_its_names() {
    let certified = |name: &str, of: &str| operator(name, |entry| entry.certificate = Some(of.to_owned()));
    let callers = of(&[certified("a", "a.example"), certified("b", "spiffe://example/b")]).unwrap();
    assert_eq!(named(&callers, &shown(None, &["x.example", "a.example"])).unwrap(), "a");
    assert_eq!(named(&callers, &shown(None, &["spiffe://example/b"])).unwrap(), "b");
    assert_eq!(named(&callers, &shown(None, &["a.example", "spiffe://example/b"])), None, "it names two");
    assert_eq!(named(&callers, &shown(None, &["A.example"])), None);
    let wrong = Token::new().unwrap();
    assert_eq!(
        named(&callers, &shown(Some(&wrong), &["a.example"])),
        None,
        "a wrong token is not passed over"
    );
}

fn about(subject: &str) -> JwtSubject {
    JwtSubject {
        issuer: a2g_types::ident::Issuer::parse("https://id.example").unwrap(),
        subject: subject.to_owned(),
    }
}

#[test]
fn a_token_in_the_form_of_a_jwt_is_read_as_one_also_when_its_hash_is_listed() {
    let token = b"eyJhbGciOiJFZERTQSJ9.e30.AA";
    let hashed = |name: &str, token: &[u8]| {
        operator(name, |entry| entry.token_sha256 = Some(Digest::compute(token).to_string()))
    };
    let callers = of(&[hashed("a", token)]).unwrap();
    let shown = Credential::new(Some(token), Arc::default());
    assert_eq!(callers.identify(&shown, now()).unwrap_err(), AuthError::Token(TokenError::NoIssuer));
    assert!(shown.has_token());
    assert!(!format!("{shown:?}").contains("AA"), "{shown:?}");
    let shown = Credential::new(Some(b"eyJ.two"), Arc::default());
    assert_eq!(named(&of(&[hashed("b", b"eyJ.two")]).unwrap(), &shown).unwrap(), "b");
}

#[test]
fn nobody_is_known_from_its_end_on() {
    let (caller, token) = entry("short", Role::Operator);
    let until = |at| of(&[CallerEntry { expires_at: Some(at), ..caller.clone() }]).unwrap();
    assert_eq!(named(&until(now()), &shown(Some(&token), &[])), None);
    assert!(named(&until(now() + time::Duration::SECOND), &shown(Some(&token), &[])).is_some());
}

/// The author of a decision by the holder of this credential.
fn author(callers: &Callers, shown: &Credential) -> DecisionAuthor {
    callers.identify(shown, now()).unwrap().decision_right().unwrap().author()
}

#[test]
fn who_decides_is_still_listed_when_the_decision_is_recorded() {
    let agent = AgentDid::parse(AGENT).unwrap();
    let (anna, token) = entry("anna", Role::Approver);
    let (bert, other) = entry("bert", Role::Approver);
    let callers = of(&[anna.clone(), bert.clone()]).unwrap();
    let [by_anna, by_bert] = [&token, &other].map(|token| author(&callers, &shown(Some(token), &[])));
    let change = |change: &dyn Fn(&mut CallerEntry)| {
        let mut changed = anna.clone();
        change(&mut changed);
        of(&[changed, bert.clone()]).unwrap()
    };
    let later = now() + time::Duration::SECOND;
    let until_later = change(&|entry| entry.expires_at = Some(later));
    let both = change(&|entry| {
        entry.roles.insert(Role::Agent);
        entry.agents.insert(AGENT.to_owned());
    });
    let renamed = change(&|entry| entry.name = "anne".to_owned());
    for (list, at, may_decide, may_for_others) in [
        (&callers, now(), true, true),
        (&change(&|entry| _ = entry.roles.insert(Role::Operator)), now(), true, true),
        (&until_later, now(), true, true),
        (&until_later, later, false, false),
        (&both, now(), true, false),
        (&change(&|entry| entry.roles = BTreeSet::from([Role::Operator])), now(), false, false),
        (&renamed, now(), false, false),
        (&change(&|entry| entry.token_sha256 = Some(Token::new().unwrap().sha256())), now(), false, false),
        (&of(std::slice::from_ref(&bert)).unwrap(), now(), false, false),
        (&Callers::empty(), now(), false, false),
    ] {
        let found = (list.may_decide(&by_anna, at), list.may_decide_for_others(&by_anna, &agent, at));
        assert_eq!(found, (may_decide, may_for_others), "{list:?} {at}");
    }
    assert!(renamed.may_decide(&by_bert, now()));
    let by_anne = author(&renamed, &shown(Some(&token), &[]));
    assert!(by_anne.is_same_person(&by_anna) && by_anna.is_same_person(&by_anne));
    assert!(!by_anne.is_same_person(&by_bert) && by_anna.is_same_person(&by_anna));
}

/// The next list may lack the key that signed the token.
#[test]
fn a_decision_with_a_jwt_counts_only_under_the_list_that_verified_it() {
    let jwt = |entry: &mut CallerEntry| {
        (entry.roles, entry.jwt) = (BTreeSet::from([Role::Approver]), Some(about("anna")));
    };
    let entries = [operator("anna", jwt)];
    let [callers, reloaded] = [(); 2].map(|()| of(&entries).unwrap());
    let CallerSource::Listed(table) = &callers.0 else { panic!("a list") };
    let identity = CallerIdentity::Jwt(about("anna"));
    let by_anna = table.callers[table.index[&identity]].caller.decision_right().unwrap().author();
    assert!(callers.may_decide(&by_anna, now()) && !reloaded.may_decide(&by_anna, now()));
}

/// They are not in the list, so no change of it takes their right away.
#[test]
fn the_governor_and_a_person_without_a_list_decide_whatever_the_list_is() {
    let agent = AgentDid::parse(AGENT).unwrap();
    let governor = DecisionRight::of_governor().author();
    let persons = [Caller::console_person(), Caller::local_person()];
    let persons = persons.map(|person| person.decision_right().unwrap().author());
    for callers in [Callers::empty(), Callers::anonymous(None)] {
        assert!(!callers.may_decide_for_others(&governor, &agent, now()), "only people count");
        for person in &persons {
            assert!(callers.may_decide(person, now()));
            assert!(!callers.may_decide_for_others(person, &agent, now()), "they act for every agent");
            assert!(!person.is_same_person(&governor) && person.is_same_person(person));
        }
    }
}

#[test]
fn without_a_list_there_is_one_caller_who_is_no_governor() {
    let callers = Callers::anonymous(None);
    let caller = callers.identify(&shown(None, &[]), now()).unwrap();
    assert!(caller.may_act_as(&AgentDid::parse(AGENT).unwrap()));
    assert!(!caller.is_any_of(&[Role::Governor, Role::Approver]));
    let leave = Some(AcceptUnsigned::from_command_line(crate::test_authority()));
    assert!(
        Caller::anonymous(leave).is_any_of(&[Role::Governor])
            && Caller::anonymous(leave).is_any_of(&[Role::Approver])
    );
    assert_eq!(Callers::empty().identify(&shown(None, &[]), now()).unwrap_err(), AuthError::NoCredential);
}

#[test]
fn a_list_that_cannot_be_meant_is_refused() {
    let (good, _) = entry("good", Role::Agent);
    let refused = |entries: &[CallerEntry], words: &str| {
        let error = of(entries).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    };
    let also = |change: fn(&mut CallerEntry)| {
        let mut entry = entry("bad", Role::Agent).0;
        change(&mut entry);
        [good.clone(), entry]
    };
    refused(&also(|e| e.name = "good".to_owned()), "in the list already");
    refused(&also(|e| e.name = String::new()), "needs a name");
    refused(&also(|e| e.name = "a b".to_owned()), "needs a name");
    refused(&also(|e| e.name = "a".repeat(65)), "needs a name");
    refused(&also(|e| e.roles.clear()), "has no role");
    refused(&also(|e| e.agents.clear()), "must have `agents`");
    refused(&also(|e| e.roles = BTreeSet::from([Role::Operator])), "and only then");
    refused(&also(|e| e.agents = BTreeSet::from(["nobody".to_owned()])), "has an invalid agent");
    refused(&also(|e| e.token_sha256 = None), "exactly one of");
    refused(&also(|e| e.certificate = Some("a.example".to_owned())), "exactly one of");
    refused(&also(|e| e.jwt = Some(about("anna"))), "exactly one of");
    let of_subject = |name: &str, subject: &str| operator(name, |entry| entry.jwt = Some(about(subject)));
    refused(&[of_subject("a", "anna"), of_subject("b", "anna")], "has the same credential as another caller");
    refused(&[of_subject("a", "")], "has an empty `subject`");
    let two = of(&[of_subject("b", "bert"), of_subject("a", "anna"), good.clone()]).unwrap();
    let issuer = about("anna").issuer;
    assert_eq!(two.with_unknown_issuer(), [("a", &issuer), ("b", &issuer)]);
    refused(&also(|e| e.token_sha256 = Some("A".repeat(64))), "has an invalid `token_sha256`");
    refused(
        &also(|e| e.token_sha256 = Some(Digest::compute(b"").to_string())),
        "the SHA-256 of the empty text",
    );
    let same = CallerEntry { name: "bad".to_owned(), ..good.clone() };
    refused(&[good.clone(), same], "has the same credential as another caller");
}

#[test]
fn a_list_is_written_and_read_and_belongs_to_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("callers.toml");
    assert!(CallerList::read(&path).is_err(), "a list that was named has to be there");
    let mut list = CallerList::open_for_update(&path).unwrap();
    let (mut planner, token) = entry("planner", Role::Agent);
    planner.expires_at = Some(now());
    list.add(planner.clone()).unwrap();
    let subject = operator("other", |entry| {
        (entry.jwt, entry.expires_at) = (Some(about("anna")), Some(now()));
    });
    list.add(subject.clone()).unwrap();
    assert!(list.add(entry("other", Role::Operator).0).is_err());
    drop(list);
    let mut list = CallerList::open_for_update(&path).unwrap();
    assert_eq!(list.entries().len(), 2, "what was refused was not written");
    assert_eq!(list.entries(), [planner, subject]);
    let text = std::fs::read_to_string(&path).unwrap();
    assert!(!text.contains(token.reveal()) && text.contains(&token.sha256()));
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    list.remove("planner").unwrap();
    assert!(list.remove("planner").is_err());
    assert_eq!(Callers::read(&path, TokenIssuers::default()).unwrap().count(), Some(1));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o660)).unwrap();
    let read = || Callers::read(&path, TokenIssuers::default());
    assert!(matches!(read(), Err(CallersError::File(FileError::NotPrivate { .. }))));
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    // A misspelt table is no empty list.
    for text in ["[[caller]]\nname = 'a'\nroles = ['root']\n", "[[callers]]\n"] {
        std::fs::write(&path, text).unwrap();
        assert!(matches!(read(), Err(CallersError::NotAList { .. })), "{text}");
    }
}
