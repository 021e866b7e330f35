use super::*;
use std::io::Write as _;
use std::time::Duration;

fn file(content: &[u8]) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(content).unwrap();
    file
}

#[expect(clippy::disallowed_methods, reason = "the deadline of the library is one of the real clock")]
fn budget(max_bytes: usize) -> DiffBudget {
    DiffBudget { max_bytes, deadline: Instant::now() + Duration::from_secs(5) }
}

fn compare(old: &[u8], new: &[u8], max_bytes: usize) -> Difference {
    Difference::of(Some(&file(old)), Some(&file(new)), budget(max_bytes)).unwrap()
}

#[test]
fn text_is_shown_as_diff_shows_it() {
    let old = "1\n2\n3\n4\n5\n6\n7\n8\n9\n";
    let new = "1\n2\n3\n4\nfive\n6\n7\n8\n9\nten";
    let expected =
        "@@ -2,8 +2,9 @@\n 2\n 3\n 4\n-5\n+five\n 6\n 7\n 8\n 9\n+ten\n\\ No newline at end of file\n";
    assert_eq!(compare(old.as_bytes(), new.as_bytes(), 1000).to_unified(), expected);
    assert_eq!(compare(old.as_bytes(), old.as_bytes(), 1000), Difference::Text(Vec::new()));
    let created = Difference::of(None, Some(&file(b"a\n")), budget(1000)).unwrap();
    assert_eq!(created.to_unified(), "@@ -0,0 +1,1 @@\n+a\n");
    let deleted = Difference::of(Some(&file(b"a\n")), None, budget(1000)).unwrap();
    assert_eq!(deleted.to_unified(), "@@ -1,1 +0,0 @@\n-a\n");
}

#[test]
fn only_what_is_not_removed_is_left_out() {
    let old = "removed\n".repeat(100);
    let new = (0..100).map(|line| format!("added {line}\n")).collect::<String>();
    let Difference::Text(hunks) = compare(old.as_bytes(), new.as_bytes(), 20) else { panic!() };
    let lines = hunks.iter().flat_map(|hunk| &hunk.lines).collect::<Vec<_>>();
    assert_eq!(lines.iter().filter(|line| matches!(line, Line::Removed(_))).count(), 100);
    assert_eq!(lines.last(), Some(&&Line::LeftOut { same: 0, added: 100 }));
}

#[test]
fn bytes_are_shown_as_ranges() {
    let mut old = vec![0; 200_000];
    let mut new = old.clone();
    new[100] = 1;
    new[110] = 1;
    new[150_000] = 1;
    let at = |start, old_bytes, new_bytes| ByteRange { start, old_bytes, new_bytes };
    assert_eq!(compare(&old, &new, 0), Difference::Bytes(vec![at(100, 11, 11), at(150_000, 1, 1)]));
    old.push(7);
    let expected = vec![at(100, 11, 11), at(150_000, 1, 1), at(200_000, 1, 0)];
    assert_eq!(compare(&old, &new, 0), Difference::Bytes(expected));
    let many = (0..200_000).map(|at| u8::from(at % 50 == 0)).collect::<Vec<_>>();
    let Difference::Bytes(ranges) = compare(&vec![0; 200_000], &many, 0) else { panic!() };
    assert_eq!(ranges.len(), MAX_BYTE_RANGES);
    assert_eq!(ranges.last().map(|last| last.start + last.old_bytes), Some(199_951));
}

#[test]
fn the_bounds_of_text_hold() {
    let lines = |count: usize| "\n".repeat(count).into_bytes();
    assert!(matches!(compare(&lines(1), &lines(MAX_TEXT_LINES), 0), Difference::Text(_)));
    assert!(matches!(compare(&lines(1), &lines(MAX_TEXT_LINES + 1), 0), Difference::Bytes(_)));
    let long = vec![b'x'; (1 << 20) + 1];
    assert!(matches!(compare(&long[1..], b"", 0), Difference::Text(_)));
    assert!(matches!(compare(&long, b"", 0), Difference::Bytes(_)));
    assert!(matches!(compare(b"\xff", b"", 0), Difference::Bytes(_)));
}
