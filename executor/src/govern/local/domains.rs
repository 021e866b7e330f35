//! The domains that an intent names, against the network part of a policy.
//!
//! A manifest can only say that the network is on. So the one place where this governor can hold
//! an agent to a list of domains is the URLs in its arguments.

use super::risk::urls_in;
use crate::govern::arguments::Arguments;
use crate::ident::excerpt;
use crate::verdict::NetworkRule;

/// Checks every URL outside file content.
///
/// # Errors
/// A sentence that names the host and what to change. A blocked domain wins over an allowed one.
pub(super) fn check(rule: &NetworkRule, arguments: &Arguments<'_>) -> Result<(), String> {
    for url in urls_in(arguments) {
        let Some(host) = url.host_str() else { continue };
        let shown = excerpt(host);
        if rule.blocked_domains.iter().any(|pattern| names(pattern, host)) {
            return Err(format!("`blocked_domains`: the domain `{shown}` is blocked; leave it alone"));
        }
        let Some(allowed) = &rule.allowed_domains else { continue };
        if !allowed.iter().any(|pattern| names(pattern, host)) {
            return Err(format!(
                "`allowed_domains`: the domain `{shown}` is not in the list; use one that is, or add it"
            ));
        }
    }
    Ok(())
}

/// `*.x` stands for every domain below `x`, and not for `x`.
fn names(pattern: &str, host: &str) -> bool {
    let plain = |name: &str| name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    let (pattern, host) = (plain(pattern), plain(host));
    match pattern.strip_prefix("*.") {
        Some(parent) => host
            .strip_suffix(parent)
            .and_then(|rest| rest.strip_suffix('.'))
            .is_some_and(|label| !label.is_empty()),
        None => pattern == host,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_is_a_label_boundary_and_not_the_apex() {
        for (pattern, host, same) in [
            ("github.com", "GitHub.com.", true),
            ("github.com", "api.github.com", false),
            ("*.github.com", "api.github.com", true),
            ("*.github.com", "a.b.github.com", true),
            ("*.github.com", "github.com", false),
            ("*.github.com", "evilgithub.com", false),
            ("*.onion", "x.onion", true),
        ] {
            assert_eq!(names(pattern, host), same, "{pattern} {host}");
        }
    }
}
