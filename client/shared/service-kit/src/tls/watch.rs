//! Certificate files that change, and certificates that end.

use std::sync::PoisonError;
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::server::ServerTls;
use super::server_files::TlsContents;
use crate::Kit;
use crate::health::Status;

/// Period of reading the files. Only contents that were read twice in a row are loaded, so that
/// files that are being written are not loaded halfway.
const READ_EVERY: Duration = Duration::from_millis(500);

/// Readiness warns when the certificate has less than this left, in days.
const WARNING_DAYS: u64 = 14;

const DAY_SECONDS: u64 = 24 * 60 * 60;

/// Name of the readiness check.
const CHECK: &str = "tls";

impl ServerTls {
    /// Registers metrics and the readiness check, and watches the files until `kit` shuts down.
    /// Files that cannot be used have no effect: the last usable ones stay in force, readiness
    /// warns, and the log says why.
    ///
    /// # Panics
    /// Outside of a tokio runtime.
    pub fn start_reload(&self, kit: &Kit) {
        self.shared.figures.register(&kit.metrics);
        self.judge(kit, None);
        kit.tasks.spawn(self.clone().watch(kit.clone()));
    }

    async fn watch(self, kit: Kit) {
        let shutdown = kit.tasks.shutdown_token();
        let mut judged = Ok(self.shared.first.clone());
        let mut seen = judged.clone();
        let mut error = None;
        let mut reads = tokio::time::interval(READ_EVERY);
        reads.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = reads.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let files = self.shared.files.clone();
            let Ok(found) = kit.tasks.spawn_blocking(move || files.contents()).await else {
                continue;
            };
            if found != seen {
                seen = found;
            } else if seen != judged {
                judged = seen.clone();
                error = self.adopt(&judged).err();
            }
            self.judge(&kit, error.as_deref());
        }
    }

    fn adopt(&self, contents: &Result<TlsContents, String>) -> Result<(), String> {
        let contents = contents.as_ref().map_err(Clone::clone)?;
        self.replace(self.shared.files.load(contents)?);
        tracing::info!(files = ?self.shared.files, "the certificate files were loaded again");
        Ok(())
    }

    /// Sets readiness by the certificate in force, and the error of files that are not.
    fn judge(&self, kit: &Kit, error: Option<&str>) {
        let (not_after_seconds, key_warning) = {
            let loaded = self.shared.loaded.read().unwrap_or_else(PoisonError::into_inner);
            (loaded.not_after_seconds, loaded.key_warning.clone())
        };
        self.shared.figures.expires.set(i64::try_from(not_after_seconds).unwrap_or(i64::MAX));
        let unusable =
            error.map(|error| format!("{error}; the files as they were before stay in force"));
        let certificate = self.shared.files.certificate.display();
        let ending = ending(not_after_seconds, kit.clock.wall_ms() / 1000)
            .map(|what| format!("the certificate {certificate} {what}"));
        let warnings: Vec<String> = [unusable, ending, key_warning].into_iter().flatten().collect();
        let status =
            if warnings.is_empty() { Status::Ok } else { Status::Warn(warnings.join("; ")) };
        kit.health.set(CHECK, status);
    }
}

/// The rest of a sentence on a certificate that has ended or will soon.
fn ending(not_after_seconds: u64, now_seconds: u64) -> Option<String> {
    let Some(left) = not_after_seconds.checked_sub(now_seconds) else {
        return Some("has expired, and clients refuse it; write a new one to its file".to_owned());
    };
    let days = left / DAY_SECONDS;
    (days < WARNING_DAYS).then(|| format!("ends in {days} days; write a new one to its file"))
}
