//! What the rounds add up to.

use std::fmt::Write as _;

use serde::Serialize;

use super::Load;
use super::load::Measured;

/// The rounds of one thing that was measured.
pub(super) struct Side {
    name: &'static str,
    rounds: Vec<Measured>,
}

impl Side {
    pub(super) fn new(name: &'static str) -> Self {
        Self { name, rounds: Vec::new() }
    }

    pub(super) fn add(&mut self, round: Measured) {
        self.rounds.push(round);
    }

    /// The median over the rounds of this side's rate divided by the base's of the same round.
    pub(super) fn ratio(&self, base: &Self) -> f64 {
        let pairs = self.rounds.iter().zip(&base.rounds);
        median(pairs.map(|(side, base)| side.per_sec() / base.per_sec()))
    }

    pub(super) fn figures(&self) -> Figures {
        let quantile = |q: f64| {
            median(self.rounds.iter().map(|round| {
                #[expect(clippy::cast_precision_loss, reason = "microseconds for people")]
                let us = round.latency.value_at_quantile(q) as f64;
                us / 1_000.0
            }))
        };
        Figures {
            what: self.name,
            per_sec: median(self.rounds.iter().map(Measured::per_sec)).round(),
            done: self.rounds.iter().map(|round| round.done).sum(),
            p50_ms: quantile(0.5),
            p99_ms: quantile(0.99),
        }
    }
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) what: &'static str,
    pub(super) per_sec: f64,
    pub(super) done: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    measured: &'static str,
    clients: u16,
    rounds: u8,
    time_ms: u128,
    sides: Vec<Figures>,
    /// The median over the rounds of the first side's rate divided by the base's of the same round.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratio: Option<f64>,
}

impl Report {
    pub(super) fn new(measured: &'static str, load: Load, side: Side, base: Option<Side>) -> Self {
        let ratio = base.as_ref().map(|base| side.ratio(base));
        let sides = std::iter::once(&side).chain(base.as_ref()).map(Side::figures).collect();
        let (clients, rounds, time_ms) = (load.clients(), load.rounds, load.time().as_millis());
        Self { measured, clients, rounds, time_ms, sides, ratio }
    }

    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "{}: {} clients, {} rounds of {} ms, medians\n\n{:<26}{:>10}{:>10}{:>10}\n",
            self.measured, self.clients, self.rounds, self.time_ms, "", "per s", "p50 ms", "p99 ms"
        );
        for side in &self.sides {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{:<26}{:>10.0}{:>10.2}{:>10.2}",
                side.what, side.per_sec, side.p50_ms, side.p99_ms
            );
        }
        if let Some(ratio) = self.ratio {
            let _ = writeln!(out, "\nratio {ratio:.2} (median of the rounds' own ratios)");
        }
        out
    }
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => 0.0,
        len if len % 2 == 1 => values[middle],
        _ => f64::midpoint(values[middle - 1], values[middle]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert!((median([3.0, 1.0, 2.0].into_iter()) - 2.0).abs() < 1e-9);
        assert!((median([4.0, 1.0, 2.0, 3.0].into_iter()) - 2.5).abs() < 1e-9);
    }
}
