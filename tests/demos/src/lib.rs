//! `fence demo` and `fence bench`: the command links this package and adds no logic of its own.

mod backing;
pub mod bench;
pub mod demo;
pub mod internal;
mod own_postgres;
mod own_redis;
mod postgres_database;
mod process;
