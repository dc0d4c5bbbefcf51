//! A quorum of plain Redis nodes.

mod bad_input;
mod differential;
mod fleet;
mod membership;
mod model;
mod opening;
mod redlock;
mod servers;
