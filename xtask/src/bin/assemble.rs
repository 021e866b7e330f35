//! Assembles WebAssembly text for the demo and the benchmark: `assemble IN.wat OUT.wasm [IN.wat OUT.wasm]…`.

use std::error::Error;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let paths: Vec<_> = env::args_os().skip(1).collect();
    for pair in paths.chunks(2) {
        let [text, module] = pair else { return Err("every input needs an output path".into()) };
        fs::write(module, wat::parse_file(text)?)?;
    }
    Ok(())
}
