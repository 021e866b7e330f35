//! The smallest useful tool in Rust: standard input to standard output. Compiled by the benchmark.
fn main() {
    let mut arguments = String::new();
    std::io::Read::read_to_string(&mut std::io::stdin(), &mut arguments).expect("arguments are text");
    println!("{arguments}");
}
