//! The parts that this build has.

use a2g_types::call::Door;

/// Returns `true` if this build has the door.
pub(super) const fn has_door(door: Door) -> bool {
    match door {
        Door::A2g | Door::Cli => true,
        Door::A2a => cfg!(feature = "a2a"),
        Door::A2e => cfg!(feature = "a2e"),
        Door::Console => cfg!(feature = "console"),
        Door::Mcp => cfg!(feature = "mcp"),
        Door::Nexus => cfg!(feature = "nexus"),
        Door::Sovereign => cfg!(feature = "sovereign"),
    }
}

/// Returns `true` if this build has the client of NATS.
pub(super) const fn has_fleet() -> bool {
    cfg!(feature = "fleet")
}
