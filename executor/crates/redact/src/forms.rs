//! The forms in which a server may give a text back.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, STANDARD_NO_PAD};
use std::fmt::{self, Write as _};
use zeroize::Zeroizing;

/// A form, which is cleared when it is dropped. Each is made in memory of its whole size, so that no part of it is left
/// where a growing text was before.
pub(crate) type Form = Zeroizing<String>;

/// The characters besides ASCII letters and digits that an encoder of URLs leaves as they are.
const UNENCODED: [&str; 17] = [
    // RFC 3986, section 2.3, as Go, Java and curl have it.
    "-._~",
    // With each of the characters of Base64 that code written by hand leaves as they are; `/` alone is `quote` of Python.
    "-._~/",
    "-._~=",
    "-._~+",
    "-._~/=",
    "-._~+=",
    "-._~+/",
    "-._~+/=",
    // `encodeURIComponent` of JavaScript.
    "-._~!'()*",
    // A segment of a path: RFC 3986, section 3.3.
    "-._~!$&'()*+,;=:@",
    // A parameter of the query in Spring.
    "-._~!$'()*+,;:@/?",
    // A query: RFC 3986, section 3.4, and Swift.
    "-._~!$&'()*+,;=:@/?",
    // `encodeURI` of JavaScript.
    "-._~!#$&'()*+,/:;=?@",
    // A query of a browser.
    "-._~!$%&()*+,/:;=?@[\\]^`{|}",
    // A form of a browser: `application/x-www-form-urlencoded`.
    "-._*",
    // `urlencode` of PHP.
    "-._",
    // `HttpUtility` of .NET.
    "-._!()*",
];
/// The ASCII characters that an encoder of JSON or JavaScript writes as `\u` and four digits although it need not.
const ESCAPED_IN_JSON: [&str; 7] = [
    "",
    // Go and Rails.
    "<>&",
    // Gson.
    "<>&='",
    // The flags `JSON_HEX` of PHP, and Newtonsoft.
    "<>&'\"",
    // .NET, and `html/template` of Go.
    "<>&'\"+`",
    // `escapejs` of Django.
    "\\'\"<>&=-;`",
    // `js` of Twig.
    " !\"#$%&'()*+-/:;<=>?@[\\]^`{|}~",
];
/// The ASCII characters that an encoder of HTML or XML writes as numbers, and the quotation mark and the apostrophe if they
/// are not among them. `&`, `<` and `>` have their names if they are not.
const ESCAPED_IN_HTML: [(&str, &str, &str); 16] = [
    // The text of an element, and XML.
    ("", "\"", "'"),
    ("", "&quot;", "'"),
    ("", "&quot;", "&apos;"),
    // `htmlspecialchars` of PHP, Django, ERB.
    ("'", "&quot;", "'"),
    // `html` of Go, MarkupSafe.
    ("\"'", "\"", "'"),
    // `html/template` of Go, in quotation marks and without them.
    ("\"'+", "\"", "'"),
    ("\"'+=` ", "\"", "'"),
    // Underscore, Lodash.
    ("'`", "&quot;", "'"),
    // Handlebars.
    ("'`=", "&quot;", "'"),
    // mustache.js.
    ("/`=", "&quot;", "&#39;"),
    // What OWASP advises.
    ("'/", "&quot;", "'"),
    // `HtmlEncoder` of .NET.
    ("'+", "&quot;", "'"),
    ("'+`", "&quot;", "'"),
    // Without names.
    ("&<>\"'", "\"", "'"),
    // `html_attr` of Twig, ESAPI, with the names of HTML and without them.
    (" !#$%'()*+/:;=?@[\\]^`{|}~", "&quot;", "'"),
    (" !\"#$%&'()*+/:;<=>?@[\\]^`{|}~", "\"", "'"),
];
/// The ways in which HTML writes the number of a character.
const NUMBERS_IN_HTML: [fn(u32, &mut String) -> fmt::Result; 4] = [
    |number, form| write!(form, "&#{number};"),
    |number, form| write!(form, "&#{number:03};"),
    |number, form| write!(form, "&#x{number:x};"),
    |number, form| write!(form, "&#x{number:04x};"),
];

/// The forms of a text, each once. Upper and lower case of ASCII letters count as equal where they are searched for, so
/// that hexadecimal digits have one case here.
pub(crate) fn forms(text: &str) -> Vec<Form> {
    let mut forms = Vec::new();
    let mut add = |form: Form| {
        if !forms.contains(&form) {
            forms.push(form);
        }
    };
    add(Zeroizing::new(text.to_owned()));
    for kept in UNENCODED {
        for space in ["%20", "+"] {
            add(percent_encode(text, space, |c| c.is_ascii_alphanumeric() || kept.contains(c)));
        }
    }
    add(percent_encode(text, "%20", |_| false));
    for escaped in ESCAPED_IN_JSON {
        for slash in ["/", "\\/"] {
            add(escape_for_json(text, slash, |c| escaped.contains(c)));
            add(escape_for_json(text, slash, |c| escaped.contains(c) || !c.is_ascii()));
        }
    }
    for (numbered, quote, apostrophe) in ESCAPED_IN_HTML {
        for number in NUMBERS_IN_HTML {
            add(escape_for_html(text, [quote, apostrophe], number, |c| numbered.contains(c)));
            add(escape_for_html(text, [quote, apostrophe], number, |c| {
                numbered.contains(c) || !c.is_ascii()
            }));
        }
    }
    add(quoted_printable(text, " ", "="));
    add(quoted_printable(text, "_", "=?_"));
    add(hexadecimal(text));
    for encoded in base64(text) {
        add(write(&encoded, 1, |c, form| form.push(for_file_names(c))));
        add(encoded);
    }
    forms
}

/// A form of which each character is written by `write_char`, as at most `max_bytes` for each byte of the text.
fn write(text: &str, max_bytes: usize, write_char: impl Fn(char, &mut String)) -> Form {
    let mut form = Zeroizing::new(String::with_capacity(max_bytes * text.len()));
    text.chars().for_each(|c| write_char(c, &mut form));
    form
}

fn percent_encode(text: &str, space: &str, is_kept: impl Fn(char) -> bool) -> Form {
    write(text, 3, |c, form| match c {
        ' ' => form.push_str(space),
        kept if is_kept(kept) => form.push(kept),
        other => push_bytes(other, '%', form),
    })
}

/// The content of a JSON string. `is_escaped` selects the characters that become `\u` and four digits.
fn escape_for_json(text: &str, slash: &str, is_escaped: impl Fn(char) -> bool) -> Form {
    write(text, 6, |c, form| match c {
        escaped if is_escaped(escaped) => {
            for unit in escaped.encode_utf16(&mut [0; 2]) {
                form.push_str("\\u");
                unit.to_be_bytes().into_iter().for_each(|byte| push_digits(byte, form));
            }
        }
        '/' => form.push_str(slash),
        '"' | '\\' => {
            form.push('\\');
            form.push(c);
        }
        other => form.push(other),
    })
}

/// The content of an element or attribute. `is_numbered` selects the characters that become numbers.
fn escape_for_html(
    text: &str,
    [quote, apostrophe]: [&str; 2],
    number: fn(u32, &mut String) -> fmt::Result,
    is_numbered: impl Fn(char) -> bool,
) -> Form {
    write(text, 8, |c, form| match c {
        numbered if is_numbered(numbered) => {
            let _never_fails_for_text = number(numbered.into(), form);
        }
        '&' => form.push_str("&amp;"),
        '<' => form.push_str("&lt;"),
        '>' => form.push_str("&gt;"),
        '"' => form.push_str(quote),
        '\'' => form.push_str(apostrophe),
        other => form.push(other),
    })
}

/// The text in a mail: RFC 2045, section 6.7, and for its fields RFC 2047, section 4.2.
fn quoted_printable(text: &str, space: &str, escaped: &str) -> Form {
    write(text, 3, |c, form| match c {
        ' ' => form.push_str(space),
        kept if kept.is_ascii() && !escaped.contains(kept) => form.push(kept),
        other => push_bytes(other, '=', form),
    })
}

/// Each byte of a character as `before` and two digits.
fn push_bytes(c: char, before: char, form: &mut String) {
    for byte in c.encode_utf8(&mut [0; 4]).bytes() {
        form.push(before);
        push_digits(byte, form);
    }
}

fn hexadecimal(text: &str) -> Form {
    let mut form = Zeroizing::new(String::with_capacity(2 * text.len()));
    text.bytes().for_each(|byte| push_digits(byte, &mut form));
    form
}

fn push_digits(byte: u8, form: &mut String) {
    form.extend([byte >> 4, byte & 15].into_iter().filter_map(|digit| char::from_digit(digit.into(), 16)));
}

/// A character of Base64 in the alphabet for file names and URLs.
fn for_file_names(c: char) -> char {
    match c {
        '+' => '-',
        '/' => '_',
        other => other,
    }
}

/// A text in Base64: alone, and inside of a longer text that was encoded as a whole.
fn base64(text: &str) -> Vec<Form> {
    let alone = Zeroizing::new(STANDARD.encode(text));
    let unpadded = Zeroizing::new(alone.trim_end_matches('=').to_owned());
    let inside = [0, 1, 2].map(|before| inner_base64(text, before));
    [alone, unpadded].into_iter().chain(inside).collect()
}

/// The characters of Base64 that have only bits of the text, if `before` bytes come before it, modulo three. Those at the
/// edges have bits of what is around it, too.
fn inner_base64(text: &str, before: usize) -> Form {
    let mut bytes = Zeroizing::new(Vec::<u8>::with_capacity(before + text.len()));
    bytes.resize(before, 0);
    bytes.extend_from_slice(text.as_bytes());
    let encoded = Zeroizing::new(STANDARD_NO_PAD.encode(&*bytes));
    // Each character has six bits.
    let first = (8 * before).div_ceil(6);
    let end = 8 * bytes.len() / 6;
    Zeroizing::new(encoded.get(first..end).unwrap_or_default().to_owned())
}
