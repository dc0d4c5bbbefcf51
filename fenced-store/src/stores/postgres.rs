//! PostgreSQL as a store: the SQL pack in the database that it protects, and objects beside it.

pub mod objects;
pub mod pack;
