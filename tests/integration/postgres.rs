//! PostgreSQL as a store: connections, records and locks.

mod failover;
mod lineage;
mod link;
mod locks;
mod objects;
mod records;
mod start;
mod stopped;
