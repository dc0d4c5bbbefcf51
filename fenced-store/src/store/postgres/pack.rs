//! The SQL pack: schema `fence` with the marks, in the database that it protects.

/// Version of the pack in this program, as in `fence.meta`.
pub const VERSION: i32 = 1;

/// Files of the pack, in their order. Each may be run again.
const FILES: [&str; 6] = [
    include_str!("pack/1-schema.sql"),
    include_str!("pack/2-fence.sql"),
    include_str!("pack/3-sessions.sql"),
    include_str!("pack/4-enter.sql"),
    include_str!("pack/5-triggers.sql"),
    include_str!("pack/9-rights.sql"),
];

/// Returns the statements that install the pack or upgrade it, one transaction.
#[must_use]
pub fn sql() -> String {
    format!("begin;\n{}commit;\n", FILES.concat())
}
