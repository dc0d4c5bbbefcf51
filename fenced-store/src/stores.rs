//! Datastores that the guard protects, each in a folder; [`contract`] is what each promises.

pub mod carry;
pub(crate) mod commit;
pub mod contract;
mod decide;
pub mod embedded;
#[cfg(any(test, fuzzing))]
pub(crate) mod fuzz;
pub(crate) mod known_marks;
pub mod lanes;
pub mod memory;
pub mod once;
pub mod open;
pub mod postgres;
mod probe;
pub mod redis;
pub mod report;
#[cfg(test)]
mod tests;

pub use self::open::open;
