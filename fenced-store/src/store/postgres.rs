//! PostgreSQL as a store of marks: the SQL pack in the database that it protects.

pub mod pack;
