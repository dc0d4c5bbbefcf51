//! Exit codes, output, colours, tables and readable times of the `fence` command and its demos.

pub mod color;
pub mod exit;
pub mod output;
pub mod readable;
pub mod status;
pub mod table;
mod wording;
