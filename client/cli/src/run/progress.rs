//! Progress reports of the command: a pipe, or a signal to this process.

use std::io::{self, PipeWriter};
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;

use rustix::process::Signal;
use tokio::net::unix::pipe::Receiver;

use fence_terminal::exit::Failure;

/// Signal for programs that cannot write to a file descriptor.
pub(super) const SIGNAL: Signal = Signal::USR2;

/// The end of the pipe on which reports arrive.
#[derive(Debug)]
pub(super) struct Reports {
    reader: Receiver,
    /// Held here too, so that the pipe never ends: a command that closes its end reports nothing.
    writer: PipeWriter,
}

impl Reports {
    pub(super) fn open() -> Result<Self, Failure> {
        let no_pipe = |error: io::Error| Failure::internal(format!("no pipe for reports: {error}"));
        let (reader, writer) = io::pipe().map_err(no_pipe)?;
        let reader = Receiver::from_owned_fd(reader.into()).map_err(no_pipe)?;
        Ok(Self { reader, writer })
    }

    /// Path by which another process of this user opens its own end.
    pub(super) fn path(&self) -> PathBuf {
        format!("/proc/{}/fd/{}", std::process::id(), self.writer.as_raw_fd()).into()
    }

    /// Waits for a report, and takes all that have come. Cancel-safe.
    pub(super) async fn next(&self) {
        let mut bytes = [0; 4096];
        loop {
            // The runtime may be wrong about what can be read; then the read is retried.
            if self.reader.readable().await.is_err() {
                return std::future::pending().await;
            }
            let mut any = false;
            // A command that writes without end gets no more than the pipe's size at a time.
            for _ in 0..16 {
                match self.reader.try_read(&mut bytes) {
                    Ok(count) if count > 0 => any = true,
                    _ => break,
                }
            }
            if any {
                return;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[tokio::test]
    async fn every_byte_that_is_written_is_a_report_and_nothing_is_left_over() {
        let reports = Reports::open().unwrap();
        let mut end = std::fs::OpenOptions::new().write(true).open(reports.path()).unwrap();
        for report in [&b"."[..], b"\n", &[0; 9000]] {
            end.write_all(report).unwrap();
            reports.next().await;
            let mut left = [0; 1];
            assert!(reports.reader.try_read(&mut left).is_err());
        }
        // Closing is no report.
        drop(end);
        let quiet = std::pin::pin!(reports.next());
        assert!(futures_util::poll!(quiet).is_pending());
    }
}
