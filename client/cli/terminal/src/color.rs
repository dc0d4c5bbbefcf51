//! Colours of text on a terminal. Text is always made with them; [`emit_text`] removes them where
//! they are not wanted.
//!
//! [`emit_text`]: crate::output::emit_text

use std::fmt::Display;

use anstream::adapter::strip_str;
use anstyle::AnsiColor;
pub use anstyle::Style;
use clap::ValueEnum;

/// All is well.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Worth a look.
pub const WARNING: Style = AnsiColor::Yellow.on_default();
/// Refused, lost or failed.
pub const BAD: Style = AnsiColor::Red.on_default().bold();
/// Context, less important than the rest.
pub const FAINT: Style = Style::new().dimmed();
/// A heading, or what a line is about.
pub const STRONG: Style = Style::new().bold();

/// Value of `--color`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Choice {
    /// On a terminal, unless `NO_COLOR` is set.
    #[default]
    Auto,
    /// Everywhere.
    Always,
    /// Nowhere.
    Never,
}

impl Choice {
    /// Makes this the choice of the whole process.
    pub fn apply(self) {
        match self {
            Self::Auto => anstream::ColorChoice::Auto,
            Self::Always => anstream::ColorChoice::Always,
            Self::Never => anstream::ColorChoice::Never,
        }
        .write_global();
    }
}

/// The text without its colours.
pub fn plain(text: &str) -> String {
    strip_str(text).to_string()
}

/// The text in this style, as in `painted(GOOD, "[+]")`. Pad it before: escapes have no width.
pub fn painted(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}
