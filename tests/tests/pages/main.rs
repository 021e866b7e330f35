//! The console and the browser that shows it.

mod browser;
mod console;
mod console_usage;
