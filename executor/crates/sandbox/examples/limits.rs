//! A module that never ends is ended: by the limit of its grant, or by another thread.

use a2g_sandbox::capability::{
    Authority, Ceilings, Claims, Grant, Layer, Limit, LimitMap, Mounts, Permit, Timeout,
};
use a2g_sandbox::{Abort, AbortReason, Artifact, Contract, End, Input, Network, Outcome, Sandbox};
use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

const MODULE: &str = r#"(module (memory (export "memory") 1) (func (export "_start") (loop (br 0))))"#;

fn main() -> Result<(), Box<dyn Error>> {
    let authority = Authority::for_engine().ok_or("this process has another authority")?;
    let sandbox = Sandbox::builder().authority(&authority).build()?;
    let artifact = sandbox.compile(&wat::parse_str(MODULE)?, Contract::Command)?;

    let short = permit(&authority, Timeout::from_millis(50)?)?;
    let outcome = run(&sandbox, &artifact, short, &Arc::default())?;
    assert_eq!(outcome.end, End::LimitReached(Limit::Time));
    assert_eq!(outcome.usage.timeout.layer, Layer::Executor);
    assert!(outcome.metrics.wall >= Duration::from_millis(50));

    let long = permit(&authority, Timeout::from_seconds(60)?)?;
    let abort = Arc::new(Abort::default());
    let stopper = Arc::clone(&abort);
    let stopping = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(50));
        stopper.trigger(AbortReason::Cancelled);
    });
    let stopped = run(&sandbox, &artifact, long, &abort)?;
    assert_eq!(stopped.end, End::Aborted(AbortReason::Cancelled));
    stopping.join().map_err(|_panic| "the other thread has panicked")?;
    Ok(())
}

/// A permit without files and network.
fn permit(authority: &Authority, timeout: Timeout) -> Result<Permit, Box<dyn Error>> {
    let ceilings = Ceilings { limits: LimitMap::defaults().with(timeout), ..Ceilings::closed() };
    let grant = Grant::meet(authority, [(Layer::Verdict, Claims::default())], &ceilings)?;
    Ok(Permit::open(grant, &Mounts::new(Vec::new())?, &ceilings.areas, |_needed| true)?)
}

fn run(
    sandbox: &Sandbox,
    artifact: &Artifact,
    permit: Permit,
    abort: &Arc<Abort>,
) -> Result<Outcome, Box<dyn Error>> {
    let execution = sandbox.begin(&permit, Network::Off, Arc::clone(abort));
    let run = sandbox.execute(artifact, permit, Input::Arguments("{}".to_owned()), &execution);
    Ok(tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(run))
}
