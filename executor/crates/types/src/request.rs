//! The requests that a tool declares: a method, a host and a pattern of paths.
//!
//! A path is compared only in a form that has one reading ([`PlainPath`]). Servers, proxies and frameworks
//! differ in what they make of `/a/..%2Fb`, `/a//b` or `/a/..;/b`, so such a path could reach what no pattern
//! matches.

use crate::ident::excerpt;
use std::fmt;
use std::str::Bytes;

/// Maximum length of a declared request, in bytes.
const MAX_BYTES: usize = 512;
/// Maximum length of a method, in bytes.
const MAX_METHOD_BYTES: usize = 32;
/// Methods that no request may declare: the first opens a tunnel, and the others return the request that a
/// server got.
const REFUSED_METHODS: [&str; 3] = ["CONNECT", "TRACE", "TRACK"];
/// Characters that some servers read as dots (Unicode's NFKC, or IDNA), or remove at the end of a segment.
const DOTS_AND_TRIMMED: &str = ".+\u{2024}\u{2025}\u{2026}\u{3002}\u{fe19}\u{fe30}\u{fe52}\u{ff0e}\u{ff61}";
/// Characters of which NFKC makes `/`, `\`, `?`, `#`, `;` or `%`, or a text with one of these.
const FOLDED_SEPARATORS: &str = "\u{37e}\u{2047}\u{2048}\u{2049}\u{2100}\u{2101}\u{2105}\u{2106}\u{fe14}\u{fe16}\
                                 \u{fe54}\u{fe56}\u{fe5f}\u{fe68}\u{fe6a}\u{ff03}\u{ff05}\u{ff0f}\u{ff1b}\u{ff1f}\
                                 \u{ff3c}";
/// The segment of a pattern that stands for everything below the ones before it.
const REST: &str = "**";

/// The reason why a text is not a declared request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is no request such as `GET https://api.example.com/items/{{id}}`: {reason}")]
pub struct RequestError {
    text: String,
    reason: &'static str,
}

/// A request that a tool declares, such as `GET https://api.example.com/items/{id}`. The query is not part of
/// it.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeclaredRequest {
    /// The declaration as it was written.
    text: String,
    method: String,
    is_https: bool,
    host: String,
    port: u16,
    path: PathPattern,
}

impl DeclaredRequest {
    /// Parses a method in upper case, one space and a URL. A segment of its path may be `*`, `{name}` or text
    /// with one `{name}`, each of which stands for one segment that is not empty; `**` as the last one stands
    /// for every path below the segments before it.
    ///
    /// # Errors
    /// [`RequestError`] for any other text. Whether the host is a valid one is decided by its parser.
    pub fn parse(text: &str) -> Result<Self, RequestError> {
        Self::read(text).map_err(|reason| RequestError { text: excerpt(text), reason })
    }

    fn read(text: &str) -> Result<Self, &'static str> {
        if text.len() > MAX_BYTES {
            return Err("it is longer than 512 bytes");
        }
        let (method, url) = text.split_once(' ').ok_or("it needs a method, one space and a URL")?;
        if !is_method(method) {
            return Err("its method is not in upper case, or is CONNECT, TRACE or TRACK");
        }
        let is_https = url.starts_with("https://");
        let scheme = if is_https { "https://" } else { "http://" };
        let url = url.strip_prefix(scheme).ok_or("its URL begins with neither `https://` nor `http://`")?;
        let (authority, path) = url.split_once('/').ok_or("its path is missing; `/**` is every path")?;
        let (host, port) = match authority.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => {
                let number = port.parse::<u16>().ok().filter(|n| *n != 0 && n.to_string() == port);
                (host, number.ok_or("its port is not a number from 1 to 65535")?)
            }
            Some(_) | None => (authority, if is_https { 443 } else { 80 }),
        };
        let is_host_byte = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if host.is_empty() || !host.bytes().all(is_host_byte) {
            return Err("its host is not one host in ASCII");
        }
        Ok(Self {
            text: text.to_owned(),
            method: method.to_owned(),
            is_https,
            host: host.to_owned(),
            port,
            path: PathPattern::parse(path)?,
        })
    }

    /// `true` for a request over TLS.
    #[must_use]
    pub fn is_https(&self) -> bool {
        self.is_https
    }

    /// The text of the host.
    #[must_use]
    pub fn host(&self) -> &str {
        &self.host
    }

    /// The port; without one in the URL, that of the scheme.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// `true` if a request to the declared host with this method and path is a declared one.
    #[must_use]
    pub fn matches(&self, method: &str, path: &PlainPath<'_>) -> bool {
        self.method == method && self.path.matches(path)
    }

    /// `true` if `other` allows every request that this allows. May be `false` for two that differ in
    /// spelling.
    #[must_use]
    pub fn is_within(&self, other: &Self) -> bool {
        let Self { text: _, method, is_https, host, port, path } = self;
        *method == other.method
            && *is_https == other.is_https
            && *host == other.host
            && *port == other.port
            && path.is_within(&other.path)
    }

    /// `true` if there is a request to one host that both allow, whatever their hosts are: only its parser knows
    /// whether two texts name one host. May be `true` for two that share none.
    #[must_use]
    pub fn overlaps(&self, other: &Self) -> bool {
        let Self { text: _, method, is_https, host: _, port, path } = self;
        *method == other.method
            && *is_https == other.is_https
            && *port == other.port
            && path.overlaps(&other.path)
    }
}

impl fmt::Display for DeclaredRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn is_method(text: &str) -> bool {
    (1..=MAX_METHOD_BYTES).contains(&text.len())
        && text.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'-')
        && !REFUSED_METHODS.contains(&text)
}

/// A pattern of plain paths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct PathPattern {
    segments: Vec<Segment>,
    /// `true` if the pattern matches the paths below its segments, and not the path that ends with them.
    has_rest: bool,
}

/// A segment of a pattern.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    /// This text; empty only as the last segment.
    Literal(String),
    /// Any segment that is not empty.
    Any,
    /// A text between these two that is not empty and has no parameter (`;`), which some servers remove.
    Within { prefix: String, suffix: String },
}

impl PathPattern {
    /// Parses a path without its first `/`.
    fn parse(text: &str) -> Result<Self, &'static str> {
        let mut texts = text.split('/').collect::<Vec<_>>();
        let has_rest = texts.last() == Some(&REST);
        if has_rest {
            texts.pop();
        }
        let mut inner = texts.iter().rev().skip(usize::from(!has_rest));
        if inner.any(|text| text.is_empty()) {
            return Err("its path has an empty segment");
        }
        let segments = texts.into_iter().map(Segment::parse).collect::<Result<_, _>>()?;
        Ok(Self { segments, has_rest })
    }

    fn matches(&self, PlainPath(path): &PlainPath<'_>) -> bool {
        let is_deep_enough = match self.has_rest {
            true => path.len() > self.segments.len(),
            false => path.len() == self.segments.len(),
        };
        is_deep_enough && self.segments.iter().zip(path).all(|(segment, text)| segment.matches(text))
    }

    /// `true` if there is a path that both match; may be `true` for two that share none.
    fn overlaps(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|pattern| pattern.segments.len());
        let is_deep_enough = match (self.has_rest, other.has_rest) {
            (false, false) => own == others,
            (true, false) => others > own,
            (false, true) => own > others,
            (true, true) => true,
        };
        is_deep_enough && self.segments.iter().zip(&other.segments).all(|(one, wide)| one.overlaps(wide))
    }

    /// `true` if `other` matches every path that this matches.
    fn is_within(&self, other: &Self) -> bool {
        let [own, others] = [self, other].map(|pattern| pattern.segments.len());
        let is_deep_enough = match (self.has_rest, other.has_rest) {
            (false, false) => own == others,
            (true, false) => false,
            (false, true) => own > others,
            (true, true) => own >= others,
        };
        is_deep_enough && self.segments.iter().zip(&other.segments).all(|(one, wide)| one.is_within(wide))
    }
}

impl Segment {
    fn parse(text: &str) -> Result<Self, &'static str> {
        const NOT_PLAIN: &str = "its path has a segment that servers read in more than one way, or a character that has \
                                 to be percent-encoded";
        if text == "*" {
            return Ok(Self::Any);
        }
        if text.contains('*') {
            return Err("its path has a `*` that is not a whole segment, or a `**` that is not the last one");
        }
        let Some((prefix, rest)) = text.split_once('{') else {
            let is_literal = text.is_empty() || is_plain_segment(text);
            return if is_literal { Ok(Self::Literal(text.to_owned())) } else { Err(NOT_PLAIN) };
        };
        let is_name_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let is_name = |name: &str| !name.is_empty() && name.bytes().all(is_name_byte);
        let named = rest.split_once('}').filter(|(name, _)| is_name(name));
        let (_, suffix) = named.ok_or("its path has a `{` that begins no `{name}`")?;
        if suffix.contains('{') {
            return Err("a segment of its path has more than one `{name}`: write `*` for the whole segment");
        }
        if decode(prefix).is_none() || decode(suffix).is_none() {
            return Err(NOT_PLAIN);
        }
        if prefix.is_empty() && suffix.is_empty() {
            return Ok(Self::Any);
        }
        Ok(Self::Within { prefix: prefix.to_owned(), suffix: suffix.to_owned() })
    }

    /// `true` if the pattern matches this segment of a plain path.
    fn matches(&self, text: &str) -> bool {
        match self {
            Self::Literal(literal) => literal == text,
            Self::Any => !text.is_empty(),
            Self::Within { prefix, suffix } => {
                let value =
                    text.strip_prefix(prefix.as_str()).and_then(|rest| rest.strip_suffix(suffix.as_str()));
                value.is_some_and(|value| !value.is_empty() && has_no_parameter(value))
            }
        }
    }

    /// `true` if there is a segment that both match; may be `true` for two that share none.
    fn overlaps(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(text), other) | (other, Self::Literal(text)) => other.matches(text),
            (Self::Any | Self::Within { .. }, Self::Any | Self::Within { .. }) => true,
        }
    }

    /// `true` if `other` matches every segment that this matches.
    fn is_within(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Literal(text), _) => other.matches(text),
            (Self::Any | Self::Within { .. }, Self::Any) => true,
            (
                Self::Within { prefix, suffix },
                Self::Within { prefix: other_prefix, suffix: other_suffix },
            ) => {
                let before = prefix.strip_prefix(other_prefix.as_str());
                let after = suffix.strip_suffix(other_suffix.as_str());
                before.is_some_and(has_no_parameter) && after.is_some_and(has_no_parameter)
            }
            (Self::Any, Self::Literal(_) | Self::Within { .. }) | (Self::Within { .. }, Self::Literal(_)) => {
                false
            }
        }
    }
}

/// `true` for a part of a segment that is whole percent-encodings and characters, and has no `;`.
fn has_no_parameter(text: &str) -> bool {
    decode(text).is_some_and(|decoded| !decoded.contains(';'))
}

/// The segments of a path that has one reading.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainPath<'a>(Vec<&'a str>);

impl<'a> PlainPath<'a> {
    /// The segments of a path as it is sent; `None` if a server could read another path in it. These have
    /// more than one reading: an empty segment that is not the last one; a segment of dots, also with `+`,
    /// white space, characters that show nothing or a parameter (`..;x`); an encoded `/`, `\`, `?`, `#`, control character or
    /// unreserved character; an encoding inside an encoding (`%252F`); a character that Unicode's NFKC turns into
    /// one of these; a byte that has to be encoded, and an encoding that is not UTF-8.
    #[must_use]
    pub fn parse(path: &'a str) -> Option<Self> {
        let segments = path.strip_prefix('/')?.split('/').collect::<Vec<_>>();
        let (last, others) = segments.split_last()?;
        let is_last_plain = last.is_empty() || is_plain_segment(last);
        let is_plain = is_last_plain && others.iter().all(|segment| is_plain_segment(segment));
        is_plain.then_some(Self(segments))
    }
}

/// `true` for a segment that is not empty and has one reading.
fn is_plain_segment(segment: &str) -> bool {
    let Some(decoded) = decode(segment) else { return false };
    // Some servers remove parameters, and white space and dots at the end.
    let name = decoded.split(';').next().unwrap_or_default();
    let is_removed = |letter: char| letter.is_whitespace() || is_ignorable(letter);
    !name.chars().all(|letter| is_removed(letter) || DOTS_AND_TRIMMED.contains(letter))
}

/// `true` for a character that shows nothing, which some servers remove (Unicode's `Default_Ignorable_Code_Point`).
fn is_ignorable(letter: char) -> bool {
    matches!(
        letter,
        '\u{ad}'
            | '\u{34f}'
            | '\u{61c}'
            | '\u{115f}'..='\u{1160}'
            | '\u{17b4}'..='\u{17b5}'
            | '\u{180b}'..='\u{180f}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{3164}'
            | '\u{fe00}'..='\u{fe0f}'
            | '\u{feff}'
            | '\u{ffa0}'
            | '\u{fff0}'..='\u{fff8}'
            | '\u{1bca0}'..='\u{1bca3}'
            | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e0fff}'
    )
}

/// A part of a path with its encoded bytes decoded; `None` if it has more than one reading.
fn decode(text: &str) -> Option<String> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            decoded.push(decode_byte(&mut bytes)?);
        } else if is_unreserved(byte) || b"!$&'()*+,;=:@".contains(&byte) {
            decoded.push(byte);
        } else {
            return None;
        }
    }
    String::from_utf8(decoded)
        .ok()
        .filter(|text| !text.contains(|letter: char| FOLDED_SEPARATORS.contains(letter)))
}

/// The byte that the next two digits encode; `None` if it has more than one reading.
fn decode_byte(bytes: &mut Bytes<'_>) -> Option<u8> {
    let byte = take_byte(bytes)?;
    let is_encoded_twice = byte == b'%' && take_byte(&mut bytes.clone()).is_some();
    let is_separator = b"/\\?#".contains(&byte) || byte.is_ascii_control();
    let has_readings = is_encoded_twice || is_separator || is_unreserved(byte);
    (!has_readings).then_some(byte)
}

/// Takes two hexadecimal digits.
fn take_byte(bytes: &mut Bytes<'_>) -> Option<u8> {
    let mut digit = || char::from(bytes.next()?).to_digit(16);
    let high = digit()?;
    let low = digit()?;
    u8::try_from(high * 16 + low).ok()
}

/// `true` for a character that is the same with and without an encoding (RFC 3986, section 2.3).
fn is_unreserved(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-._~".contains(&byte)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(text: &str) -> DeclaredRequest {
        DeclaredRequest::parse(text).unwrap()
    }

    /// The declaration of a GET of this path at one host.
    fn get(path: &str) -> DeclaredRequest {
        request(&format!("GET https://a.example{path}"))
    }

    fn fits(pattern: &str, path: &str) -> bool {
        PlainPath::parse(path).is_some_and(|path| get(pattern).matches("GET", &path))
    }

    #[test]
    fn a_declaration_has_a_method_a_host_and_a_path() {
        for (text, is_https, host, port) in [
            ("GET https://api.example.com/", true, "api.example.com", 443),
            ("VERSION-CONTROL https://a:8443/**", true, "a", 8443),
            ("POST http://127.0.0.1:8080/v1/{id}", false, "127.0.0.1", 8080),
            ("POST http://[::1]/v1/{id}", false, "[::1]", 80),
            ("POST http://[::1]:81/v1/{id}", false, "[::1]", 81),
        ] {
            let parsed = request(text);
            assert_eq!((parsed.is_https(), parsed.host(), parsed.port()), (is_https, host, port), "{text}");
            assert_eq!(parsed.to_string(), text);
        }
    }

    #[test]
    fn a_declaration_with_more_than_one_reading_is_refused() {
        let long = format!("GET https://a.example/{}", "x".repeat(MAX_BYTES));
        for text in [
            "",
            "GET",
            "https://a.example/",
            "get https://a.example/",
            "G T https://a.example/",
            "GET  https://a.example/",
            " GET https://a.example/",
            "* https://a.example/",
            "CONNECT https://a.example/",
            "TRACE https://a.example/",
            "TRACK https://a.example/",
            "GET a.example/",
            "GET ftp://a.example/",
            "GET HTTPS://a.example/",
            "GET https://a.example",
            "GET https:///x",
            "GET https://*/x",
            "GET https://*.example/x",
            "GET https://u@a.example/x",
            "GET https://ü.example/x",
            "GET https://a.example:/x",
            "GET https://a.example:0/x",
            "GET https://a.example:080/x",
            "GET https://a.example:+80/x",
            "GET https://a.example:65536/x",
            "GET https://a.example//x",
            "GET https://a.example/x//",
            "GET https://a.example/x//**",
            "GET https://a.example/../x",
            "GET https://a.example/%2e%2e/x",
            "GET https://a.example/a%2fb",
            "GET https://a.example/x?a=1",
            "GET https://a.example/x#a",
            "GET https://a.example/a b",
            "GET https://a.example/ä",
            "GET https://a.example/a*",
            "GET https://a.example/***",
            "GET https://a.example/**/x",
            "GET https://a.example/{",
            "GET https://a.example/{}",
            "GET https://a.example/{a",
            "GET https://a.example/a}",
            "GET https://a.example/{a/b}",
            "GET https://a.example/{a}{b}",
            "GET https://a.example/{a}...{b}",
            "GET https://a.example/%2{a}",
            "GET https://a.example/{{a}}",
            &long,
        ] {
            assert!(DeclaredRequest::parse(text).is_err(), "{text}");
        }
        let error = DeclaredRequest::parse("PATCH\u{202e}").unwrap_err().to_string();
        let shown = "`PATCH\\u{202e}` is no request such as `GET https://api.example.com/items/{id}`: it needs a method";
        assert!(error.starts_with(shown), "{error}");
    }

    #[test]
    fn requests_overlap_if_one_path_is_of_both() {
        for (one, other, overlaps) in [
            ("/a", "/a", true),
            ("/a", "/b", false),
            ("/a/{x}", "/a/b", true),
            ("/a/{x}.json", "/a/b", false),
            ("/{x}", "/*", true),
            ("/a/**", "/a", false),
            ("/a/**", "/a/b/c", true),
            ("/a/**", "/{x}/**", true),
            ("/a/**", "/b/**", false),
        ] {
            assert_eq!(get(one).overlaps(&get(other)), overlaps, "{one} {other}");
            assert_eq!(get(other).overlaps(&get(one)), overlaps, "{one} {other}");
        }
        assert!(!get("/a").overlaps(&request("POST https://a.example/a")));
        assert!(!get("/a").overlaps(&request("GET https://a.example:8443/a")));
    }

    #[test]
    fn a_path_with_more_than_one_reading_is_not_plain() {
        let hostile = [
            "",
            "a",
            "*",
            "//",
            "//a",
            "/a//b",
            "/a//",
            "/.",
            "/..",
            "/a/.",
            "/a/./b",
            "/a/../b",
            "/a/...",
            "/a/.%20",
            "/a/..%20/b",
            "/a/..;/b",
            "/a/..;x=1/b",
            "/a/.;/b",
            "/a/;/b",
            "/a/;x",
            "/a/..%3B/b",
            "/a/..%3bx/b",
            "/a/%2e%2e/b",
            "/a/%2E/b",
            "/a/.%2e/b",
            "/a%2fb",
            "/a%2Fb",
            "/a/..%2fb",
            "/a%5cb",
            "/a/..%5Cb",
            "/a\\b",
            "/a/..\\b",
            "/a%00",
            "/a%0a",
            "/a%0d%0aHost:%20b",
            "/a%7f",
            "/a%09b",
            "/a\tb",
            "/a b",
            "/a%",
            "/a%2",
            "/a%zz",
            "/a%u002fb",
            "/a%252fb",
            "/a%252e%252e/b",
            "/a%25252fb",
            "/%61dmin",
            "/a%2Db",
            "/a%c0%afb",
            "/a%c0%ae%c0%ae/b",
            "/a%e9",
            "/ä",
            "/a\"b",
            "/a<b",
            "/a{b}",
            "/a|b",
            "/a^b",
            "/a`b",
            "/a?b",
            "/a#b",
            "/a%3Fb",
            "/a%3fb/c",
            "/C%23",
            "/a/..%C2%A0",
            "/a/..%E3%80%80/b",
            "/a/..%C2%85",
            "/a/..+",
            "/a/..%2B/b",
            "/a/+",
            "/a/..%EF%BB%BF",
            "/a/..%C2%AD",
            "/a/.%E2%81%A0./b",
            "/a/%E2%80%8E..",
            "/a/..%E2%80%AC",
            "/a/.%EF%B8%8F.",
            "/a/%F3%A0%80%A0../b",
            "/a/%C2%AD/b",
            "/a/%E3%80%82%E3%80%82",
            "/a/.%EF%BD%A1/b",
            "/a/%EF%BC%8E%EF%BC%8E/b",
            "/a/.%EF%BC%8E",
            "/a/%E2%80%A4%E2%80%A4",
            "/a/%E2%80%A5",
            "/a/..%EF%BC%8F..",
            "/a%EF%BC%8Fb",
            "/a%EF%BC%BCb",
            "/a%EF%BC%9Fb",
            "/a%EF%BC%852e",
            "/a%E2%84%80b",
        ];
        for path in hostile {
            assert_eq!(PlainPath::parse(path), None, "{path}");
            assert!(!fits("/**", path) && !fits("/a/**", path) && !fits("/{x}", path), "{path}");
        }
        for path in [
            "/",
            "/a",
            "/a/",
            "/a/b.c-d_e~f",
            "/a:b@c",
            "/a;b=1",
            "/.a",
            "/a.",
            "/..a",
            "/a%20b",
            "/a+b",
            "/a.%20b",
            "/a%EF%BC%8Eb",
            "/a%E3%80%82",
            "/.a%C2%AD",
            "/%E2%98%BA%EF%B8%8F",
            "/%E0%A4%95%E0%A5%8D%E2%80%8D%E0%A4%B7",
            "/100%25",
            "/100%25x",
            "/%C3%A4",
            "/%e2%82%ac",
            "/$!&'()*+,;=",
        ] {
            assert!(PlainPath::parse(path).is_some(), "{path}");
        }
    }

    #[test]
    fn a_pattern_matches_segment_by_segment() {
        for (pattern, path, matches) in [
            ("/", "/", true),
            ("/", "/a", false),
            ("/a", "/a", true),
            ("/a", "/A", false),
            ("/a", "/a/", false),
            ("/a/", "/a", false),
            ("/a/", "/a/", true),
            ("/a/{id}", "/a/1", true),
            ("/a/{id}", "/a/%C3%A4", true),
            ("/a/{id}", "/a/1;x", true),
            ("/a/{id}", "/a/", false),
            ("/a/{id}", "/a/1/2", false),
            ("/a/*/c", "/a/b/c", true),
            ("/a/*/c", "/a//c", false),
            ("/a/{id}.json", "/a/1.json", true),
            ("/a/{id}.json", "/a/.json", false),
            ("/a/{id}.json", "/a/1.json5", false),
            ("/a/{id}.json", "/a/admin;x.json", false),
            ("/a/{id}.json", "/a/admin%3Bx.json", false),
            ("/a/{id}.json", "/a/admin%3Fx.json", false),
            ("/a/{id}.json", "/a/admin%23.json", false),
            ("/a/{id}.json", "/a/admin%EF%BC%9Bx.json", false),
            ("/a/{n}/info", "/a/x%3F/info", false),
            ("/a/{id}0b", "/a/x%20b", false),
            ("/a/v{n}", "/a/v1", true),
            ("/a/v{n}", "/a/w1", false),
            ("/a/**", "/a", false),
            ("/a/**", "/a/", true),
            ("/a/**", "/a/b", true),
            ("/a/**", "/a/b/c/", true),
            ("/a/**", "/b/c", false),
            ("/**", "/", true),
            ("/a%20b", "/a%20b", true),
            ("/a:b", "/a%3Ab", false),
        ] {
            assert_eq!(fits(pattern, path), matches, "{pattern} {path}");
        }
        let path = PlainPath::parse("/a").unwrap();
        for method in ["get", "POST", "HEAD", "", "GET "] {
            assert!(!get("/a").matches(method, &path), "{method}");
        }
    }

    #[test]
    fn a_declaration_is_within_one_that_allows_as_much() {
        for (one, other, is_within) in [
            ("/a", "/a", true),
            ("/{a}", "/{b}", true),
            ("/{a}", "/*", true),
            ("/a", "/*", true),
            ("/*", "/a", false),
            ("/", "/*", false),
            ("/*", "/v{n}", false),
            ("/v{n}", "/*", true),
            ("/v1", "/v{n}", true),
            ("/v1{n}.json", "/v{n}.json", true),
            ("/v{n}.json", "/v1{n}.json", false),
            ("/v;x{n}", "/v{n}", false),
            ("/{n}%20b", "/{n}0b", false),
            ("/a", "/**", true),
            ("/", "/**", true),
            ("/a/**", "/**", true),
            ("/**", "/a/**", false),
            ("/a", "/a/**", false),
            ("/a/", "/a/**", true),
            ("/a/**", "/a/*", false),
            ("/*/**", "/a/**", false),
        ] {
            assert_eq!(get(one).is_within(&get(other)), is_within, "{one} {other}");
        }
        let one = request("GET https://a.example/x");
        for other in [
            "POST https://a.example/x",
            "GET http://a.example/x",
            "GET https://b.example/x",
            "GET https://a.example:444/x",
        ] {
            assert!(!one.is_within(&request(other)) && !request(other).is_within(&one), "{other}");
        }
        assert!(one.is_within(&request("GET https://a.example:443/*")));
    }

    /// A segment of a pattern, with a segment that it matches.
    fn filled_segment() -> impl Strategy<Value = (String, String)> {
        let value = || "[A-Za-z0-9_~:@]{1,6}|%C3%A4|x%20y|1%25";
        prop_oneof![
            "[a-z]{1,3}".prop_map(|text| (text.clone(), text)),
            value().prop_map(|value| ("{id}".to_owned(), value)),
            value().prop_map(|value| ("*".to_owned(), value)),
            value().prop_map(|value| ("v{id}.json".to_owned(), format!("v{value}.json"))),
        ]
    }

    /// A short text of what matters in paths and patterns.
    fn path_text() -> impl Strategy<Value = String> {
        let piece = prop::sample::select(vec![
            "/", "/", "a", "b", ".", "..", ";", "%2F", "%2f", "%5C", "%25", "2F", "2e", "%2e", "%3B", "%20",
            "\\", "%C0%AF", "%", "%3F", "%23", "%C2%A0",
        ]);
        prop::collection::vec(piece, 0..8).prop_map(|pieces| format!("/{}", pieces.concat()))
    }

    fn pattern_text() -> impl Strategy<Value = String> {
        let segment = prop::sample::select(vec!["a", "ab", "*", "{x}", "a{x}", "{x}b", "a{x}b", "a;{x}"]);
        let end = prop::sample::select(vec!["", "/", "/**"]);
        (prop::collection::vec(segment, 1..3), end).prop_map(|(all, end)| format!("/{}{end}", all.join("/")))
    }

    /// What some server could make of a path: decoded often enough, `\` as `/`, without query, fragment,
    /// parameters and empty segments.
    fn most_eager_reading(path: &str) -> Vec<String> {
        let mut text = path.to_owned();
        for _ in 0..4 {
            let mut bytes = text.bytes();
            let mut decoded = Vec::new();
            while let Some(byte) = bytes.next() {
                let mut rest = bytes.clone();
                match take_byte(&mut rest).filter(|_| byte == b'%') {
                    Some(byte) => {
                        decoded.push(byte);
                        bytes = rest;
                    }
                    None => decoded.push(byte),
                }
            }
            text = String::from_utf8_lossy(&decoded).replace('\\', "/");
        }
        let mut read = Vec::new();
        let asked = text.split(['?', '#']).next().unwrap();
        for segment in asked.split('/').map(|segment| segment.split(';').next().unwrap().trim()) {
            match segment {
                "" | "." => {}
                ".." => drop(read.pop()),
                name => read.push(name.to_owned()),
            }
        }
        read
    }

    proptest! {
        #[test]
        fn a_filled_pattern_matches(filled in prop::collection::vec(filled_segment(), 1..5)) {
            let join = |texts: Vec<&str>| format!("/{}", texts.join("/"));
            let pattern = join(filled.iter().map(|(pattern, _)| pattern.as_str()).collect());
            let path = join(filled.iter().map(|(_, value)| value.as_str()).collect());
            prop_assert!(fits(&pattern, &path), "{} {}", pattern, path);
            let elsewhere = [format!("{path}/x"), format!("/x{path}"), format!("{path}/"), format!("{path}/../x")];
            for other in elsewhere {
                prop_assert!(!fits(&pattern, &other), "{} {}", pattern, other);
            }
        }

        #[test]
        fn the_most_eager_server_finds_as_many_segments_in_a_plain_path(path in path_text()) {
            if let Some(PlainPath(segments)) = PlainPath::parse(&path) {
                let named = segments.iter().filter(|segment| !segment.is_empty()).count();
                prop_assert_eq!(most_eager_reading(&path).len(), named, "{}", path);
            }
        }

        #[test]
        fn what_is_within_matches_nothing_else(one in pattern_text(), other in pattern_text(), path in path_text()) {
            let is_within = get(&one).is_within(&get(&other));
            prop_assert!(!is_within || !fits(&one, &path) || fits(&other, &path), "{} {} {}", one, other, path);
            prop_assert!(get(&one).is_within(&get(&one)));
        }

        #[test]
        fn no_text_ends_the_program(text in "\\PC{0,40}|[A-Z]{1,4} https?://[a-z:0-9]{1,6}/[/.;%25f{}*a-]{0,24}") {
            if let Ok(parsed) = DeclaredRequest::parse(&text) {
                prop_assert_eq!(DeclaredRequest::parse(&parsed.to_string()), Ok(parsed));
            }
            let _path = PlainPath::parse(&text);
        }
    }
}
