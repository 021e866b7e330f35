//! The hostile scripts beside those of `attempts`.

use super::{Case, Limit, Refused, Status, case};

pub(super) fn cases() -> Vec<Case> {
    let scripts = [
        ("eval \"$(printf '( %.0s' {1..500})\"", Status(2, "")),
        ("while :; do echo 0123456789012345678901234567890123456789; done | cat", Limit("time")),
        ("for i in {1..60000}; do echo; done", Refused("shell_limit", "")),
        ("yes | head -2", Status(0, "y\ny\n")),
        ("exec 3<>/dev/tcp/127.0.0.1/80; echo $?", Status(0, "tool http_fetch")),
        ("cat ../../etc/passwd", Status(1, "this run has files in /workspace only")),
        ("cat etc/passwd", Status(1, "cat: ")),
        ("echo x > planted/secret.txt", Status(1, "")),
        ("ls circle/circle/circle > /dev/null", Status(0, "")),
    ];
    scripts.map(|(code, end)| case(code, end).loosely()).into()
}
