//! Keys: those whose proofs are believed, and the one that a governor signs with.
//!
//! Every key is Ed25519. A key is known by its id, which is its thumbprint (RFC 7638) unless its owner
//! named it, and speaks for one issuer. Private keys and shared secrets are files of their own, which
//! nobody but their owner can read; they never stand in a configuration, a log, or a message.

use super::files::{self, FileError, MAX_KEY_FILE_BYTES, check_unchanged_by_others, create};
use super::secrets::SecretsError;
use crate::fault::Fault;
use crate::ident::{Issuer, excerpt};
use crate::wire::jwk::{self, PublicJwk};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ed25519_dalek::{Signature, Signer as _, SigningKey, VerifyingKey};
use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// How the files of a folder of trusted keys end.
const SUFFIX: &str = "jwk";

/// Why a key cannot be used. No message repeats anything of a private key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file or folder cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The text is not a key that can be used here.
    #[error("`{path}`: {reason}")]
    NotAKey {
        /// Where it came from.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The file holds no secrets of agents.
    #[error("`{path}`: {reason}")]
    NotSecrets {
        /// The file.
        path: PathBuf,
        /// What is wrong with it. Part of the sentence, so no `source`, which a chain would say again.
        reason: SecretsError,
    },
    /// Two keys have one id.
    #[error(
        "`{path}`: another trusted key has the id `{id}`, and a proof could mean either: remove one of the two"
    )]
    Twice {
        /// The later file.
        path: PathBuf,
        /// The id.
        id: String,
    },
}

impl KeyError {
    pub(super) fn not_a_key(path: &Path, reason: impl fmt::Display) -> Self {
        Self::NotAKey { path: path.to_owned(), reason: reason.to_string() }
    }
}

/// A public key whose proofs are believed, as far as they speak for its issuer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedKey {
    id: String,
    issuer: Issuer,
    key: VerifyingKey,
}

impl TrustedKey {
    /// Reads a key as JSON (RFC 7517); `path` is where it came from. With `issuer` it speaks for that one,
    /// whatever it says itself.
    ///
    /// # Errors
    /// [`KeyError::NotAKey`], also for a key under which anything verifies, and for one that speaks for
    /// nobody.
    pub fn parse(text: &[u8], issuer: Option<Issuer>, path: &Path) -> Result<Self, KeyError> {
        let jwk = jwk::public(text).map_err(|fault| KeyError::not_a_key(path, said(&fault)))?;
        let key = VerifyingKey::from_bytes(&jwk.x).ok().filter(|key| !key.is_weak());
        let key =
            key.ok_or_else(|| KeyError::not_a_key(path, "`x` is not a point that can be signed with"))?;
        let id = jwk.kid.unwrap_or_else(|| thumbprint(&key));
        let issuer = issuer.or(jwk.issuer).ok_or_else(|| {
            KeyError::not_a_key(
                path,
                "the key does not say for whom it speaks: name the issuer with `--issuer`",
            )
        })?;
        Ok(Self { id, issuer, key })
    }

    /// What a proof names it by (`kid`).
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// For whom it speaks (`iss`).
    #[must_use]
    pub fn issuer(&self) -> &Issuer {
        &self.issuer
    }

    /// The key as JSON.
    #[must_use]
    pub fn to_jwk(&self) -> String {
        let (kid, issuer) = (Some(self.id.clone()), Some(self.issuer.clone()));
        jwk::encode_public(&PublicJwk { x: self.key.to_bytes(), kid, issuer }).get().to_owned()
    }

    /// The key as `a2g/register` has it: `ed25519:` and 64 hexadecimal digits.
    #[must_use]
    pub fn public_key(&self) -> String {
        let digits = self.key.to_bytes().map(|byte| format!("{byte:02x}"));
        format!("ed25519:{}", digits.concat())
    }

    /// The thumbprint of RFC 7638, whatever its id.
    #[must_use]
    pub fn thumbprint(&self) -> String {
        thumbprint(&self.key)
    }

    /// Whether a signature is this key's over these bytes, by the strict rules: one signature for each
    /// message, no matter who looks (RFC 8032, no point of small order).
    pub(super) fn verify(&self, message: &[u8], signature: &[u8]) -> bool {
        Signature::from_slice(signature)
            .is_ok_and(|signature| self.key.verify_strict(message, &signature).is_ok())
    }
}

/// The keys whose proofs are believed, by id.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TrustedKeys(BTreeMap<String, TrustedKey>);

impl TrustedKeys {
    /// Reads a folder: one file for each key, which end in `.jwk`.
    ///
    /// # Ambient Authority
    /// Reads the folder and all such files in it.
    ///
    /// # Errors
    /// [`KeyError`] for the first file that is not a key or that others may change. Nothing is left out:
    /// an operator who put a file there means it.
    pub fn read(folder: &Path) -> Result<Self, KeyError> {
        let io = |error: std::io::Error| FileError::io(folder, error);
        check_unchanged_by_others(folder, &std::fs::metadata(folder).map_err(io)?)?;
        let entries = std::fs::read_dir(folder).map_err(io)?;
        let mut paths = entries
            .map(|entry| entry.map(|entry| entry.path()))
            .collect::<Result<Vec<_>, _>>()
            .map_err(io)?;
        paths.retain(|path| path.extension().is_some_and(|suffix| suffix == SUFFIX));
        paths.sort();
        let mut keys = BTreeMap::new();
        for path in paths {
            let (text, metadata) = files::read(&path, MAX_KEY_FILE_BYTES)?;
            check_unchanged_by_others(&path, &metadata)?;
            let key = TrustedKey::parse(&text, None, &path)?;
            let id = key.id.clone();
            if keys.insert(id.clone(), key).is_some() {
                return Err(KeyError::Twice { path, id });
            }
        }
        Ok(Self(keys))
    }

    /// Adds a key to a folder, which is made when it is not there. It counts from the next time that the
    /// folder is read. Gives the file.
    ///
    /// # Ambient Authority
    /// Reads the folder and writes a file in it.
    ///
    /// # Errors
    /// [`KeyError`] when the folder cannot be used as it is, or has a key with this id or this key.
    pub fn add(folder: &Path, key: &TrustedKey) -> Result<PathBuf, KeyError> {
        if !folder.exists() {
            let mut made = std::fs::DirBuilder::new();
            made.mode(0o755).recursive(true).create(folder).map_err(|error| FileError::io(folder, error))?;
        }
        let known = Self::read(folder)?;
        let path = folder.join(key.thumbprint()).with_extension(SUFFIX);
        if path.exists() && known.iter().any(|other| other == key) {
            return Ok(path);
        }
        if let Some(other) = known.iter().find(|other| other.id == key.id || other.key == key.key) {
            return Err(KeyError::Twice { path, id: other.id.clone() });
        }
        create(&path, &format!("{}\n", key.to_jwk()), 0o644)?;
        Ok(path)
    }

    /// The key with an id.
    pub(super) fn get(&self, id: &str) -> Option<&TrustedKey> {
        self.0.get(id)
    }

    /// All of them, by id.
    pub fn iter(&self) -> impl Iterator<Item = &TrustedKey> {
        self.0.values()
    }
}

/// The key that a governor signs its verdicts with. It shows nothing of itself.
pub struct KeyPair {
    private: SigningKey,
    public: TrustedKey,
}

impl fmt::Debug for KeyPair {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyPair").field("id", &self.public.id).finish_non_exhaustive()
    }
}

impl KeyPair {
    /// Makes a key that speaks for `issuer`, and writes it to a new file that only its owner can read.
    ///
    /// # Ambient Authority
    /// Asks the system for random bytes and makes the file.
    ///
    /// # Errors
    /// [`KeyError::Io`], also when the file is there already.
    pub fn create(path: &Path, issuer: Issuer) -> Result<Self, KeyError> {
        let mut seed = Zeroizing::new([0; 32]);
        getrandom::fill(&mut *seed).map_err(|error| FileError::io(path, std::io::Error::other(error)))?;
        let private = SigningKey::from_bytes(&seed);
        let key = private.verifying_key();
        let public = TrustedKey { id: thumbprint(&key), issuer, key };
        let (kid, issuer) = (Some(public.id.clone()), Some(public.issuer.clone()));
        let text = jwk::encode_private(&PublicJwk { x: key.to_bytes(), kid, issuer }, &seed);
        create(path, &text, 0o600)?;
        Ok(Self { private, public })
    }

    /// Reads a file that [`KeyPair::create`] made.
    ///
    /// # Ambient Authority
    /// Reads the file.
    ///
    /// # Errors
    /// [`KeyError`], also when others can read the file, or its two halves are not of one key.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let text = files::read_secret(path)?;
        let (jwk, seed) = jwk::private(&text).map_err(|fault| KeyError::not_a_key(path, said(&fault)))?;
        let private = SigningKey::from_bytes(&seed);
        let key = private.verifying_key();
        if key.to_bytes() != jwk.x {
            return Err(KeyError::not_a_key(path, "the public part is not of the private one"));
        }
        let issuer = jwk
            .issuer
            .ok_or_else(|| KeyError::not_a_key(path, "`iss` is missing: for whom does it speak?"))?;
        let id = jwk.kid.unwrap_or_else(|| thumbprint(&key));
        Ok(Self { private, public: TrustedKey { id, issuer, key } })
    }

    /// Reads a file that [`KeyPair::create`] made, or makes it for `issuer` when it is not there.
    ///
    /// # Ambient Authority
    /// As [`KeyPair::create`] and [`KeyPair::read`].
    ///
    /// # Errors
    /// As [`KeyPair::create`] and [`KeyPair::read`].
    pub fn read_or_create(path: &Path, issuer: Issuer) -> Result<Self, KeyError> {
        match path.try_exists() {
            Ok(false) => Self::create(path, issuer),
            Ok(true) | Err(_) => Self::read(path),
        }
    }

    /// Its public part.
    #[must_use]
    pub fn public(&self) -> &TrustedKey {
        &self.public
    }

    pub(super) fn sign(&self, message: &[u8]) -> [u8; 64] {
        self.private.sign(message).to_bytes()
    }
}

fn thumbprint(key: &VerifyingKey) -> String {
    let input = jwk::thumbprint_input(&key.to_bytes());
    URL_SAFE_NO_PAD.encode(crate::tool::Digest::of(input.as_bytes()).0)
}

/// The sentence of a decoder.
pub(super) fn said(fault: &Fault) -> String {
    match fault {
        Fault::Parse(message) | Fault::InvalidParams { message, .. } => message.clone(),
        Fault::InvalidRequest(_)
        | Fault::MethodNotFound(_)
        | Fault::ToolUnavailable { .. }
        | Fault::Refused { .. }
        | Fault::RegistrationFailed(_)
        | Fault::SessionExpired(_)
        | Fault::Failed(_)
        | Fault::LimitReached(..)
        | Fault::ReceiptPending { .. }
        | Fault::Busy { .. }
        | Fault::Internal(_) => excerpt(&format!("{fault:?}")),
    }
}

#[cfg(test)]
mod tests;
