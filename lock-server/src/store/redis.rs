//! Parts that stores in Redis share: keys, rights, errors, and the verdict on a Redis and its
//! settings.

pub(in crate::store) mod identity;
pub mod judge;
mod key_prefix;
pub(crate) mod refusals;
pub mod rights;
pub(in crate::store) mod watch;

pub use self::key_prefix::KeyPrefix;
