//! The search for the values of secrets in an answer, in chunks as they come from the network.

use a2g_redact::{Matcher, Redactor};
use std::hint::black_box;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The size of an answer, in bytes.
const BODY_BYTES: usize = 64 << 20;
/// The size of a chunk, in bytes.
const CHUNK_BYTES: usize = 16 << 10;
const ROUNDS: usize = 5;
/// A token, and a value of which each coding differs.
const VALUES: [&str; 2] = ["ghp_Zk3nVq81xRtLm5WpQz7JcYh2Ds9TbFa04EuG", "user:p&s \"w\"/d+é'<0f9d3a7b>"];

/// Prints the speed for text of a kind that answers have, in which each block of 64 KiB has a value.
pub(crate) fn measure() {
    let started = Instant::now();
    let matcher = Arc::new(Matcher::new(VALUES.map(|value| ("key", [value]))).unwrap());
    let made = started.elapsed();
    let record =
        "{\"id\": 4711, \"name\": \"Zürich\", \"url\": \"https://api.example.com/v1/places?q=4711%2F8\"},\n";
    let block = record.bytes().cycle().take((64 << 10) - VALUES[0].len()).chain(VALUES[0].bytes());
    let body = block.collect::<Vec<_>>().repeat(BODY_BYTES / (64 << 10));
    let mut times = [(); ROUNDS].map(|()| {
        let started = Instant::now();
        assert_eq!(redact(&matcher, &body), BODY_BYTES / (64 << 10));
        started.elapsed()
    });
    let time = super::median(&mut times);
    println!(
        "the values of two secrets in 64 MiB: {:.0} MB/s; their forms: {:.0} µs",
        megabytes_per_second(time),
        super::micros(made)
    );
}

/// The number of values that are replaced.
fn redact(matcher: &Arc<Matcher>, body: &[u8]) -> usize {
    let mut redactor = Redactor::new(Arc::clone(matcher));
    let mut count = 0;
    for chunk in body.chunks(CHUNK_BYTES) {
        let mut out = Vec::new();
        redactor.push(chunk, &mut out, &mut |_| count += 1);
        black_box(out);
    }
    let mut rest = Vec::new();
    redactor.finish(&mut rest, &mut |_| count += 1);
    count
}

fn megabytes_per_second(time: Duration) -> f64 {
    f64::from(u32::try_from(BODY_BYTES).unwrap()) / time.as_secs_f64() / 1e6
}
