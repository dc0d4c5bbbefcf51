//! JSON of requests and replies of the two services.
//!
//! Requests refuse unknown fields, so that a misspelt option is an error and not a silent default.
//! Replies do not, so that an older client reads a newer server. Durations are whole milliseconds
//! and always "from now"; no reply carries a wall-clock deadline.

pub mod event;
pub mod fence;
pub mod guards;
pub mod lane;
pub mod lock;
pub mod lock_set;
pub mod principal;
pub mod session;
pub mod version;
