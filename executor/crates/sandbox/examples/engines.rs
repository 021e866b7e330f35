//! Two engines in one process, each with an authority of its own: neither runs a permit of the other.

use a2g_sandbox::capability::{Authority, Ceilings, Claims, Grant, Layer, Mounts, Permit};
use a2g_sandbox::{Code, End, Input, ModuleCompiler, Network, Sandbox};
use std::error::Error;
use std::fs::File;
use std::io::Write as _;
use std::sync::Arc;

const MODULE: &str = r#"(module (memory (export "memory") 1) (func (export "_start")))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let authority = Authority::for_engine().ok_or("this process has another authority")?;
    let other_authority = Authority::for_engine().ok_or("this process has another authority")?;
    let sandbox = Sandbox::builder().authority(&authority).build()?;
    let mut compiled = tempfile::tempfile()?;
    compiled.write_all(&ModuleCompiler::new()?.compile(&wat::parse_str(MODULE)?)?)?;

    // A command that prints nothing returns `null`.
    let end = run(&sandbox, &compiled, permit(&authority)?)?;
    assert!(matches!(end, End::Returned(result) if result.as_str() == "null"));
    let refused = run(&sandbox, &compiled, permit(&other_authority)?)?;
    assert!(
        matches!(refused, End::NotStarted(reason) if reason.contains("the permit is for another engine"))
    );
    assert!(Authority::take().is_none(), "this process can no longer have one authority for all engines");
    Ok(())
}

/// A permit without files and network.
fn permit(authority: &Authority) -> Result<Permit, Box<dyn Error>> {
    let ceilings = Ceilings::closed();
    let grant = Grant::meet(authority, [(Layer::Verdict, Claims::default())], &ceilings)?;
    Ok(Permit::open(grant, &Mounts::new(Vec::new())?, &ceilings.areas, |_needed| true)?)
}

fn run(sandbox: &Sandbox, compiled: &File, permit: Permit) -> Result<End, Box<dyn Error>> {
    let artifact = sandbox.load(Code::module(compiled))?;
    let execution = sandbox.begin(&permit, Network::Off, Arc::default());
    let run = sandbox.execute(&artifact, permit, Input::Arguments("{}".to_owned()), &execution);
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(run).end)
}
