//! Figures over the rounds, and how they are printed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde::Serialize;

use super::load::{LOAD_GENERATOR, Measured};

/// The printed report.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    rounds: u8,
    time_ms: u128,
    pub(super) rows: Vec<Row>,
    /// Sizes in bytes, by what has them.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(super) bytes: BTreeMap<&'static str, f64>,
    /// Leases that ended together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) storms: Vec<Storm>,
    /// Rows that could not be measured, and why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) missing: Vec<String>,
}

/// Leases that ended in the same moment, and a client that wanted other locks meanwhile.
#[derive(Debug, Serialize)]
pub(super) struct Storm {
    store: &'static str,
    leases: u32,
    /// Longest time of an acquire with its release.
    longest_ms: u128,
    /// From the end of the leases until their locks were free.
    free_after_ms: u128,
}

impl Storm {
    pub(super) fn new(
        store: &'static str,
        leases: u32,
        longest: Duration,
        free_after: Duration,
    ) -> Self {
        let longest_ms = longest.as_millis();
        Self { store, leases, longest_ms, free_after_ms: free_after.as_millis() }
    }

    pub(super) fn text(&self) -> String {
        let Self { store, leases, longest_ms, free_after_ms } = self;
        format!(
            "{store}, {leases} leases that end together: another client's longest pair \
             {longest_ms} ms, all locks free after {free_after_ms} ms"
        )
    }
}

/// One kind of work: the base, and what is compared with it.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    what: String,
    clients: u16,
    sides: Vec<Figures>,
}

/// Medians over the rounds.
#[derive(Debug, Serialize)]
struct Figures {
    what: String,
    per_sec: f64,
    done: u64,
    p50_ms: f64,
    p99_ms: f64,
    /// CPU microseconds an operation, by process.
    cpu_us: BTreeMap<&'static str, f64>,
    /// Share of the time that the load generator was busy; near 1 it bounds the rate.
    load_share: f64,
    /// Beside the base.
    #[serde(skip_serializing_if = "Option::is_none")]
    ratios: Option<Ratios>,
}

/// Figures of each round divided by the base's of the same round; `None` where there is nothing to
/// divide by.
#[derive(Debug, Serialize)]
struct Ratios {
    per_sec: Option<Spread>,
    p50: Option<Spread>,
    p99: Option<Spread>,
    /// CPU time an operation of all processes except the load generator.
    cpu: Option<Spread>,
}

/// Median, lowest and highest value over the rounds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Spread {
    median: f64,
    min: f64,
    max: f64,
}

impl Spread {
    fn from_values(mut values: Vec<f64>) -> Option<Self> {
        values.sort_by(f64::total_cmp);
        let min = *values.first()?;
        let max = *values.last()?;
        let median = f64::midpoint(values[(values.len() - 1) / 2], values[values.len() / 2]);
        max.is_finite().then_some(Self { median, min, max })
    }
}

#[expect(clippy::cast_precision_loss, reason = "figures for people")]
impl Measured {
    fn per_sec(&self) -> f64 {
        self.done as f64 / self.took.as_secs_f64()
    }

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
}

impl Figures {
    fn new(what: &str, rounds: &[Measured], base: Option<&[Measured]>) -> Self {
        let median = |figure: &dyn Fn(&Measured) -> f64| {
            Spread::from_values(rounds.iter().map(figure).collect())
                .map_or(0.0, |spread| spread.median)
        };
        let names = rounds.first().into_iter().flat_map(|round| &round.cpu).map(|(name, _)| *name);
        let load = |round: &Measured| round.cpu_time(|name| name == LOAD_GENERATOR).as_secs_f64();
        Self {
            what: what.to_owned(),
            per_sec: median(&Measured::per_sec).round(),
            done: rounds.iter().map(|round| round.done).sum(),
            p50_ms: median(&|round| round.latency_ms(0.5)),
            p99_ms: median(&|round| round.latency_ms(0.99)),
            cpu_us: names
                .map(|at| (at, median(&|round| round.cpu_us(|name| name == at))))
                .collect(),
            load_share: median(&|round| load(round) / round.took.as_secs_f64()),
            ratios: base.map(|base| Ratios::new(rounds, base)),
        }
    }

    fn line(&self) -> String {
        let two =
            |ratio: Option<Spread>| ratio.map_or(String::new(), |r| format!("{:.2}", r.median));
        let ratio = |of: fn(&Ratios) -> Option<Spread>| self.ratios.as_ref().and_then(of);
        let spread = ratio(|ratios| ratios.per_sec)
            .map_or(String::new(), |rate| format!("({:.2}-{:.2})", rate.min, rate.max));
        let cpu = self.cpu_us.iter().map(|(name, us)| match *name {
            LOAD_GENERATOR => format!("{name} {us:.0} ({:.0}% busy)", self.load_share * 100.0),
            name => format!("{name} {us:.0}"),
        });
        let line = format!(
            "  {:<30}{:>8.0}{:>9.2}{:>9.2}{:>7}{spread:>13}{:>7}{:>7}{:>7}  {}",
            self.what,
            self.per_sec,
            self.p50_ms,
            self.p99_ms,
            two(ratio(|ratios| ratios.per_sec)),
            two(ratio(|ratios| ratios.p50)),
            two(ratio(|ratios| ratios.p99)),
            two(ratio(|ratios| ratios.cpu)),
            cpu.collect::<Vec<_>>().join(", "),
        );
        format!("{}\n", line.trim_end())
    }
}

impl Ratios {
    fn new(rounds: &[Measured], base: &[Measured]) -> Self {
        let of = |figure: &dyn Fn(&Measured) -> f64| {
            Spread::from_values(
                rounds.iter().zip(base).map(|(a, b)| figure(a) / figure(b)).collect(),
            )
        };
        Self {
            per_sec: of(&Measured::per_sec),
            p50: of(&|round| round.latency_ms(0.5)),
            p99: of(&|round| round.latency_ms(0.99)),
            cpu: of(&|round| round.cpu_us(|name| name != LOAD_GENERATOR)),
        }
    }
}

impl Row {
    /// The rounds of each side, by its name; the first is the base.
    pub(super) fn new(what: &str, clients: u16, sides: &[(String, Vec<Measured>)]) -> Self {
        let base = |at: usize| sides.first().filter(|_| at > 0).map(|(_, rounds)| &rounds[..]);
        let sides = sides.iter().enumerate();
        let sides =
            sides.map(|(at, (name, rounds))| Figures::new(name, rounds, base(at))).collect();
        Self { what: what.to_owned(), clients, sides }
    }

    pub(super) fn text(&self) -> String {
        let sides: String = self.sides.iter().map(Figures::line).collect();
        format!("{}, {} clients\n{sides}", self.what, self.clients)
    }
}

impl Report {
    pub(super) fn new(rounds: u8, time: Duration) -> Self {
        let bytes = BTreeMap::new();
        let missing = Vec::new();
        let storms = Vec::new();
        let time_ms = time.as_millis();
        Self { rounds, time_ms, rows: Vec::new(), bytes, storms, missing }
    }

    pub(super) fn table(&self) -> String {
        let mut out = format!(
            "{} rounds of {} ms, the sides in turns; medians. × is the median of the rounds' own \
             ratios to the first side, with the lowest and the highest. CPU: microseconds an \
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
        for (what, bytes) in &self.bytes {
            let _ = writeln!(out, "{what}: {bytes:.0} bytes");
        }
        for storm in &self.storms {
            let _ = writeln!(out, "{}", storm.text());
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
        (left - right).abs() < 0.01
    }

    #[test]
    fn medians() {
        let spread = Spread::from_values(vec![3.0, 1.0, 2.0]).unwrap();
        assert!(near(spread.median, 2.0) && near(spread.min, 1.0) && near(spread.max, 3.0));
        assert!(near(Spread::from_values(vec![4.0, 1.0, 2.0, 3.0]).unwrap().median, 2.5));
        assert!(Spread::from_values(Vec::new()).is_none());
    }

    /// A round in which the machine was slow is slow for both sides, and its ratio is as good.
    #[test]
    fn ratios_are_of_the_same_round() {
        let mut base = Vec::new();
        let mut server = Vec::new();
        for slowness in [1, 10, 2] {
            base.push(round(10_000 / slowness, 100 * slowness, &[("redis", 100 / slowness)]));
            let cpu = [("redis", 100), ("lock-server", 50), (LOAD_GENERATOR, 500)];
            let cpu = cpu.map(|(name, ms)| (name, ms / slowness));
            server.push(round(5_000 / slowness, 300 * slowness, &cpu));
        }
        let row = Row::new("locks", 1, &[("base".to_owned(), base), ("server".to_owned(), server)]);
        let figures = &row.sides[1];
        let ratios = figures.ratios.as_ref().unwrap();
        for (ratio, expected) in [(ratios.per_sec, 0.5), (ratios.p50, 3.0), (ratios.cpu, 3.0)] {
            let ratio = ratio.unwrap();
            assert!(near(ratio.median, expected) && near(ratio.min, ratio.max), "{ratio:?}");
        }
        assert!(near(figures.cpu_us["lock-server"], 10.0) && near(figures.load_share, 0.25));
        assert!(figures.line().contains("lock-server 10, redis 20"), "{}", figures.line());
    }

    #[test]
    fn what_was_not_counted_has_no_ratio() {
        let base = [round(10, 100, &[])];
        let server = [round(10, 100, &[("lock-server", 50)])];
        assert!(Ratios::new(&server, &base).cpu.is_none());
        assert!(Figures::new("alone", &server, None).ratios.is_none());
    }
}
