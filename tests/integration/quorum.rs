//! A quorum of plain Redis nodes.

mod acknowledged;
mod acl;
mod bad_input;
mod clocks;
mod differential;
mod eviction;
mod fleet;
mod membership;
mod model;
mod old_backup;
mod opening;
mod program;
mod recovery;
mod redlock;
mod reference;
mod servers;
mod split;
mod strangers;
mod trouble;
mod walk;
