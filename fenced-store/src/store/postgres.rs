//! PostgreSQL: the SQL pack, with the marks in the database that it protects.

pub mod pack;
