//! Figures over the rounds, and how they are printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::Load;
use super::load::Measured;

/// Name of the load generator among the processes whose CPU time is counted.
pub(super) const LOAD_GENERATOR: &str = "load";

/// The rounds of one thing that was measured.
pub(super) struct Side {
    name: String,
    rounds: Vec<Measured>,
}

impl Side {
    pub(super) fn new(name: impl Into<String>) -> Self {
        Self { name: name.into(), rounds: Vec::new() }
    }

    pub(super) fn add(&mut self, round: Measured) {
        self.rounds.push(round);
    }

    /// This side's rate divided by that of the base.
    pub(super) fn ratio(&self, base: &Self) -> Spread {
        self.ratio_of(base, Measured::per_sec).unwrap_or_default()
    }

    /// Ratios to the base in the same round; `None` where a round has no figure to divide by.
    fn ratio_of(&self, base: &Self, figure: impl Fn(&Measured) -> f64) -> Option<Spread> {
        let rounds = self.rounds.iter().zip(&base.rounds);
        let ratios: Vec<f64> = rounds.map(|(side, base)| figure(side) / figure(base)).collect();
        ratios.iter().all(|ratio| ratio.is_finite()).then(|| Spread::of(ratios))
    }

    pub(super) fn figures(&self) -> Figures {
        let over_rounds = |figure: &dyn Fn(&Measured) -> f64| {
            Spread::of(self.rounds.iter().map(figure).collect())
        };
        let rate = over_rounds(&Measured::per_sec);
        let names = self.rounds.first().into_iter().flat_map(|round| &round.cpu);
        let cpu_us = names.map(|&(name, _)| {
            let used = over_rounds(&|round| round.cpu_us(|process| process == name));
            (name, used.median)
        });
        let load_share = over_rounds(&|round| {
            round.cpu_time(|process| process == LOAD_GENERATOR).as_secs_f64()
                / round.took.as_secs_f64()
        });
        Figures {
            what: self.name.clone(),
            per_sec: rate.median.round(),
            per_sec_min: rate.min.round(),
            per_sec_max: rate.max.round(),
            done: self.rounds.iter().map(|round| round.done).sum(),
            p50_ms: over_rounds(&|round| round.latency_ms(0.5)).median,
            p99_ms: over_rounds(&|round| round.latency_ms(0.99)).median,
            cpu_us: cpu_us.collect(),
            load_share: load_share.median,
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
impl Measured {
    fn latency_ms(&self, quantile: f64) -> f64 {
        self.latency.value_at_quantile(quantile) as f64 / 1_000.0
    }

    fn cpu_time(&self, is_counted: impl Fn(&str) -> bool) -> Duration {
        self.cpu.iter().filter(|(name, _)| is_counted(name)).map(|(_, used)| *used).sum()
    }

    /// CPU microseconds an operation.
    fn cpu_us(&self, is_counted: impl Fn(&str) -> bool) -> f64 {
        self.cpu_time(is_counted).as_secs_f64() * 1e6 / self.done.max(1) as f64
    }

    /// The same of all processes except the load generator.
    fn served_cpu_us(&self) -> f64 {
        self.cpu_us(|process| process != LOAD_GENERATOR)
    }
}

/// Median, lowest and highest value over the rounds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(super) struct Spread {
    pub(super) median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn of(mut values: Vec<f64>) -> Self {
        values.sort_by(f64::total_cmp);
        let middle = values.len() / 2;
        let median = match values.len() {
            0 => return Self::default(),
            len if len % 2 == 1 => values[middle],
            _ => f64::midpoint(values[middle - 1], values[middle]),
        };
        Self { median, min: values[0], max: values[values.len() - 1] }
    }
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
pub(super) struct Figures {
    pub(super) what: String,
    pub(super) per_sec: f64,
    per_sec_min: f64,
    per_sec_max: f64,
    pub(super) done: u64,
    pub(super) p50_ms: f64,
    pub(super) p99_ms: f64,
    /// CPU microseconds an operation, by process.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    cpu_us: BTreeMap<&'static str, f64>,
    /// Share of the time that the load generator was busy; near 1 it bounds the rate.
    load_share: f64,
}

impl Figures {
    fn cpu(&self) -> String {
        let processes = self.cpu_us.iter().map(|(name, us)| match *name {
            LOAD_GENERATOR => format!("{name} {us:.0} ({:.0}% busy)", self.load_share * 100.0),
            name => format!("{name} {us:.0}"),
        });
        processes.collect::<Vec<_>>().join(", ")
    }
}

/// A server beside its base.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    what: String,
    clients: u16,
    #[serde(skip_serializing_if = "Option::is_none")]
    base: Option<Figures>,
    server: Figures,
    #[serde(skip_serializing_if = "Option::is_none")]
    ratios: Option<Ratios>,
}

/// The server's figures divided by the base's of the same round.
#[derive(Debug, Serialize)]
struct Ratios {
    per_sec: Option<Spread>,
    p50: Option<Spread>,
    p99: Option<Spread>,
    /// CPU time an operation of all processes except the load generator.
    cpu: Option<Spread>,
}

impl Row {
    pub(super) fn new(what: &str, clients: u16, base: Option<&Side>, server: &Side) -> Self {
        let ratios = base.map(|base| Ratios {
            per_sec: server.ratio_of(base, Measured::per_sec),
            p50: server.ratio_of(base, |round| round.latency_ms(0.5)),
            p99: server.ratio_of(base, |round| round.latency_ms(0.99)),
            cpu: server.ratio_of(base, Measured::served_cpu_us),
        });
        let base = base.map(Side::figures);
        Self { what: what.to_owned(), clients, base, server: server.figures(), ratios }
    }

    /// In two or three lines.
    pub(super) fn text(&self) -> String {
        let mut out = format!("{}, {} clients\n", self.what, self.clients);
        if let Some(base) = &self.base {
            out.push_str(&line(base, None));
        }
        out.push_str(&line(&self.server, self.ratios.as_ref()));
        out
    }
}

fn line(figures: &Figures, ratios: Option<&Ratios>) -> String {
    let two = |ratio: Option<Spread>| ratio.map_or(String::new(), |r| format!("{:.2}", r.median));
    let rate = ratios.and_then(|ratios| ratios.per_sec);
    let line = format!(
        "  {:<30}{:>8.0}{:>9.2}{:>9.2}{:>7}{:>13}{:>7}{:>7}{:>7}  {}",
        figures.what,
        figures.per_sec,
        figures.p50_ms,
        figures.p99_ms,
        two(rate),
        rate.map_or(String::new(), |rate| format!("({:.2}-{:.2})", rate.min, rate.max)),
        two(ratios.and_then(|ratios| ratios.p50)),
        two(ratios.and_then(|ratios| ratios.p99)),
        two(ratios.and_then(|ratios| ratios.cpu)),
        figures.cpu(),
    );
    format!("{}\n", line.trim_end())
}

/// A figure that has no base.
#[derive(Debug, Serialize)]
pub(super) struct Fact {
    pub(super) what: String,
    pub(super) bytes: f64,
}

/// What is printed.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    rounds: u8,
    time_ms: u128,
    pub(super) rows: Vec<Row>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) facts: Vec<Fact>,
    /// Rows that could not be measured, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) missing: Vec<String>,
}

impl Report {
    pub(super) fn new(load: Load, rows: Vec<Row>) -> Self {
        let (rounds, time_ms) = (load.rounds, load.time().as_millis());
        Self { rounds, time_ms, rows, facts: Vec::new(), missing: Vec::new() }
    }

    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "{} rounds of {} ms, base and server in turns; medians. × is the median of the rounds' own \
             ratios of the server to its base, with the lowest and the highest. CPU: microseconds an \
             operation; its ratio is that of all processes except the load generator.\n\n\
             {:<32}{:>8}{:>9}{:>9}{:>7}{:>13}{:>7}{:>7}{:>7}  CPU\n",
            self.rounds,
            self.time_ms,
            "",
            "per s",
            "p50 ms",
            "p99 ms",
            "×",
            "",
            "× p50",
            "× p99",
            "× CPU"
        );
        for row in &self.rows {
            out.push_str(&row.text());
        }
        // Writing to a string cannot fail.
        for fact in &self.facts {
            let _ = writeln!(out, "{}: {:.0} bytes", fact.what, fact.bytes);
        }
        for missing in &self.missing {
            let _ = writeln!(out, "\nNOT MEASURED: {missing}");
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;

    fn round(done: u64, latency_us: u64, cpu: &[(&'static str, u64)]) -> Measured {
        let mut latency = Histogram::new_with_bounds(1, 60_000_000, 3).unwrap();
        latency.record(latency_us).unwrap();
        let cpu = cpu.iter().map(|&(name, ms)| (name, Duration::from_millis(ms))).collect();
        Measured { done, took: Duration::from_secs(1), latency, cpu }
    }

    fn near(left: f64, right: f64) -> bool {
        (left - right).abs() < 1e-3
    }

    #[test]
    fn medians() {
        let spread = Spread::of(vec![3.0, 1.0, 2.0]);
        assert!(near(spread.median, 2.0) && near(spread.min, 1.0) && near(spread.max, 3.0));
        assert!(near(Spread::of(vec![4.0, 1.0, 2.0, 3.0]).median, 2.5));
        assert!(near(Spread::of(Vec::new()).median, 0.0));
    }

    /// A round in which the machine was slow is slow for both sides, and its ratio is as good.
    #[test]
    fn ratios_are_of_the_same_round() {
        let (mut base, mut server) = (Side::new("base"), Side::new("server"));
        for slowness in [1, 10, 2] {
            base.add(round(10_000 / slowness, 100 * slowness, &[("redis", 100)]));
            server.add(round(
                5_000 / slowness,
                300 * slowness,
                &[("redis", 100), ("lock-server", 50), (LOAD_GENERATOR, 500)],
            ));
        }
        let row = Row::new("locks", 1, Some(&base), &server);
        let ratios = row.ratios.as_ref().unwrap();
        for (ratio, expected) in [(ratios.per_sec, 0.5), (ratios.p50, 3.0), (ratios.cpu, 3.0)] {
            let ratio = ratio.unwrap();
            assert!(near(ratio.median, expected), "{ratio:?}");
            assert!((ratio.max - ratio.min).abs() < 0.01, "{ratio:?}");
        }
        assert!(near(row.server.cpu_us["lock-server"], 20.0));
        assert!(near(row.server.load_share, 0.5));
        assert!(row.text().contains("lock-server 20, redis 40"), "{}", row.text());
    }

    #[test]
    fn what_was_not_counted_has_no_ratio() {
        let (mut base, mut server) = (Side::new("base"), Side::new("server"));
        base.add(round(10, 100, &[]));
        server.add(round(10, 100, &[("lock-server", 50)]));
        assert!(Row::new("locks", 1, Some(&base), &server).ratios.unwrap().cpu.is_none());
        assert!(Row::new("locks", 1, None, &server).ratios.is_none());
    }
}
