//! Fuzz target: the bytes of a file.
