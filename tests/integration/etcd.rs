//! The lock server over real etcds, one node and several, and what happens when they are hurt.

mod tools;
