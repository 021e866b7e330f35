//! The signers whose tools the operator accepts (`[catalog.trust]`).
//!
//! ```text
//! ToolTrust ─ check(package, signatures) ─▶ TrustedTool ─▶ the catalogue compiles and loads the module
//!                     └─ SignatureError: nothing is compiled or loaded
//! ```
//! Only [`ToolTrust::check`] makes a [`TrustedTool`], and the catalogue loads no module without one. A `TrustedTool`
//! has the expiry of its signature, which each call checks.

use super::keys::KeyError;
use super::tool_key::ToolKey;
use super::tool_signature::{Payload, StoredSignature, claimed_key, parse_signatures};
use a2g_types::clock::{Clock, format_seconds};
use a2g_types::ident::{SignerName, ToolName, excerpt};
use a2g_types::tool::{Digest, ToolSignature};
use globset::GlobMatcher;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use time::OffsetDateTime;

/// The maximum number of signers.
pub const MAX_SIGNERS: usize = 64;

/// The names of tools that a signer may sign: a name in which `*` matches any characters.
#[derive(Debug, Clone)]
pub struct ToolPattern {
    text: String,
    matcher: GlobMatcher,
}

impl ToolPattern {
    /// Parses a pattern.
    ///
    /// # Errors
    /// If the pattern has characters other than `*` and those of a tool's name.
    pub fn parse(text: &str) -> Result<Self, String> {
        let alphabet = |b: u8| b.is_ascii_alphanumeric() || b"_-.*".contains(&b);
        let glob = globset::Glob::new(text);
        match glob {
            Ok(glob) if (1..=64).contains(&text.len()) && text.bytes().all(alphabet) => {
                Ok(Self { text: text.to_owned(), matcher: glob.compile_matcher() })
            }
            Ok(_) | Err(_) => Err(format!(
                "has the pattern `{}`: a pattern is a tool's name, in which `*` stands for any characters",
                excerpt(text)
            )),
        }
    }

    fn includes(&self, tool: &ToolName) -> bool {
        self.matcher.is_match(tool.as_str())
    }
}

impl fmt::Display for ToolPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The operator's settings for one signer.
#[derive(Debug, Clone)]
pub struct SignerSettings {
    /// The name, shown in lists and receipts.
    pub name: SignerName,
    /// The file of the public key.
    pub key_file: PathBuf,
    /// The tools that the signer may sign.
    pub tools: Vec<ToolPattern>,
}

/// The signers that the operator trusts, if signatures are required.
#[derive(Debug, Clone)]
pub struct ToolTrust(Requirement);

#[derive(Clone)]
enum Requirement {
    Nothing,
    Signature { signers: Vec<Signer>, clock: Arc<dyn Clock> },
}

impl fmt::Debug for Requirement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("Nothing"),
            Self::Signature { signers, clock: _ } => f.debug_tuple("Signature").field(signers).finish(),
        }
    }
}

#[derive(Debug, Clone)]
struct Signer {
    name: SignerName,
    key: ToolKey,
    tools: Vec<ToolPattern>,
}

/// A tool as read from its folder, with its package and signatures.
#[derive(Debug, Clone, Copy)]
pub struct OfferedTool<'a> {
    /// The name in `tool.toml`.
    pub name: &'a ToolName,
    /// The version in `tool.toml`.
    pub version: &'a str,
    /// The digest of the package, which has exactly the files of the tool.
    pub package: Digest,
    /// The content of `signatures.json`.
    pub signatures: Option<&'a [u8]>,
}

/// The evidence that a tool may be compiled and loaded: no signature is required, or a trusted signer has signed the
/// tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrustedTool(Option<ToolSignature>);

impl TrustedTool {
    /// The signature; `None` if none is required.
    #[must_use]
    pub fn signature(&self) -> Option<&ToolSignature> {
        self.0.as_ref()
    }

    /// Checks that the signature has not expired since the tool was loaded.
    ///
    /// # Errors
    /// [`SignatureError::Expired`].
    pub fn check_expiry(&self, now: OffsetDateTime) -> Result<(), SignatureError> {
        match &self.0 {
            Some(ToolSignature { signer, package: _, expires_at: Some(at) }) if *at <= now => {
                Err(SignatureError::Expired { signer: signer.clone(), at: format_seconds(*at) })
            }
            Some(_) | None => Ok(()),
        }
    }
}

/// The reason why a tool is refused where signatures are required.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureError {
    /// The tool has no package, and so no signature.
    #[error(
        "the tool is not signed: it has no package (`manifest.json`), and this executor requires a signature \
         (`[catalog.trust]`): its signer runs `a2g-executor tool sign`"
    )]
    NotPackaged,
    /// The tool has a package without signatures.
    #[error(
        "the tool is not signed, and this executor requires a signature (`[catalog.trust]`): its signer runs \
         `a2g-executor tool sign`"
    )]
    Unsigned,
    /// `signatures.json` cannot be read.
    #[error("the signatures of the tool (`signatures.json`) cannot be read: {0}")]
    Malformed(String),
    /// No key of the list verifies any signature.
    #[error(
        "no signer of this executor's list (`[catalog.trust]`) has signed the tool{}",
        .key.as_ref().map_or_else(String::new, |key| format!(": it is signed with the key `{key}`, which is not in the list"))
    )]
    UnknownSigner {
        /// The id of the key that the signature claims.
        key: Option<String>,
    },
    /// A signature claims a key of the list, but that key does not verify it.
    #[error(
        "the signature by `{signer}` does not verify: the payload or the signature was changed after it was made"
    )]
    Changed {
        /// The signer whose key is claimed.
        signer: SignerName,
    },
    /// A verified payload is not a valid signature of a package.
    #[error("the payload that `{signer}` signed is not accepted: {reason}")]
    Payload {
        /// The signer.
        signer: SignerName,
        /// The problem.
        reason: String,
    },
    /// The signature is for another tool.
    #[error("the signature by `{signer}` is for the tool `{signed}`, but was found with the tool `{found}`")]
    OtherTool {
        /// The signer.
        signer: SignerName,
        /// The tool in the signature.
        signed: String,
        /// The tool that was checked.
        found: ToolName,
    },
    /// The signature is for another version.
    #[error(
        "the signature by `{signer}` is for version `{signed}`, and was put beside version `{found}` of the tool"
    )]
    OtherVersion {
        /// The signer.
        signer: SignerName,
        /// The version in the signature.
        signed: String,
        /// The version of the tool.
        found: String,
    },
    /// The signature is for another package.
    #[error(
        "the signature by `{signer}` is for the package sha256:{signed}, and the tool's package is sha256:{found}: its \
         manifest (`manifest.json`) was changed after it was signed, or the signature belongs to another package"
    )]
    OtherPackage {
        /// The signer.
        signer: SignerName,
        /// The package in the signature.
        signed: Digest,
        /// The tool's package.
        found: Digest,
    },
    /// The signer may not sign tools of this name.
    #[error(
        "`{signer}` signed the tool, and may not sign tools of the name `{tool}`, but only {patterns} (`tools` of \
         `[[catalog.trust.signer]]`)"
    )]
    NotAllowed {
        /// The signer.
        signer: SignerName,
        /// The tool.
        tool: ToolName,
        /// The patterns that the operator set.
        patterns: String,
    },
    /// The signature has expired.
    #[error("the signature by `{signer}` expired at {at}: the signer has to sign the tool again")]
    Expired {
        /// The signer.
        signer: SignerName,
        /// The time, in RFC 3339.
        at: String,
    },
}

impl SignatureError {
    /// How many checks the signature passed: the refusal names the signature that passed most.
    fn progress(&self) -> u8 {
        match self {
            Self::NotPackaged | Self::Unsigned | Self::Malformed(_) => 0,
            Self::UnknownSigner { .. } => 1,
            Self::Changed { .. } => 2,
            Self::Payload { .. } => 3,
            Self::OtherTool { .. } | Self::OtherVersion { .. } | Self::OtherPackage { .. } => 4,
            Self::NotAllowed { .. } => 5,
            Self::Expired { .. } => 6,
        }
    }
}

impl ToolTrust {
    /// Requires no signature.
    #[must_use]
    pub fn anyone() -> Self {
        Self(Requirement::Nothing)
    }

    /// Requires signatures, and trusts no signer: every tool is refused.
    #[must_use]
    pub fn nobody(clock: Arc<dyn Clock>) -> Self {
        Self(Requirement::Signature { signers: Vec::new(), clock })
    }

    /// Reads the keys of the signers; `None` requires no signature.
    ///
    /// # Ambient Authority
    /// Reads the files of the settings.
    ///
    /// # Errors
    /// [`KeyError`] for the first file that is not a key or that other users can change, and for a key that two signers
    /// share.
    pub fn read(settings: Option<&[SignerSettings]>, clock: Arc<dyn Clock>) -> Result<Self, KeyError> {
        let Some(settings) = settings else { return Ok(Self::anyone()) };
        let mut signers = Vec::<Signer>::new();
        for SignerSettings { name, key_file, tools } in settings {
            let key = ToolKey::read(key_file)?;
            if let Some(other) = signers.iter().find(|other| other.key == key) {
                let reason = format_args!("`{name}` and `{}` have the same key: name it once", other.name);
                return Err(KeyError::not_a_key(key_file, reason));
            }
            signers.push(Signer { name: name.clone(), key, tools: tools.clone() });
        }
        Ok(Self(Requirement::Signature { signers, clock }))
    }

    /// Returns `true` if tools need a signature.
    #[must_use]
    pub fn requires_signatures(&self) -> bool {
        match self.0 {
            Requirement::Nothing => false,
            Requirement::Signature { .. } => true,
        }
    }

    /// The number of trusted signers; `None` if no signature is required.
    #[must_use]
    pub fn signer_count(&self) -> Option<usize> {
        match &self.0 {
            Requirement::Nothing => None,
            Requirement::Signature { signers, clock: _ } => Some(signers.len()),
        }
    }

    /// Checks the signatures of a tool; `offered` is `None` for a tool without a package. Of several valid signatures,
    /// the one that expires last counts.
    ///
    /// # Errors
    /// [`SignatureError`] of the signature that passed most checks.
    pub fn check(&self, offered: Option<OfferedTool<'_>>) -> Result<TrustedTool, SignatureError> {
        let (signers, clock) = match &self.0 {
            Requirement::Nothing => return Ok(TrustedTool(None)),
            Requirement::Signature { signers, clock } => (signers, clock),
        };
        let offered = offered.ok_or(SignatureError::NotPackaged)?;
        let bytes = offered.signatures.ok_or(SignatureError::Unsigned)?;
        let signatures = parse_signatures(bytes).map_err(SignatureError::Malformed)?;
        let now = clock.now();
        let mut best = Err(SignatureError::Unsigned);
        for signature in &signatures {
            let checked = check_one(signers, &offered, signature, now);
            best = match (best, checked) {
                (Ok(best), Ok(new)) => Ok(later(best, new)),
                (Ok(best), Err(_)) => Ok(best),
                (Err(_), Ok(new)) => Ok(new),
                (Err(best), Err(new)) if new.progress() > best.progress() => Err(new),
                (Err(best), Err(_)) => Err(best),
            };
        }
        best.map(|signature| TrustedTool(Some(signature)))
    }

    /// Chooses among signatures that anybody may have put beside a tool: those that [`Self::check`] would accept, or, if
    /// there is none, those that come nearest to it. Where no signature is required, all are kept.
    #[must_use]
    pub fn keep_nearest(
        &self,
        offered: &OfferedTool<'_>,
        signatures: Vec<StoredSignature>,
    ) -> Vec<StoredSignature> {
        let (signers, clock) = match &self.0 {
            Requirement::Nothing => return signatures,
            Requirement::Signature { signers, clock } => (signers, clock),
        };
        let now = clock.now();
        let nearness = |signature: &StoredSignature| {
            check_one(signers, offered, signature, now)
                .map_or_else(|error| error.progress(), |_valid| u8::MAX)
        };
        let rated = signatures.into_iter().map(|one| (nearness(&one), one)).collect::<Vec<_>>();
        let best = rated.iter().map(|(nearness, _)| *nearness).max();
        rated.into_iter().filter(|(nearness, _)| Some(*nearness) == best).map(|(_, one)| one).collect()
    }
}

/// Checks one signature against all signers.
fn check_one(
    signers: &[Signer],
    offered: &OfferedTool<'_>,
    StoredSignature { payload, signature }: &StoredSignature,
    now: OffsetDateTime,
) -> Result<ToolSignature, SignatureError> {
    let Some(Signer { name: signer, key: _, tools }) =
        signers.iter().find(|signer| signer.key.verifies(payload, signature))
    else {
        let claimed = claimed_key(payload);
        let listed = signers.iter().find(|signer| claimed.as_ref() == Some(&signer.key.id()));
        return Err(match listed {
            Some(signer) => SignatureError::Changed { signer: signer.name.clone() },
            None => SignatureError::UnknownSigner { key: claimed.map(|key| excerpt(&key)) },
        });
    };
    let OfferedTool { name, version, package, signatures: _ } = *offered;
    let signer = signer.clone();
    let Payload { package: signed, tool, version: signed_version, expires_at } = Payload::parse(payload)
        .map_err(|reason| SignatureError::Payload { signer: signer.clone(), reason })?;
    if let Some(tool) = tool.filter(|tool| tool != name.as_str()) {
        return Err(SignatureError::OtherTool { signer, signed: excerpt(&tool), found: name.clone() });
    }
    if let Some(other) = signed_version.filter(|signed| signed != version) {
        return Err(SignatureError::OtherVersion {
            signer,
            signed: excerpt(&other),
            found: excerpt(version),
        });
    }
    if signed != package {
        return Err(SignatureError::OtherPackage { signer, signed, found: package });
    }
    if !tools.iter().any(|pattern| pattern.includes(name)) {
        let patterns = tools.iter().map(|pattern| format!("`{pattern}`")).collect::<Vec<_>>();
        return Err(SignatureError::NotAllowed { signer, tool: name.clone(), patterns: patterns.join(", ") });
    }
    let signature = ToolSignature { signer, package, expires_at };
    let trusted = TrustedTool(Some(signature.clone()));
    trusted.check_expiry(now).map(|()| signature)
}

/// The signature that expires later; one without expiry is the latest.
fn later(a: ToolSignature, b: ToolSignature) -> ToolSignature {
    match (a.expires_at, b.expires_at) {
        (Some(first), Some(second)) if second > first => b,
        (Some(_), None) => b,
        (Some(_), Some(_)) | (None, Some(_) | None) => a,
    }
}

#[cfg(test)]
mod tests;
