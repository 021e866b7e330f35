//! A module reads a file of the one folder that its grant names.

use a2g_sandbox::capability::{Area, Authority, Ceilings, Claims, Grant, Layer, Mount, Mounts, Permit, Tree};
use a2g_sandbox::{Contract, Input, Network, Sandbox};
use std::error::Error;
use std::sync::Arc;

/// Opens `greeting.json` in its first folder, which is descriptor 3, and prints what it reads.
const MODULE: &str = r#"(module
    (import "wasi_snapshot_preview1" "path_open"
        (func $open (param i32 i32 i32 i32 i32 i64 i64 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_read" (func $read (param i32 i32 i32 i32) (result i32)))
    (import "wasi_snapshot_preview1" "fd_write" (func $write (param i32 i32 i32 i32) (result i32)))
    (memory (export "memory") 1)
    (data (i32.const 64) "greeting.json")
    (func (export "_start")
        (if (call $open (i32.const 3) (i32.const 0) (i32.const 64) (i32.const 13) (i32.const 0)
                (i64.const 2) (i64.const 0) (i32.const 0) (i32.const 0))
            (then unreachable))
        (i32.store (i32.const 4) (i32.const 128))
        (i32.store (i32.const 8) (i32.const 64))
        (if (call $read (i32.load (i32.const 0)) (i32.const 4) (i32.const 1) (i32.const 12))
            (then unreachable))
        (i32.store (i32.const 8) (i32.load (i32.const 12)))
        (if (call $write (i32.const 1) (i32.const 4) (i32.const 1) (i32.const 12))
            (then unreachable))))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let host = tempfile::tempdir()?;
    std::fs::write(host.path().join("greeting.json"), r#""hello""#)?;

    let authority = Authority::for_engine().ok_or("this process has another authority")?;
    let ceilings = Ceilings { areas: Area::parse("/data/**")?, ..Ceilings::closed() };
    let grant = Grant::meet(&authority, [(Layer::Verdict, Claims::default())], &ceilings)?;
    let guest = Tree::parse_path("/data")?;
    let mounts = Mounts::new(vec![Mount { guest, host: host.path().into() }])?;
    let permit = Permit::open(grant, &mounts, &ceilings.areas, |_needed| true)?;

    let sandbox = Sandbox::builder().authority(&authority).build()?;
    let artifact = sandbox.compile(&wat::parse_str(MODULE)?, Contract::Command)?;
    let execution = sandbox.begin(&permit, Network::Off, Arc::default());
    let run = sandbox.execute(&artifact, permit, Input::Arguments("{}".to_owned()), &execution);
    let outcome = tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(run);

    let result = outcome.end.result().ok_or("the module has failed")?;
    assert_eq!(result.as_str(), r#""hello""#);
    let opened = outcome.usage.filesystem.iter().map(|area| area.pattern.as_str());
    assert_eq!(opened.collect::<Vec<_>>(), ["/data/**"]);
    Ok(())
}
