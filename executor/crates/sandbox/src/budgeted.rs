//! The WASI 0.2 host calls for random bytes and polls: wasmtime's implementation behind a budget.

use super::state::StoreState;
use wasmtime::component::{HasData, Linker, Resource};
use wasmtime_wasi::WasiView as _;
use wasmtime_wasi::p2::DynPollable;
use wasmtime_wasi::p2::bindings::io::poll;
use wasmtime_wasi::p2::bindings::random::{insecure, insecure_seed, random};
use wasmtime_wasi::random::WasiRandomCtx;

/// Maximum number of random bytes per call.
// wasmtime generates all bytes of a call before the guest receives the first.
pub(super) const MAX_RANDOM_BYTES: u64 = 64 << 10;

/// Links `wasi:random` and `wasi:io/poll`.
pub(super) fn add_to_linker(linker: &mut Linker<StoreState>) -> wasmtime::Result<()> {
    random::add_to_linker::<StoreState, HasBudgetedHost>(linker, |state| BudgetedHost(state))?;
    insecure::add_to_linker::<StoreState, HasBudgetedHost>(linker, |state| BudgetedHost(state))?;
    insecure_seed::add_to_linker::<StoreState, HasBudgetedHost>(linker, |state| BudgetedHost(state))?;
    poll::add_to_linker::<StoreState, HasBudgetedHost>(linker, |state| BudgetedHost(state))
}

struct HasBudgetedHost;

impl HasData for HasBudgetedHost {
    type Data<'a> = BudgetedHost<'a>;
}

struct BudgetedHost<'a>(&'a mut StoreState);

impl BudgetedHost<'_> {
    /// Charges `bytes` and returns wasmtime's generator.
    fn charge_random(&mut self, bytes: u64) -> wasmtime::Result<&mut WasiRandomCtx> {
        // A larger call is refused by wasmtime and delivers no bytes, so it is not charged.
        if bytes <= MAX_RANDOM_BYTES {
            self.0.stats.budget.charge_random(bytes)?;
        }
        Ok(self.0.wasi.ctx().ctx.random())
    }
}

impl random::Host for BudgetedHost<'_> {
    fn get_random_bytes(&mut self, bytes: u64) -> wasmtime::Result<Vec<u8>> {
        self.charge_random(bytes)?.get_random_bytes(bytes)
    }

    fn get_random_u64(&mut self) -> wasmtime::Result<u64> {
        self.charge_random(8)?.get_random_u64()
    }
}

impl insecure::Host for BudgetedHost<'_> {
    fn get_insecure_random_bytes(&mut self, bytes: u64) -> wasmtime::Result<Vec<u8>> {
        self.charge_random(bytes)?.get_insecure_random_bytes(bytes)
    }

    fn get_insecure_random_u64(&mut self) -> wasmtime::Result<u64> {
        self.charge_random(8)?.get_insecure_random_u64()
    }
}

impl insecure_seed::Host for BudgetedHost<'_> {
    fn insecure_seed(&mut self) -> wasmtime::Result<(u64, u64)> {
        self.charge_random(16)?.insecure_seed()
    }
}

impl poll::Host for BudgetedHost<'_> {
    async fn poll(&mut self, pollables: Vec<Resource<DynPollable>>) -> wasmtime::Result<Vec<u32>> {
        self.0.stats.budget.check_poll(u64::try_from(pollables.len()).unwrap_or(u64::MAX))?;
        poll::Host::poll(self.0.wasi.ctx().table, pollables).await
    }
}

impl poll::HostPollable for BudgetedHost<'_> {
    async fn block(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        poll::HostPollable::block(self.0.wasi.ctx().table, pollable).await
    }

    async fn ready(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<bool> {
        poll::HostPollable::ready(self.0.wasi.ctx().table, pollable).await
    }

    fn drop(&mut self, pollable: Resource<DynPollable>) -> wasmtime::Result<()> {
        poll::HostPollable::drop(self.0.wasi.ctx().table, pollable)
    }
}
