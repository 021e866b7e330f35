//! `key new`, `key show`, `key trust`, `key list`: keys that sign verdicts or tools, and trusted keys of governors.
//!
//! No command prints any part of a private key.

use super::UsageError;
use super::arguments::{Key, KeyFolder, Setup};
use super::layout::{Listing, text};
use super::output::{one_line, print};
use super::setup::config;
use a2g_govern::{KeyPair, TrustedKey, TrustedKeys};
use a2g_types::ident::Issuer;
use anyhow::Context as _;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

pub(super) fn main(command: Key) -> anyhow::Result<ExitCode> {
    match command {
        Key::New { file, issuer } => {
            let pair = KeyPair::create(&file, parse_issuer(&issuer)?)?;
            describe(pair.public());
            print(format_args!(
                "\nThe private key is in `{0}`, which only you can read: keep it secret.\nThe public key, for those who are to \
                 trust it: a2g-executor key show --json {0}",
                one_line(file.display())
            ));
        }
        Key::Show { file, json } => {
            let pair = KeyPair::read(&file)?;
            if json {
                print(pair.public().to_jwk());
            } else {
                describe(pair.public());
            }
        }
        Key::Trust { key, issuer, folder } => {
            let folder = self::folder(folder)?;
            let issuer = issuer.map(|issuer| parse_issuer(&issuer)).transpose()?;
            let key = read_key(&key, issuer)?;
            let file = TrustedKeys::add(&folder, &key)?;
            describe(&key);
            print(format_args!(
                "\nExecutors with `trust.keys = \"{}\"` accept its proofs from their next start or SIGHUP \
                 on.\nTo revoke that, remove `{}` and send SIGHUP.",
                one_line(folder.display()),
                one_line(file.display())
            ));
        }
        Key::List { folder, json } => list(&TrustedKeys::read(&self::folder(folder)?)?, json),
    }
    Ok(ExitCode::SUCCESS)
}

fn parse_issuer(issuer: &str) -> Result<Issuer, UsageError> {
    Issuer::parse(issuer).map_err(|error| UsageError(format!("`--issuer`: {error}")))
}

/// The folder of trusted keys, from the command line or from the configuration.
fn folder(arguments: KeyFolder) -> anyhow::Result<PathBuf> {
    let KeyFolder { config: file, keys } = arguments;
    if let Some(keys) = keys {
        return Ok(keys);
    }
    let config = config(&Setup { config: file, tools: None })?;
    config.trust.keys.ok_or_else(|| {
        UsageError(
            "the configuration has no `trust.keys`: set it, or name the folder with `--keys`".to_owned(),
        )
        .into()
    })
}

/// Parses a key, given as JSON or as the path of a file.
fn read_key(key: &str, issuer: Option<Issuer>) -> anyhow::Result<TrustedKey> {
    if key.trim_start().starts_with('{') {
        return Ok(TrustedKey::parse(key.as_bytes(), issuer, Path::new("the key"))?);
    }
    let text = std::fs::read(key).with_context(|| format!("`{key}` cannot be read"))?;
    Ok(TrustedKey::parse(&text, issuer, Path::new(key))?)
}

fn describe(key: &TrustedKey) {
    print(format_args!("id          {}", key.id()));
    print(format_args!("issuer      {}", key.issuer()));
    print(format_args!("public key  {}", key.to_jwk()));
}

fn list(keys: &TrustedKeys, json: bool) {
    if json {
        let keys = keys.iter().map(|key| serde_json::from_str(&key.to_jwk()).unwrap_or(Value::Null));
        return print(serde_json::to_string_pretty(&keys.collect::<Vec<Value>>()).unwrap_or_default());
    }
    let mut listing = Listing::new(&["id", "issuer"]);
    keys.iter().for_each(|key| listing.row([text(key.id()), text(key.issuer())]));
    listing.show(std::io::stdout());
}
