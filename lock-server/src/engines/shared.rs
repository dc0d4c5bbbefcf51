//! Parts that several engines have.

pub(crate) mod lineages;
pub(crate) mod refused;
pub(crate) mod store_clock;
