//! Metrics of the process, under the names that every Prometheus client library gives them.

use std::fs;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use rustix::process::{Resource, getrlimit};
use rustix::time::{ClockId, clock_gettime};

type Seconds = Gauge<f64, AtomicU64>;

/// Use of the machine by this process, read from the system at each reading.
pub(super) struct ProcessFigures {
    registry: Registry,
    cpu: Counter<f64, AtomicU64>,
    resident: Gauge,
    open_fds: Gauge,
    max_fds: Gauge,
}

impl ProcessFigures {
    pub(super) fn new() -> Self {
        let mut registry = Registry::default();
        let cpu: Counter<f64, AtomicU64> = Counter::default();
        let resident = Gauge::default();
        let open_fds = Gauge::default();
        let max_fds = Gauge::default();
        let start: Seconds = Gauge::default();
        start.set(start_seconds().unwrap_or_default());
        registry.register("process_cpu_seconds", "Processor time, user and system", cpu.clone());
        registry.register("process_resident_memory_bytes", "Resident memory", resident.clone());
        registry.register("process_open_fds", "Open file descriptors", open_fds.clone());
        registry.register("process_max_fds", "Limit of open file descriptors", max_fds.clone());
        registry.register("process_start_time_seconds", "Start, in seconds since 1970", start);
        Self { registry, cpu, resident, open_fds, max_fds }
    }

    /// The metrics with their values now. One that the system does not show keeps its value.
    pub(super) fn read(&self) -> &Registry {
        let used = clock_gettime(ClockId::ProcessCPUTime);
        #[expect(clippy::cast_precision_loss, reason = "seconds with nanoseconds behind them")]
        let seconds = used.tv_sec as f64 + used.tv_nsec as f64 / 1e9;
        self.cpu.inner().store(seconds.to_bits(), Ordering::Relaxed);
        if let Some(bytes) = resident_bytes() {
            self.resident.set(bytes);
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // The last one is that of the folder itself.
            self.open_fds.set(i64::try_from(open.count()).unwrap_or(i64::MAX).saturating_sub(1));
        }
        let limit = getrlimit(Resource::Nofile).current;
        self.max_fds.set(limit.map_or(i64::MAX, |max| i64::try_from(max).unwrap_or(i64::MAX)));
        &self.registry
    }
}

fn resident_bytes() -> Option<i64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: i64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// Start of the process: its ticks since the system's start, and when that was.
fn start_seconds() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field, the name, may hold spaces and brackets; the 22nd is the start.
    let ticks: f64 = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
    let system = fs::read_to_string("/proc/stat").ok()?;
    let boot: f64 =
        system.lines().find_map(|line| line.strip_prefix("btime "))?.trim().parse().ok()?;
    #[expect(clippy::cast_precision_loss, reason = "a hundred or a thousand")]
    let per_second = rustix::param::clock_ticks_per_second() as f64;
    Some(boot + ticks / per_second)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Clock as _, SystemClock};

    #[test]
    fn the_figures_are_those_of_this_process() {
        let figures = ProcessFigures::new();
        let now = SystemClock::new().wall_ms() as f64 / 1_000.0;
        let start = start_seconds().unwrap();
        assert!(start > now - 86_400.0 && start < now + 60.0, "{start} and {now}");
        figures.read();
        let files: Vec<_> = (0..50).map(|_| fs::File::open("/proc/self/stat").unwrap()).collect();
        let before = figures.open_fds.get();
        figures.read();
        assert!(figures.open_fds.get() >= before + 40, "{} files are open", files.len());
        assert!(figures.max_fds.get() > figures.open_fds.get());
        assert!(figures.resident.get() > 1 << 20, "{}", figures.resident.get());
        assert!(figures.cpu.get() > 0.0);
    }
}
