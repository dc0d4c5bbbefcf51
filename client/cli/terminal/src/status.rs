//! A line on a terminal that is kept up to date; nothing of it where stderr is no terminal.

use std::io::{IsTerminal as _, Write as _, stderr};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::termios::tcgetwinsize;

/// Columns of a terminal whose size is not known.
const COLUMNS: u16 = 80;

/// The line. Dropping it removes it from the terminal.
#[derive(Debug)]
pub struct StatusLine {
    is_terminal: bool,
    is_painted: AtomicBool,
}

impl Default for StatusLine {
    fn default() -> Self {
        Self { is_terminal: stderr().is_terminal(), is_painted: AtomicBool::new(false) }
    }
}

impl StatusLine {
    /// True if there is a terminal to show it.
    pub fn is_terminal(&self) -> bool {
        self.is_terminal
    }

    /// Shows `text` in place of the line's last text, cut to the terminal's width.
    pub fn show(&self, text: &str) {
        if !self.is_terminal {
            return;
        }
        let columns = tcgetwinsize(stderr()).map_or(COLUMNS, |size| size.ws_col);
        let columns = usize::from(if columns == 0 { COLUMNS } else { columns });
        let text: String = text.chars().take(columns - 1).collect();
        self.is_painted.store(true, Ordering::Relaxed);
        // There is nowhere to report that this failed.
        let _ = write!(stderr().lock(), "\r{text}\x1b[K");
    }

    /// Removes the line, so that others can be written.
    pub fn clear(&self) {
        if self.is_painted.swap(false, Ordering::Relaxed) {
            let _ = write!(stderr().lock(), "\r\x1b[K");
        }
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        self.clear();
    }
}
