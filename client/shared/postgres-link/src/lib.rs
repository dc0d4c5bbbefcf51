//! One owned connection to one PostgreSQL: verified before it is used, never replayed.
//!
//! A connection that broke is replaced by this module and by nothing else. Before a new one carries
//! a single statement, it is certain that the server accepts writes, and the caller's [`Verifier`]
//! checks the database behind it. A statement whose reply is lost is reported as
//! [`LinkError::Unknown`] and is never sent again.

mod connection;
mod link;
mod target;
mod tls;
mod url;

pub use connection::{
    ConnectOptions, NOTIFICATIONS_MAX, PostgresConnection, UNREAD_LIMIT, error_text,
};
pub use link::{LinkError, LinkOptions, LinkState, PostgresLink, Verifier, refusal};
pub use target::PostgresTarget;
pub use tls::PostgresSocket;
pub use url::TargetError;
