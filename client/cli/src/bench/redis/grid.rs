//! Sides beside each other, a cell for each kind of work and number of clients.

use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::client::Work;
use crate::bench::report::{Figures, Side};

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Grid {
    rounds: u8,
    time_ms: u128,
    /// Sides that could not be measured, and why.
    missing: Vec<String>,
    cells: Vec<Cell>,
}

/// One kind of work with so many clients.
#[derive(Debug, Serialize)]
pub(super) struct Cell {
    command: &'static str,
    value_bytes: usize,
    pipeline: u8,
    clients: u16,
    sides: Vec<Column>,
}

#[derive(Debug, Serialize)]
struct Column {
    #[serde(flatten)]
    figures: Figures,
    /// The median over the rounds of its rate divided by that of Redis itself in the same round.
    ratio: f64,
}

impl Cell {
    /// The first side is Redis itself.
    pub(super) fn new(work: Work, clients: u16, sides: &[Side]) -> Self {
        let sides = sides
            .iter()
            .map(|side| Column { figures: side.figures(), ratio: side.ratio(&sides[0]).median })
            .collect();
        let Work { verb: command, value_bytes, pipeline } = work;
        Self { command, value_bytes, pipeline, clients, sides }
    }

    fn work(&self) -> String {
        let size = match self.value_bytes {
            bytes if bytes >= 1024 && bytes % 1024 == 0 => format!("{} KiB", bytes / 1024),
            bytes => format!("{bytes} B"),
        };
        format!("{} {size}, P{}", self.command, self.pipeline)
    }

    /// In one line, for those who wait for the rest.
    pub(super) fn line(&self) -> String {
        let sides = self.sides.iter().skip(1);
        let sides = sides.map(|side| format!("{} ×{:.2}", side.figures.what, side.ratio));
        let sides: Vec<_> = sides.collect();
        format!("{}, {} clients: {}", self.work(), self.clients, sides.join(", "))
    }
}

impl Grid {
    pub(super) fn new(cells: Vec<Cell>, rounds: u8, time: Duration, missing: Vec<String>) -> Self {
        Self { rounds, time_ms: time.as_millis(), missing, cells }
    }

    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "{} rounds of {} ms, in turns; medians. × is the median of the rounds' own ratios to \
             direct. P16: 16 commands are sent at once, and timed together.\n",
            self.rounds, self.time_ms
        );
        let mut last = String::new();
        for cell in &self.cells {
            let work = cell.work();
            // Writing to a string cannot fail.
            if work != last {
                let _ = writeln!(
                    out,
                    "\n{work:<16}{:>8}  {:<18}{:>10}{:>8}{:>10}{:>10}",
                    "clients", "", "per s", "×", "p50 ms", "p99 ms"
                );
                last = work;
            }
            for (at, Column { figures, ratio }) in cell.sides.iter().enumerate() {
                let clients = if at == 0 { cell.clients.to_string() } else { String::new() };
                let ratio = if at == 0 { String::new() } else { format!("{ratio:.2}") };
                let _ = writeln!(
                    out,
                    "{:<16}{clients:>8}  {:<18}{:>10.0}{ratio:>8}{:>10.2}{:>10.2}",
                    "", figures.what, figures.per_sec, figures.p50_ms, figures.p99_ms
                );
            }
        }
        for missing in &self.missing {
            let _ = writeln!(out, "\nNOT MEASURED: {missing}");
        }
        out
    }
}
