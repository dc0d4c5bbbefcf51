//! Parts that several engines have.

pub(crate) mod lineage;
pub(crate) mod refused;
pub(crate) mod store_clock;
