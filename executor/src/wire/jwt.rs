//! The two JSON texts inside a JSON Web Token (RFC 7519) of a caller: its header, and its claims.
//!
//! Both are held to [`strict_json::check`] here, because they came encoded and nobody has looked at them.
//! Members that are not known are passed over, as RFC 7515 and RFC 7519 say: identity providers put many into
//! their tokens, and what a caller may do stands in the executor's own list. Keys and addresses that a header
//! brings along (`jwk`, `jku`, `x5c`, `x5u`) are among those.

use crate::fault::Fault;
use crate::ident::Issuer;
use crate::wire::field::Object;
use crate::wire::strict_json::{self, JsonBounds};
use time::OffsetDateTime;

/// The algorithms by which tokens are signed. Each kind of key has one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Ed25519 (RFC 8037); `Ed25519` is the name that RFC 9864 gives to the same.
    EdDsa,
    /// ECDSA over P-256 with SHA-256.
    Es256,
    /// RSASSA-PKCS1-v1_5 with SHA-256.
    Rs256,
}

impl Algorithm {
    /// Every name, with what it stands for. Other algorithms have none here: not `none`, and none that would
    /// take a public key for a shared secret.
    pub(super) const NAMES: [(&'static str, Self); 4] =
        [("EdDSA", Self::EdDsa), ("Ed25519", Self::EdDsa), ("ES256", Self::Es256), ("RS256", Self::Rs256)];

    /// The name that most libraries write.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::EdDsa => "EdDSA",
            Self::Es256 => "ES256",
            Self::Rs256 => "RS256",
        }
    }
}

/// What a header says of the key, which decides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Header {
    /// `alg`: what the key's own algorithm has to be.
    pub algorithm: Algorithm,
    /// `kid`: which key it is.
    pub key: Option<String>,
}

/// What a token says, once its signature is known to be good.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claims {
    /// `iss`: who issued it.
    pub issuer: Issuer,
    /// `sub`: whom it is about.
    pub subject: String,
    /// `aud`: whom it is for.
    pub audiences: Vec<String>,
    /// `exp`: not to be used from then on.
    pub expires_at: OffsetDateTime,
    /// `nbf`: not to be used before.
    pub not_before: Option<OffsetDateTime>,
    /// `iat`: when it was issued.
    pub issued_at: Option<OffsetDateTime>,
}

/// Reads the header of a token.
///
/// `typ` is `JWT`, that of access tokens (RFC 9068), or not there; `crit` is refused, because nothing that it
/// could ask for is understood.
///
/// # Errors
/// [`Fault::InvalidParams`] with a pointer into the header; [`Fault::Parse`] for text that is not JSON.
pub fn header(text: &[u8]) -> Result<Header, Fault> {
    let mut object = Object::root(strict_json::check(text, &JsonBounds::default())?)?;
    if let Some(critical) = object.take("crit")? {
        return Err(critical.refused(&"no extension is known here"));
    }
    let types = [("JWT", ()), ("at+jwt", ()), ("application/at+jwt", ())];
    object.take("typ")?.map(|field| field.word(&types)).transpose()?;
    Ok(Header {
        algorithm: object.need("alg")?.word(&Algorithm::NAMES)?,
        key: object.take("kid")?.map(|field| field.text()).transpose()?,
    })
}

/// Reads the claims of a token. Times are in whole seconds.
///
/// # Errors
/// As [`header`], with pointers into the claims.
pub fn claims(text: &[u8]) -> Result<Claims, Fault> {
    let mut object = Object::root(strict_json::check(text, &JsonBounds::default())?)?;
    let audiences = object.need("aud")?;
    let several = audiences.raw().get().starts_with('[');
    Ok(Claims {
        issuer: object.need("iss")?.parsed(Issuer::parse)?,
        subject: object.need("sub")?.text()?,
        audiences: if several { audiences.texts()? } else { vec![audiences.text()?] },
        expires_at: object.need("exp")?.second()?,
        not_before: object.take("nbf")?.map(|field| field.second()).transpose()?,
        issued_at: object.take("iat")?.map(|field| field.second()).transpose()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said<T>(read: Result<T, Fault>) -> Result<T, String> {
        read.map_err(|fault| format!("{fault:?}"))
    }

    #[test]
    fn a_header_names_one_algorithm_and_nothing_that_is_critical() {
        let read = |text: &str| said(header(text.as_bytes()));
        let whole =
            r#"{"alg":"ES256","typ":"at+jwt","kid":"1","jku":"https://a.example","x5c":["A"],"jwk":{}}"#;
        assert_eq!(read(whole), Ok(Header { algorithm: Algorithm::Es256, key: Some("1".to_owned()) }));
        assert_eq!(read(r#"{"alg":"Ed25519"}"#), Ok(Header { algorithm: Algorithm::EdDsa, key: None }));
        for (text, words) in [
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
            let refused = read(text).unwrap_err();
            assert!(refused.contains(words), "{text}: {refused}");
        }
    }

    #[test]
    fn claims_are_read_as_they_are_written() {
        let read = |text: &str| said(claims(text.as_bytes()));
        let whole =
            read(r#"{"iss":"a","sub":"b","aud":"c","exp":10,"nbf":1,"iat":2,"scope":"all","x":{}}"#).unwrap();
        assert_eq!(
            (whole.issuer.as_str(), &*whole.subject, whole.audiences),
            ("a", "b", vec!["c".to_owned()])
        );
        let second = |text| OffsetDateTime::from_unix_timestamp(text).unwrap();
        assert_eq!(whole.expires_at, second(10));
        assert_eq!((whole.not_before, whole.issued_at), (Some(second(1)), Some(second(2))));
        let several = read(r#"{"iss":"a","sub":"b","aud":["c","d"],"exp":10}"#).unwrap();
        assert_eq!(several.audiences, ["c", "d"]);
        assert_eq!((several.not_before, several.issued_at), (None, None));
        for (text, words) in [
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
                Err(refused) => assert!(refused.contains(words), "{text}: {refused}"),
                Ok(_) => assert!(words.is_empty(), "{text}"),
            }
        }
    }
}
