//! A quorum of plain Redis nodes.

mod differential;
mod membership;
mod opening;
mod servers;
