//! The program that the peers run: it takes JSON and returns JSON. The member `do` names what it tries; without
//! one, it returns its arguments. It is compiled for WASI, as a plugin of Extism, and for this machine. Its first
//! argument is the folder to list, if that is not /data.

use std::error::Error;
use std::io::Read as _;
use std::net::TcpStream;
use std::{env, fs, hint, process};

pub fn answer(request: &str) -> Result<String, Box<dyn Error>> {
    // The first name and the first text of `{"do":"…"}`.
    let words = request.split('"').collect::<Vec<_>>();
    Ok(match (words.get(1), words.get(3)) {
        (Some(&"do"), Some(&"list")) => {
            let folder = env::args().nth(1).unwrap_or_else(|| "/data".to_owned());
            let names =
                fs::read_dir(folder)?.map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
            format!("{{\"names\":{:?}}}", names.collect::<Result<Vec<_>, std::io::Error>>()?)
        }
        (Some(&"do"), Some(action @ (&"allocate" | &"allocate a little"))) => {
            let count = if *action == "allocate" { 1024 } else { 8 };
            let blocks = (0..count).map(|_| hint::black_box(vec![1_u8; 1 << 20])).collect::<Vec<_>>();
            format!("{{\"allocated\":{}}}", blocks.len())
        }
        (Some(&"do"), Some(&"loop")) => loop {
            hint::black_box(0);
        },
        (Some(&"do"), Some(&"read")) => format!("{{\"read\":{:?}}}", fs::read_to_string("/etc/passwd")?),
        (Some(&"do"), Some(&"connect")) => {
            let port = request.chars().filter(char::is_ascii_digit).collect::<String>().parse::<u16>()?;
            TcpStream::connect(("127.0.0.1", port))?;
            "{\"connected\":true}".to_owned()
        }
        _ => request.to_owned(),
    })
}

pub fn main() {
    let mut request = String::new();
    let read = std::io::stdin().read_to_string(&mut request);
    match read.map_err(Into::into).and_then(|_| answer(&request)) {
        Ok(text) => print!("{text}"),
        Err(error) => {
            eprintln!("{error}");
            process::exit(1);
        }
    }
}
