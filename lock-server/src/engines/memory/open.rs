//! Leases in memory: the driver, whose memory is the truth. They go with the process.

use std::sync::Arc;

use lease::{Limits, Machine, tokens};
use service_kit::Kit;

use super::MemoryRecords;
use crate::driver::Driver;

/// The `memory:` store. Nothing says what an earlier process has issued, so tokens begin above
/// everything that it can have.
pub fn start(limits: Limits, kit: &Kit) -> Driver {
    let records = MemoryRecords::alone(kit.clock.clone());
    let machine = Machine::new(tokens::restart_floor(kit.clock.wall_ms()), limits);
    Driver::alone(Arc::new(records), machine, limits, kit)
}
