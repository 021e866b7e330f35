//! `caller new`, `caller list`, `caller remove`: the list of callers.
//!
//! A token is printed once, only on standard output, and stored nowhere.

use super::UsageError;
use super::arguments::{Caller, CallersFile, Setup};
use super::layout::{Listing, text};
use super::local_time::LocalTime;
use super::output::{note, one_line, print};
use super::serve::UNKNOWN_ISSUER_WARNING;
use super::setup::config;
use a2g_govern::{CallerEntry, CallerIdentity, CallerList, JwtSubject, Role, Token};
use a2g_types::clock::{Clock as _, SystemClock};
use a2g_types::ident::Issuer;
use anyhow::{Context as _, bail};
use std::path::PathBuf;
use std::process::ExitCode;

pub(super) fn main(command: Caller) -> anyhow::Result<ExitCode> {
    match command {
        Caller::New { name, role, agent, certificate, jwt_issuer, jwt_subject, days, list } => {
            let parsed = jwt_issuer.zip(jwt_subject).map(|(issuer, subject)| parse_subject(&issuer, subject));
            let jwt = parsed.transpose()?;
            let CallersPath { path, issuers } = CallersPath::find(list)?;
            let mut callers = CallerList::open_for_update(&path)?;
            let has_unknown_issuer =
                |jwt: &&JwtSubject| issuers.as_ref().is_some_and(|all| !all.contains(&jwt.issuer));
            if let Some(JwtSubject { issuer, .. }) = jwt.as_ref().filter(has_unknown_issuer) {
                note(format_args!("warning: {issuer}: {UNKNOWN_ISSUER_WARNING}"));
            }
            let made = (certificate.is_none() && jwt.is_none()).then(Token::new).transpose();
            let token = made.context("the system has no random bytes")?;
            let entry = CallerEntry {
                name: name.clone(),
                roles: role.iter().map(|role| parse_role(role)).collect::<Result<_, _>>()?,
                agents: agent.into_iter().collect(),
                token_sha256: token.as_ref().map(Token::sha256),
                certificate,
                expires_at: days
                    .map(|days| SystemClock.now().truncate_to_second() + time::Duration::days(days.into())),
                jwt,
            };
            callers.add(entry)?;
            if let Some(token) = &token {
                print(token.reveal());
                note(
                    "This is the caller's token, which is not shown again. Send it as `Authorization: Bearer …`.",
                );
            }
            note(format_args!(
                "Executors with this list accept `{}` from their next start or SIGHUP on.",
                one_line(name)
            ));
        }
        Caller::List { list, json } => {
            self::list(CallerList::read(&CallersPath::find(list)?.path)?.entries(), json)
        }
        Caller::Remove { name, list } => {
            CallerList::open_for_update(&CallersPath::find(list)?.path)?.remove(&name)?;
            note(format_args!(
                "Executors with this list refuse `{}` from their next start or SIGHUP on.",
                one_line(name)
            ));
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_role(role: &str) -> Result<Role, UsageError> {
    let roles = [Role::Agent, Role::Governor, Role::Approver, Role::Operator];
    let named = roles.into_iter().find(|known| known.as_str() == role);
    named.ok_or_else(|| UsageError(format!("`--role` cannot be `{role}`")))
}

fn parse_subject(issuer: &str, subject: String) -> Result<JwtSubject, UsageError> {
    let issuer = Issuer::parse(issuer).map_err(|error| UsageError(format!("`--jwt-issuer`: {error}")))?;
    Ok(JwtSubject { issuer, subject })
}

/// The path of the list of callers.
struct CallersPath {
    path: PathBuf,
    /// The issuers of the configuration, if it was read.
    issuers: Option<Vec<Issuer>>,
}

impl CallersPath {
    /// Finds the path on the command line or in the configuration.
    fn find(arguments: CallersFile) -> anyhow::Result<Self> {
        let CallersFile { config: file, callers } = arguments;
        if let Some(path) = callers {
            return Ok(Self { path, issuers: None });
        }
        let config = config(&Setup { config: file, tools: None })?;
        let issuers = config.issuers.into_iter().map(|settings| settings.issuer).collect();
        let Some(path) = config.callers else {
            bail!(UsageError(
                "the configuration has no `server.callers`: set it, or name the list with `--callers`"
                    .to_owned()
            ));
        };
        Ok(Self { path, issuers: Some(issuers) })
    }
}

fn list(entries: &[CallerEntry], json: bool) {
    if json {
        return print(serde_json::to_string_pretty(entries).unwrap_or_default());
    }
    let mut listing = Listing::new(&["name", "roles", "agents", "presents", "until"]);
    let now = SystemClock.now();
    let here = LocalTime::read();
    for entry in entries {
        let CallerEntry { name, roles, agents, expires_at, .. } = entry;
        let roles = roles.iter().map(|role| role.as_str()).collect::<Vec<_>>().join(", ");
        let agents = agents.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        let credential = match entry.identity() {
            Ok(CallerIdentity::Token(_)) => "a token".to_owned(),
            Ok(CallerIdentity::Certificate(name)) => format!("a certificate for {name}"),
            Ok(CallerIdentity::Jwt(JwtSubject { issuer, subject })) => {
                format!("a JWT from {issuer} for {subject}")
            }
            Err(error) => format!("invalid: it {error}"),
        };
        let is_expired = expires_at.is_some_and(|at| at <= now);
        let end = expires_at.map_or_else(String::new, |at| here.format_seconds(at));
        let until = if is_expired { format!("{end} (expired)") } else { end };
        listing.row([text(name), text(roles), text(agents), text(credential), text(until)]);
    }
    listing.show(std::io::stdout());
}
