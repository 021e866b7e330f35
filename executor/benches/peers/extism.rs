//! The same program as a plugin of Extism, whose host holds the arguments and the result.

#[path = "guest.rs"]
#[allow(dead_code, reason = "a plugin has no main")]
mod guest;

#[link(wasm_import_module = "extism:host/env")]
unsafe extern "C" {
    fn input_length() -> u64;
    fn input_load_u8(offset: u64) -> u8;
    fn alloc(length: u64) -> u64;
    fn store_u8(offset: u64, value: u8);
    fn output_set(offset: u64, length: u64);
}

/// The function that the host calls. 0 is success.
#[unsafe(no_mangle)]
pub extern "C" fn run() -> i32 {
    let request = (0..unsafe { input_length() }).map(|offset| unsafe { input_load_u8(offset) }).collect();
    let answer = String::from_utf8(request).map_err(Into::into).and_then(|request| guest::answer(&request));
    let Ok(answer) = answer else { return 1 };
    let at = unsafe { alloc(answer.len() as u64) };
    for (offset, byte) in (at..).zip(answer.bytes()) {
        unsafe { store_u8(offset, byte) };
    }
    unsafe { output_set(at, answer.len() as u64) };
    0
}
