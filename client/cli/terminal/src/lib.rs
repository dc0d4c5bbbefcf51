//! Exit codes, output, tables and readable times: shared by the `fence` command and its demos.

pub mod exit;
pub mod output;
pub mod readable;
pub mod table;
