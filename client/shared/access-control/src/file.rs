//! The access file on disk: read at start, and again whenever it changes.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use service_kit::Kit;
use service_kit::health::Status;

use crate::audit::{AuditLog, Line};
use crate::ledger::Ledger;
use crate::list::{AccessList, Principal};
use crate::secret::{Credential, SecretHash};

/// Largest access file, in bytes.
const FILE_BYTES_MAX: u64 = 4 << 20;
/// Period of reading the file. Only a text that was read twice in a row is loaded, so that a file
/// that is being written is not loaded halfway.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Name of the readiness check.
const CHECK: &str = "access-file";

/// An access file and its principals. Cheap to clone; clones share the last loaded list.
#[derive(Clone, Debug)]
pub struct AccessFile {
    inner: Arc<FileState>,
    /// Principal in addition to those of the file.
    own: Option<Arc<Own>>,
}

/// Component of this process that sends requests to it.
#[derive(Debug)]
struct Own {
    hash: SecretHash,
    principal: Arc<Principal>,
    ledger: Arc<Ledger>,
}

#[derive(Debug)]
struct FileState {
    path: PathBuf,
    /// Text read at start.
    first: String,
    loaded: RwLock<Loaded>,
    figures: Figures,
}

/// Metrics of the file.
#[derive(Debug, Default)]
struct Figures {
    usable: Gauge,
    loads: Counter,
    rejections: Counter,
}

impl Figures {
    fn register(&self, kit: &Kit) {
        self.usable.set(1);
        let usable = self.usable.clone();
        let loads = self.loads.clone();
        let rejections = self.rejections.clone();
        kit.metrics.registry(|registry| {
            registry.register(
                "access_file_usable",
                "1 while the access file as it is now is in force, 0 while an earlier one is",
                usable,
            );
            registry.register("access_file_loads", "Changes of the access file taken over", loads);
            registry.register(
                "access_file_rejections",
                "Changes of the access file that could not be used",
                rejections,
            );
        });
    }
}

#[derive(Debug, Default)]
struct Loaded {
    list: AccessList,
    /// By name, so that a reload does not reset the usage of a principal.
    ledgers: HashMap<String, Arc<Ledger>>,
}

impl Loaded {
    fn replaced(&self, list: AccessList) -> Self {
        let ledger = |principal: &Principal| {
            let kept = self.ledgers.get(&principal.name).map(Arc::clone);
            (principal.name.clone(), kept.unwrap_or_default())
        };
        let ledgers = list.principals().map(ledger).collect::<HashMap<_, _>>();
        Self { list, ledgers }
    }
}

impl AccessFile {
    /// Reads the file.
    ///
    /// # Errors
    /// A sentence with the path and all errors.
    pub fn open(path: &Path) -> Result<Self, String> {
        let refuse = |error: String| format!("--access-file {}: {error}", path.display());
        let first = read(path).map_err(refuse)?;
        let list = AccessList::parse(&first).map_err(|error| refuse(error.to_string()))?;
        let loaded = RwLock::new(Loaded::default().replaced(list));
        let inner = FileState { path: path.to_owned(), first, loaded, figures: Figures::default() };
        Ok(Self { inner: Arc::new(inner), own: None })
    }

    /// Adds a principal with this bearer token.
    pub(crate) fn and(self, secret: &str, principal: Principal) -> Self {
        let hash = SecretHash::from_secret(secret);
        let principal = Arc::new(principal);
        let own = Own { hash, principal, ledger: Arc::default() };
        Self { own: Some(Arc::new(own)), ..self }
    }

    /// Returns the principal with this credential, and its usage.
    ///
    /// # Errors
    /// A sentence if there is none.
    pub(crate) fn find(
        &self,
        credential: &Credential,
    ) -> Result<(Arc<Principal>, Arc<Ledger>), String> {
        const UNKNOWN: &str = "the bearer token is not in the access file";
        let loaded = self.inner.loaded.read().unwrap_or_else(PoisonError::into_inner);
        let principal = match credential {
            Credential::Certificate(names) => loaded.list.find_by_certificate(names)?,
            Credential::Token(hash) => {
                if let Some(own) = self.own.as_ref().filter(|own| own.hash == *hash) {
                    return Ok((Arc::clone(&own.principal), Arc::clone(&own.ledger)));
                }
                loaded.list.find(hash).ok_or(UNKNOWN)?
            }
        };
        let ledger = loaded.ledgers.get(&principal.name).ok_or(UNKNOWN)?;
        Ok((Arc::clone(principal), Arc::clone(ledger)))
    }

    /// Watches the file until shutdown. A file that is not valid has no effect: the last valid one
    /// stays in force, readiness warns, and the log says why.
    pub(crate) async fn watch(self, kit: Kit, audit: Option<AuditLog>) {
        let shutdown = kit.tasks.shutdown_token();
        kit.health.set(CHECK, Status::Ok);
        self.inner.figures.register(&kit);
        let mut judged = Ok(self.inner.first.clone());
        let mut seen = judged.clone();
        let mut looks = tokio::time::interval(LOOK_EVERY);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = looks.tick() => {}
                () = shutdown.cancelled() => return,
            }
            let path = self.inner.path.clone();
            let Ok(found) = kit.tasks.spawn_blocking(move || read(&path)).await else { continue };
            if found != seen {
                seen = found;
            } else if seen != judged {
                judged = seen.clone();
                self.adopt(&judged, &kit, audit.as_ref());
            }
        }
    }

    fn adopt(&self, text: &Result<String, String>, kit: &Kit, audit: Option<&AuditLog>) {
        let path = self.inner.path.display();
        let list = text
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|text| AccessList::parse(text).map_err(|error| error.to_string()));
        let (phase, detail) = match list {
            Ok(list) => {
                let count = list.len();
                let mut loaded = self.inner.loaded.write().unwrap_or_else(PoisonError::into_inner);
                *loaded = loaded.replaced(list);
                kit.health.set(CHECK, Status::Ok);
                self.inner.figures.usable.set(1);
                self.inner.figures.loads.inc();
                tracing::info!(%path, principals = count, "the access file was loaded again");
                ("loaded", format!("{path}: {count} principals"))
            }
            Err(error) => {
                let text =
                    format!("{path} cannot be used, so its last valid content stays in force");
                tracing::error!("{text}: {error}");
                self.inner.figures.usable.set(0);
                self.inner.figures.rejections.inc();
                // The reason contains names and rights, and readiness is shown to every known
                // caller.
                kit.health.set(CHECK, Status::Warn(format!("{text}; the log says why")));
                ("rejected", format!("{path}: {error}"))
            }
        };
        if let Some(audit) = audit {
            let line = Line { event: CHECK, phase, detail: Some(detail), ..Line::default() };
            // If the line cannot be written, readiness fails.
            let _ = audit.write(kit, line);
        }
    }
}

/// Reads the text of the file. Refuses one that every user of the machine may write.
fn read(path: &Path) -> Result<String, String> {
    let cannot = |error: std::io::Error| format!("cannot be read: {error}");
    let file = File::open(path).map_err(cannot)?;
    let facts = file.metadata().map_err(cannot)?;
    if !facts.is_file() {
        return Err("is no file".to_owned());
    }
    let mode = facts.permissions().mode() & 0o777;
    if mode & 0o002 != 0 {
        return Err(format!("every user may write it (mode {mode:03o}); run chmod o-w on it"));
    }
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(cannot)?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err(format!("has more than {FILE_BYTES_MAX} bytes"));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(secret: &str, rest: &str) -> String {
        let hash = SecretHash::from_secret(secret);
        format!("[principals.a]\ntokens = [\"{hash}\"]\nallow = [\"use *\"]\n{rest}")
    }

    #[test]
    fn what_is_wrong_at_start_is_said() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("access.toml");
        let open = || AccessFile::open(&path).map(|_| ()).unwrap_err();
        assert!(open().contains("cannot be read"), "{}", open());
        std::fs::write(&path, "[principals.a]").unwrap();
        assert!(open().contains("missing field"), "{}", open());
        std::fs::write(&path, text("s", "")).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
        assert!(open().contains("chmod o-w"), "{}", open());
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        assert!(AccessFile::open(&path).is_ok());
        assert!(AccessFile::open(folder.path()).unwrap_err().contains("is no file"));
        std::fs::write(&path, vec![b'#'; 4 << 20 | 1]).unwrap();
        assert!(open().contains("more than"), "{}", open());
    }

    #[test]
    fn a_reload_keeps_accounts_and_a_bad_file_keeps_everything() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("access.toml");
        std::fs::write(&path, text("s", "max-waiters = 1")).unwrap();
        let file = AccessFile::open(&path).unwrap();
        let kit = Kit::new("test");
        let hash = SecretHash::from_secret;
        let find = |secret: &str| file.find(&Credential::Token(hash(secret)));
        let (principal, ledger) = find("s").unwrap();
        ledger.stream(&principal.limits).unwrap();
        file.adopt(&Ok(text("t", "max-waiters = 1")), &kit, None);
        assert!(find("s").is_err());
        let (principal, ledger) = find("t").unwrap();
        assert!(ledger.stream(&principal.limits).is_err(), "the stream still counts");
        for bad in [Ok("nonsense".to_owned()), Ok(String::new()), Err("gone".to_owned())] {
            file.adopt(&bad, &kit, None);
            assert!(find("t").is_ok(), "{bad:?}");
            let report = kit.health.report(false);
            assert!(report.ready && report.text().contains("[!]access-file"), "{report:?}");
        }
        file.adopt(&Ok(text("s", "")), &kit, None);
        assert!(find("t").is_err() && find("s").is_ok());
        assert!(kit.health.report(false).text().contains("[+]access-file ok"));
    }
}
