//! What is found, in whole texts and in streams, beside a search that compares each place with each form.

use super::forms::forms;
use super::{FormsError, Matcher, Redactor};
use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use proptest::prelude::*;
use std::sync::Arc;

/// A value with a character of each kind that some coding changes.
const VALUE: &str = "p&s \"w\"/d+é'<0f9d3a7b>";

fn matcher(secrets: &[(&str, &str)]) -> Matcher {
    Matcher::new(secrets.iter().map(|(name, text)| (*name, [*text]))).unwrap()
}

/// A text with its forms replaced, and the names of the secrets in order.
fn redact(matcher: &Matcher, text: &str) -> (String, Vec<String>) {
    let mut names = Vec::new();
    let redacted = matcher.redact_text(text, &mut |name| names.push(name.to_owned()));
    (redacted.unwrap_or_else(|| text.to_owned()), names)
}

#[test]
fn each_coding_of_a_value_is_found() {
    let matcher = matcher(&[("key", VALUE)]);
    for form in [
        VALUE,
        "P&S \"W\"/D+é'<0F9D3A7B>",
        // Python, Go and forms, JavaScript, a path.
        "p%26s%20%22w%22/d%2B%C3%A9%27%3C0f9d3a7b%3E",
        "p%26s+%22w%22%2Fd%2B%C3%A9%27%3C0f9d3a7b%3E",
        "p%26s%20%22w%22%2Fd%2B%c3%a9'%3C0f9d3a7b%3E",
        "p&s%20%22w%22%2fd+%c3%a9'%3c0f9d3a7b%3e",
        // JSON of Python, PHP, Go and .NET.
        r#"p&s \"w\"/d+\u00e9'<0f9d3a7b>"#,
        r#"p&s \"w\"\/d+\u00e9'<0f9d3a7b>"#,
        r#"p\u0026s \"w\"/d+é'\u003c0f9d3a7b\u003e"#,
        r#"p\u0026s \u0022w\u0022/d\u002B\u00E9\u0027\u003C0f9d3a7b\u003E"#,
        // HTML and XML.
        "p&amp;s &quot;w&quot;/d+é&#39;&lt;0f9d3a7b&gt;",
        "p&amp;s &#34;w&#34;/d+é&#39;&lt;0f9d3a7b&gt;",
        "p&amp;s &quot;w&quot;/d+é&#x27;&lt;0f9d3a7b&gt;",
        "p&amp;s \"w\"/d+é'&lt;0f9d3a7b&gt;",
        "702673202277222f642bc3a9273c30663964336137623e",
        &STANDARD.encode(VALUE),
        &URL_SAFE_NO_PAD.encode(VALUE),
    ] {
        let (redacted, names) = redact(&matcher, &format!("before {form} after"));
        assert_eq!(redacted, "before [secret key] after", "{form}");
        assert_eq!(names, ["key"], "{form}");
    }
}

/// A value with the characters of Base64 and all that encoders escape although they need not.
const KEY: &str = "Wp+9/aQ`'\"x<4>&==";

#[test]
fn the_escapes_of_usual_encoders_are_found_however_they_write_numbers() {
    let matcher = matcher(&[("key", KEY)]);
    let hexadecimal = KEY.chars().map(|c| match c {
        letter if letter.is_alphanumeric() => letter.to_string(),
        other => format!("&#x{:04X};", u32::from(other)),
    });
    for form in [
        // Handlebars, mustache.js, `html/template`, PHP, .NET.
        "Wp+9/aQ&#x60;&#x27;&quot;x&lt;4&gt;&amp;&#x3D;&#x3D;",
        "Wp+9&#x2F;aQ&#x60;&#39;&quot;x&lt;4&gt;&amp;&#x3D;&#x3D;",
        "Wp&#43;9/aQ`&#39;&#34;x&lt;4&gt;&amp;==",
        "Wp&#43;9/aQ&#96;&#39;&#34;x&lt;4&gt;&amp;&#61;&#61;",
        "Wp+9/aQ`&#039;&quot;x&lt;4&gt;&amp;==",
        "Wp&#x2B;9/aQ`&#x27;&quot;x&lt;4&gt;&amp;==",
        "Wp&#x2b;9/aQ&#x60;&#x27;&quot;x&lt;4&gt;&amp;==",
        "Wp+9/aQ`&#039;&#034;x&lt;4&gt;&amp;==",
        &hexadecimal.collect::<String>(),
        // Gson, Go, `html/template` in a script, Django.
        r#"Wp+9/aQ`\u0027\"x\u003c4\u003e\u0026\u003d\u003d"#,
        r#"Wp+9/aQ`\u0027\"x\u003C4\u003E\u0026\u003D\u003D"#,
        r#"Wp+9/aQ`'\"x\u003c4\u003e\u0026=="#,
        r"Wp\u002b9\/aQ\u0060\u0027\u0022x\u003c4\u003e\u0026==",
        r"Wp+9/aQ\u0060\u0027\u0022x\u003C4\u003E\u0026\u003D\u003D",
        // Spring, code that keeps `/`, quoted-printable.
        "Wp+9/aQ%60'%22x%3C4%3E%26%3D%3D",
        "Wp%2B9/aQ%60%27%22x%3C4%3E%26%3D%3D",
        "Wp%2B9/aQ%60%27%22x%3C4%3E%26==",
        "Wp+9/aQ`'\"x<4>&=3D=3D",
    ] {
        assert_eq!(redact(&matcher, &format!("a {form} b")).0, "a [secret key] b", "{form}");
    }
    let distinct = forms(KEY);
    assert!(distinct.len() < 150, "the number of forms is bounded: {}", distinct.len());
}

#[test]
fn a_value_inside_of_what_was_encoded_is_found() {
    let matcher = matcher(&[("key", VALUE)]);
    for before in 0..7 {
        for after in 0..7 {
            let text = format!("{}{VALUE}{}", "b".repeat(before), "a".repeat(after));
            let (redacted, names) = redact(&matcher, &STANDARD.encode(&text));
            assert_eq!(names, ["key"], "{text}");
            // Of the value, no more than the bits of two characters at its edges.
            let left = redacted.replace("[secret key]", "").trim_end_matches('=').len();
            assert!(left <= (8 * before).div_ceil(6) + (8 * after).div_ceil(6) + 1, "{redacted}");
        }
    }
}

#[test]
fn what_overlaps_is_replaced_as_a_whole_and_what_only_begins_so_stays() {
    let matcher = matcher(&[("long", "abcdefghijkl"), ("first", "abcdefgh"), ("last", "ghijklmnop")]);
    for (text, redacted, names) in [
        ("abcdefghijk", "[secret first]ijk", "first"),
        ("abcdefghijkl", "[secret long]", "long"),
        ("abcdefghijklmnop", "[secret long]", "long"),
        ("abcdefghabcdefgh", "[secret first][secret first]", "first first"),
        ("xabcdefg", "xabcdefg", ""),
        ("", "", ""),
    ] {
        let (found, found_names) = redact(&matcher, text);
        assert_eq!((&*found, &*found_names.join(" ")), (redacted, names));
    }
}

#[test]
fn a_json_text_stays_one() {
    let matcher = matcher(&[("key", VALUE), ("pin", "1234567890")]);
    let quoted = serde_json::to_string(VALUE).unwrap();
    let escaped = VALUE.encode_utf16().map(|unit| format!("\\u{unit:04x}")).collect::<String>();
    for (text, redacted) in [
        (quoted.clone(), "\"[secret key]\""),
        (format!("{{\"a\\n\":[{quoted},1.5e3,true]}}"), "{\"a\\n\":[\"[secret key]\",1.5e3,true]}"),
        (format!("{{{quoted}:\"x{escaped}\\ny\"}}"), "{\"[secret key]\":\"x[secret key]\\ny\"}"),
        ("[1234567890,-12345678901]".to_owned(), "[\"[secret pin]\",\"-[secret pin]1\"]"),
        ("{\"\\\"\":\"\\\\\",\"n\":1234567890}".to_owned(), "{\"\\\"\":\"\\\\\",\"n\":\"[secret pin]\"}"),
    ] {
        assert_eq!(matcher.redact_json(&text, &mut |_| ()).as_deref(), Some(redacted), "{text}");
        serde_json::from_str::<serde_json::Value>(redacted).unwrap();
    }
    assert_eq!(matcher.redact_json(r#"{"a\"b":[1,"c\\"]}"#, &mut |_| ()), None);
}

#[test]
fn forms_have_a_limit_and_are_never_printed() {
    let long = "é\"".repeat(40_000);
    assert_eq!(Matcher::new([("key", [&*long])]).err(), Some(FormsError));
    let matcher = matcher(&[("key", "12345678"), ("short", "1234567")]);
    assert_eq!(redact(&matcher, "1234567"), ("1234567".to_owned(), Vec::new()));
    let printed = format!("{:?}", Redactor::new(Arc::new(matcher)));
    assert_eq!(printed, "Redactor { matcher: Matcher { names: [\"key\", \"short\"], .. }, .. }");
}

#[test]
fn another_matcher_goes_on_with_what_is_held_back() {
    let [first, both] = [&[("a", "abcdefgh")][..], &[("a", "abcdefgh"), ("b", "ghijklmn")]]
        .map(|secrets| Arc::new(matcher(secrets)));
    let mut ignore = |_: &str| ();
    let mut redactor = Redactor::new(first);
    let mut out = Vec::new();
    redactor.push(b"x abcdefgh abcd", &mut out, &mut ignore);
    assert_eq!(out, b"x [secret a] ");
    redactor.switch(&both, &mut out, &mut ignore);
    redactor.push(b"efgh ghijkl", &mut out, &mut ignore);
    redactor.push(b"mn", &mut out, &mut ignore);
    redactor.finish(&mut out, &mut ignore);
    assert_eq!(String::from_utf8(out).unwrap(), "x [secret a] [secret a] [secret b]");
    assert!(redactor.is_empty());
}

/// The number of generated replacements without `A2G_REDACTIONS`, which `cargo xtask torture` sets to a million.
const REDACTIONS: u32 = 1_000;
/// The number of texts of each set of secrets.
const TEXTS: u16 = 10;

fn cases() -> u32 {
    let redactions = std::env::var_os("A2G_REDACTIONS").and_then(|count| count.to_str()?.parse::<u32>().ok());
    redactions.unwrap_or(REDACTIONS).div_ceil(TEXTS.into())
}

/// A part of a text.
#[derive(Debug, Clone)]
enum Piece {
    /// A form, from one place to another.
    Form { secret: prop::sample::Index, form: prop::sample::Index, from: usize, to: prop::sample::Index },
    /// Anything else.
    Other(Vec<u8>),
}

fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        "[A-Za-z0-9_.-]{8,30}",
        "[ -~]{8,20}",
        "\\PC{8,14}",
        // Of few characters, so that forms overlap themselves and each other.
        "(ab|aba|/){8,12}",
    ]
}

fn piece() -> impl Strategy<Value = Piece> {
    let form = (
        any::<prop::sample::Index>(),
        any::<prop::sample::Index>(),
        0..3_usize,
        any::<prop::sample::Index>(),
    );
    let form = form.prop_map(|(secret, form, from, to)| Piece::Form { secret, form, from: from.pow(2), to });
    prop_oneof![3 => form, 1 => prop::collection::vec(any::<u8>(), 0..6).prop_map(Piece::Other)]
}

/// The text of these pieces, of which most that are forms are whole.
fn join(pieces: &[Piece], forms: &[Vec<Vec<u8>>]) -> Vec<u8> {
    let mut text = Vec::new();
    for piece in pieces {
        match piece {
            Piece::Other(bytes) => text.extend(bytes),
            Piece::Form { secret, form, from, to } => {
                let of_secret: &Vec<Vec<u8>> = secret.get(forms);
                let whole = form.get(of_secret);
                let end = to.index(4 * whole.len()).min(whole.len());
                text.extend(whole.get(*from..end).unwrap_or(whole));
            }
        }
    }
    text
}

/// What is expected, by a comparison of each place with each form.
fn search(forms: &[Vec<Vec<u8>>], text: &[u8]) -> (Vec<u8>, u32) {
    let mut parts = Vec::<(usize, usize, usize)>::new();
    for end in 1..=text.len() {
        let mut longest = None::<(usize, usize)>;
        for (secret, forms) in forms.iter().enumerate() {
            // Most forms end otherwise, which is cheap to see.
            let may_end_here = |form: &&Vec<u8>| {
                form.len() <= end && form.last().is_some_and(|last| last.eq_ignore_ascii_case(&text[end - 1]))
            };
            for form in forms.iter().filter(may_end_here) {
                let ends_here = text[end - form.len()..end].eq_ignore_ascii_case(form);
                if ends_here && longest.is_none_or(|(length, _)| form.len() >= length) {
                    longest = Some((form.len(), secret));
                }
            }
        }
        let Some((length, mut secret)) = longest else { continue };
        let mut start = end - length;
        while let Some((earlier, _, owner)) = parts.pop_if(|(_, earlier_end, _)| *earlier_end > start) {
            if earlier < start {
                (start, secret) = (earlier, owner);
            }
        }
        parts.push((start, end, secret));
    }
    let mut redacted = Vec::new();
    let mut at = 0;
    let count = u32::try_from(parts.len()).unwrap();
    for (start, end, secret) in parts {
        redacted.extend(&text[at..start]);
        redacted.extend(format!("[secret s{secret}]").bytes());
        at = end;
    }
    redacted.extend(&text[at..]);
    (redacted, count)
}

/// Replaces forms in a text that arrives in chunks of these sizes.
fn stream(matcher: &Arc<Matcher>, text: &[u8], sizes: &[usize]) -> (Vec<u8>, u32) {
    let mut redactor = Redactor::new(Arc::clone(matcher));
    let mut count = 0;
    let mut out = Vec::new();
    let mut rest = text;
    let mut sizes = sizes.iter().cycle();
    while !rest.is_empty() {
        let (chunk, after) = rest.split_at((*sizes.next().unwrap()).min(rest.len()));
        redactor.push(chunk, &mut out, &mut |_| count += 1);
        assert!(redactor.held_bytes() < matcher.longest(), "less than the longest form is held back");
        rest = after;
    }
    redactor.finish(&mut out, &mut |_| count += 1);
    assert!(redactor.is_empty());
    (out, count)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(cases()) })]

    #[test]
    fn generated_texts_have_no_form_left_however_they_are_split(
        values in prop::collection::vec(value(), 1..4),
        texts in prop::collection::vec(prop::collection::vec(piece(), 0..6), usize::from(TEXTS)),
        sizes in prop::collection::vec(1..40_usize, 1..6),
    ) {
        let names = (0..values.len()).map(|number| format!("s{number}")).collect::<Vec<_>>();
        let secrets = names.iter().zip(&values).map(|(name, value)| (name.as_str(), [value.as_str()]));
        let matcher = Arc::new(Matcher::new(secrets).unwrap());
        let bytes = |value: &String| forms(value).iter().map(|form| form.as_bytes().to_vec()).collect();
        let all_forms = values.iter().map(bytes).collect::<Vec<Vec<_>>>();
        for pieces in texts {
            let text = join(&pieces, &all_forms);
            let expected = search(&all_forms, &text);
            let mut count = 0_u32;
            let redacted = matcher.redact(&text, &mut |_| count += 1);
            prop_assert_eq!(redacted.is_some(), expected.1 > 0);
            let redacted = redacted.unwrap_or_else(|| text.clone());
            prop_assert_eq!(&(redacted, count), &expected);
            prop_assert_eq!(&stream(&matcher, &text, &sizes), &expected);
            prop_assert_eq!(&stream(&matcher, &text, &[1]), &expected);
        }
    }
}
