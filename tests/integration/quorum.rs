//! A quorum of plain Redis nodes.

mod differential;
