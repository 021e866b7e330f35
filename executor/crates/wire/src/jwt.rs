//! The two JSON texts inside a caller's JSON Web Token (RFC 7519): its header and its claims.
//!
//! Both pass [`strict_json::check`] here, because they arrive encoded and no earlier layer has checked them.
//! Unknown members are ignored, as RFC 7515 and RFC 7519 require: identity providers add many, and the caller's
//! permissions come from the executor's own list. Keys and addresses in a header (`jwk`, `jku`, `x5c`, `x5u`)
//! are among the ignored members.

use crate::field::Object;
use crate::strict_json::{self, JsonBounds};
use a2g_types::fault::Fault;
use a2g_types::ident::Issuer;
use std::collections::BTreeSet;
use time::OffsetDateTime;

/// The accepted signature algorithms, one for each kind of key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Ed25519 (RFC 8037), also named `Ed25519` (RFC 9864).
    EdDsa,
    /// ECDSA over P-256 with SHA-256.
    Es256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
}

impl Algorithm {
    /// The accepted names. `none` is absent, and so is every algorithm that would use a public key as a shared
    /// secret.
    pub(super) const NAMES: [(&'static str, Self); 4] =
        [("EdDSA", Self::EdDsa), ("Ed25519", Self::EdDsa), ("ES256", Self::Es256), ("RS256", Self::Rs256)];

    /// The most common name of the algorithm.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

/// The part of a header that selects a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenHeader {
    /// `alg`, which must equal the key's own algorithm.
    pub algorithm: Algorithm,
    /// `kid`.
    pub key: Option<String>,
}

/// The claims of a token. They count only after its signature has been verified.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenClaims {
    /// `iss`.
    pub issuer: Issuer,
    /// `sub`: the identity that the issuer vouches for.
    pub subject: String,
    /// `aud`: the intended recipients.
    pub audiences: Vec<String>,
    /// `exp`: the token is invalid from this time on.
    pub expires_at: OffsetDateTime,
    /// `nbf`: the token is invalid before this time.
    pub not_before: Option<OffsetDateTime>,
    /// `iat`: the time of issue.
    pub issued_at: Option<OffsetDateTime>,
    /// The words of `scope` that begin with `tools:`, without that prefix; `None` without such a word.
    pub tools: Option<BTreeSet<String>>,
}

/// Reads the header of a token.
///
/// `typ` must be absent, `JWT`, or the type of access tokens (RFC 9068). `crit` is rejected, because this reader
/// implements no extension.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into the header; [`Fault::Parse`] for text that is not JSON.
pub fn decode_header(text: &[u8]) -> Result<TokenHeader, Fault> {
    let mut object = Object::parse(strict_json::check(text, &JsonBounds::default())?)?;
    if let Some(critical) = object.take("crit")? {
        return Err(critical.invalid(&"this executor supports no extensions"));
    }
    let types = [("JWT", ()), ("at+jwt", ()), ("application/at+jwt", ())];
    object.read_optional_with("typ", |field| field.enum_value(&types))?;
    Ok(TokenHeader {
        algorithm: object.require("alg")?.enum_value(&Algorithm::NAMES)?,
        key: object.read_optional("kid")?,
    })
}

/// Reads the claims of a token. Times are in whole seconds.
///
/// # Errors
/// As [`decode_header`], with pointers into the claims.
pub fn decode_claims(text: &[u8]) -> Result<TokenClaims, Fault> {
    let mut object = Object::parse(strict_json::check(text, &JsonBounds::default())?)?;
    let audiences = object.require("aud")?;
    let is_list = audiences.as_raw().get().starts_with('[');
    let scope = object.read_optional::<String>("scope")?.unwrap_or_default();
    let tools = scope.split(' ').filter_map(|word| word.strip_prefix("tools:").map(str::to_owned));
    let tools = Some(tools.collect::<BTreeSet<_>>()).filter(|tools| !tools.is_empty());
    Ok(TokenClaims {
        tools,
        issuer: object.read("iss")?,
        subject: object.read("sub")?,
        audiences: if is_list { audiences.strings()? } else { vec![audiences.string()?] },
        expires_at: object.require("exp")?.timestamp()?,
        not_before: object.read_optional_with("nbf", |field| field.timestamp())?,
        issued_at: object.read_optional_with("iat", |field| field.timestamp())?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn describe<T>(read: Result<T, Fault>) -> Result<T, String> {
        read.map_err(|fault| format!("{fault:?}"))
    }

    #[test]
    fn a_header_has_an_accepted_algorithm_and_no_critical_extension() {
        let read = |text: &str| describe(decode_header(text.as_bytes()));
        let whole =
            r#"{"alg":"ES256","typ":"at+jwt","kid":"1","jku":"https://a.example","x5c":["A"],"jwk":{}}"#;
        assert_eq!(read(whole), Ok(TokenHeader { algorithm: Algorithm::Es256, key: Some("1".to_owned()) }));
        assert_eq!(read(r#"{"alg":"Ed25519"}"#), Ok(TokenHeader { algorithm: Algorithm::EdDsa, key: None }));
        for (text, expected) in [
            (r#"{"alg":"none"}"#, "`alg`"),
            (r#"{"alg":"HS256"}"#, "`alg`"),
            (r#"{"alg":"rs256"}"#, "`alg`"),
            (r#"{"alg":"RS512"}"#, "`alg`"),
            (r#"{"alg":"PS256"}"#, "`alg`"),
            (r#"{"alg":["RS256"]}"#, "`alg`"),
            (r#"{"kid":"1"}"#, "`alg` is missing"),
            (r#"{"alg":"RS256","typ":"JWE"}"#, "`typ`"),
            (r#"{"alg":"RS256","typ":"id+jwt"}"#, "`typ`"),
            (r#"{"alg":"RS256","typ":null}"#, "`typ`"),
            (r#"{"alg":"RS256","crit":["exp"]}"#, "`crit`"),
            (r#"{"alg":"RS256","crit":[]}"#, "`crit`"),
            (r#"{"alg":"RS256","kid":1}"#, "`kid`"),
            (r#"{"alg":"RS256","kid":"1","kid":"2"}"#, "duplicate key"),
            (r#"{"alg":"RS256","\u0061lg":"none"}"#, "duplicate key"),
            (r#"["RS256"]"#, "object"),
            ("", "JSON"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn claims_are_decoded_and_invalid_ones_are_refused() {
        let read = |text: &str| describe(decode_claims(text.as_bytes()));
        let whole =
            read(r#"{"iss":"a","sub":"b","aud":"c","exp":10,"nbf":1,"iat":2,"scope":"all","x":{}}"#).unwrap();
        assert_eq!(
            (whole.issuer.as_str(), &*whole.subject, whole.audiences),
            ("a", "b", vec!["c".to_owned()])
        );
        let at = |seconds| OffsetDateTime::from_unix_timestamp(seconds).unwrap();
        assert_eq!(whole.expires_at, at(10));
        assert_eq!((whole.not_before, whole.issued_at), (Some(at(1)), Some(at(2))));
        let several = read(r#"{"iss":"a","sub":"b","aud":["c","d"],"exp":10}"#).unwrap();
        assert_eq!(several.audiences, ["c", "d"]);
        assert_eq!((several.not_before, several.issued_at), (None, None));
        for (text, expected) in [
            (r#"{"sub":"b","aud":"c","exp":10}"#, "`iss` is missing"),
            (r#"{"iss":"a","aud":"c","exp":10}"#, "`sub` is missing"),
            (r#"{"iss":"a","sub":"b","exp":10}"#, "`aud` is missing"),
            (r#"{"iss":"a","sub":"b","aud":"c"}"#, "`exp` is missing"),
            (r#"{"iss":"a b","sub":"b","aud":"c","exp":10}"#, "`iss`"),
            (r#"{"iss":"a","sub":1,"aud":"c","exp":10}"#, "`sub`"),
            (r#"{"iss":"a","sub":"b","aud":["c",1],"exp":10}"#, "`aud[1]`"),
            (r#"{"iss":"a","sub":"b","aud":{},"exp":10}"#, "`aud`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":"10"}"#, "`exp`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":1e3}"#, "`exp`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":10.5}"#, "`exp`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":-1}"#, "`exp`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":null}"#, "`exp`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":253402300800}"#, "`exp`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":10,"nbf":null}"#, "`nbf`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":10,"iat":"1"}"#, "`iat`"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":10,"exp":20}"#, "duplicate key"),
            (r#"{"iss":"a","sub":"b","aud":"c","exp":10} "#, ""),
        ] {
            match read(text) {
                Err(error) => assert!(error.contains(expected), "{text}: {error}"),
                Ok(_) => assert!(expected.is_empty(), "{text}"),
            }
        }
    }
}
