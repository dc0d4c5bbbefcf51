//! The audit log: a JSON object a line, appended to a file.
//!
//! A line is written whole by one call and has at most [`LINE_BYTES_MAX`] bytes, so that lines of
//! several processes do not mix. It survives the death of the process, not that of the machine: it
//! is not synced. To rotate the file, rename it; the next line opens a new one.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use fence_protocol::Code;
use serde::Serialize;
use service_kit::Kit;
use service_kit::health::Status;
use service_kit::problem::Reject;

/// The longest line, in bytes, its end included.
pub const LINE_BYTES_MAX: usize = 4_096;
/// The longest text in a line, in characters.
const TEXT_CHARS_MAX: usize = 256;
/// The longest name in a line, in characters; none is longer anyway.
const NAME_CHARS_MAX: usize = 64;
/// Refusals that are written at once, and then [`REFUSALS_PER_SECOND`]; the rest is counted.
const REFUSALS_BURST: u64 = 200;
const REFUSALS_PER_SECOND: u64 = 20;
/// Name of the readiness check.
const CHECK: &str = "audit-log";

/// One line; members that do not apply are omitted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Line {
    /// Milliseconds since 1970, as the system believes.
    pub time_ms: u64,
    /// Name of the service.
    pub service: &'static str,
    /// `admin`, `refused` or `access-file`.
    pub event: &'static str,
    /// Of an administrative act: `asked` before it is done, then `answered` or `abandoned`. Of the
    /// access file: `loaded` or `rejected`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub phase: &'static str,
    /// Name of the caller in the access file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub principal: Option<String>,
    /// The verb that was needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verb: Option<&'static str>,
    /// The method and the path, without the query.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The status of the reply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The code of the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub code: Option<&'static str>,
    /// Description of the event.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
    /// The id of the request.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// Notes of the handler: reasons, leases.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub notes: BTreeMap<&'static str, String>,
    /// Number of refusals that were not written since the last one that was.
    #[serde(skip_serializing_if = "is_zero")]
    pub suppressed: u64,
}

fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl Line {
    /// The line with its end, within [`LINE_BYTES_MAX`]: long texts are cut, and where that is not
    /// enough (each character may take six bytes as JSON) the notes and the detail are left out.
    pub fn render(mut self) -> Vec<u8> {
        for (text, max) in [
            (&mut self.principal, NAME_CHARS_MAX),
            (&mut self.request_id, NAME_CHARS_MAX),
            (&mut self.request, TEXT_CHARS_MAX),
            (&mut self.detail, TEXT_CHARS_MAX),
        ] {
            if let Some(text) = text {
                cut(text, max);
            }
        }
        self.notes.values_mut().for_each(|text| cut(text, TEXT_CHARS_MAX));
        let line = self.to_json();
        if line.len() <= LINE_BYTES_MAX {
            return line;
        }
        self.detail = None;
        self.notes = BTreeMap::from([("cut", "the line was too long".to_owned())]);
        self.to_json()
    }

    fn to_json(&self) -> Vec<u8> {
        // Texts, numbers and maps with texts as keys can always be written.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

fn cut(text: &mut String, chars_max: usize) {
    if let Some((at, _)) = text.char_indices().nth(chars_max) {
        text.truncate(at);
        text.push('…');
    }
}

/// The file that lines are appended to. Cheap to clone.
#[derive(Clone, Debug)]
pub struct AuditLog {
    inner: Arc<AuditFile>,
}

#[derive(Debug)]
struct AuditFile {
    path: PathBuf,
    state: Mutex<AuditState>,
}

#[derive(Debug)]
struct AuditState {
    file: File,
    /// Rest of the burst of refusals, in thousandths, and its moment.
    allowance: (u64, u64),
    suppressed: u64,
}

impl AuditLog {
    /// Opens the file to append to; creates it, accessible to its owner only, if it does not exist.
    ///
    /// # Errors
    /// A sentence with the path.
    pub fn open(path: &Path) -> Result<Self, String> {
        let file = append(path)
            .map_err(|error| format!("--audit-log {} cannot be opened: {error}", path.display()))?;
        let state = AuditState { file, allowance: (REFUSALS_BURST * 1_000, 0), suppressed: 0 };
        let inner = AuditFile { path: path.to_owned(), state: Mutex::new(state) };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Appends a line. Refusals above a rate are counted instead, so that a caller without rights
    /// cannot fill the disk.
    ///
    /// # Errors
    /// The system's error; readiness warns of it until a line is written again.
    pub(crate) fn write(&self, kit: &Kit, mut line: Line) -> io::Result<()> {
        let mut state = self.inner.state.lock().unwrap_or_else(PoisonError::into_inner);
        if line.event == "refused" && !state.allow(kit.clock.monotonic_ms()) {
            state.suppressed += 1;
            return Ok(());
        }
        line.time_ms = kit.clock.wall_ms();
        line.service = kit.service;
        line.suppressed = state.suppressed;
        let result = state.append(&self.inner.path, &line.render());
        match &result {
            Ok(()) => {
                state.suppressed = 0;
                kit.health.set(CHECK, Status::Ok);
            }
            Err(error) => {
                let path = self.inner.path.display();
                let text = format!("{path} cannot be written: {error}; administration is refused");
                kit.health.set(CHECK, Status::Warn(text));
            }
        }
        result
    }
}

impl AuditState {
    fn allow(&mut self, now_ms: u64) -> bool {
        let (left, at_ms) = self.allowance;
        let gained = now_ms.saturating_sub(at_ms).saturating_mul(REFUSALS_PER_SECOND);
        let left = left.saturating_add(gained).min(REFUSALS_BURST * 1_000);
        let allowed = left.checked_sub(1_000);
        self.allowance = (allowed.unwrap_or(left), now_ms);
        allowed.is_some()
    }

    fn append(&mut self, path: &Path, line: &[u8]) -> io::Result<()> {
        // If the file was renamed or deleted, the file at the path now is the log.
        let open = self.file.metadata()?;
        let is_same = std::fs::metadata(path)
            .is_ok_and(|named| (named.dev(), named.ino()) == (open.dev(), open.ino()));
        if !is_same {
            self.file = append(path)?;
        }
        self.file.write_all(line)
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).create(true).mode(0o600).open(path)
}

/// Writer of a server's audit log, where it has one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Recorder {
    pub(crate) audit: Option<AuditLog>,
    /// Set once the gate is in force.
    pub(crate) kit: Option<Arc<Kit>>,
}

impl Recorder {
    /// Writes a line to the audit log, if there is one.
    ///
    /// # Errors
    /// 503 if it cannot be written.
    pub(crate) fn record(&self, line: Line) -> Result<(), Reject> {
        let (Some(audit), Some(kit)) = (&self.audit, &self.kit) else { return Ok(()) };
        audit.write(kit, line).map_err(|error| {
            let detail = format!("the audit log cannot be written: {error}; nothing was done");
            Reject::new(Code::StoreUnavailable, detail)
                .hint("An operator must repair --audit-log; /readyz?verbose names it.")
                .retry_after(1)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use service_kit::clock::ManualClock;

    fn refused() -> Line {
        Line { event: "refused", ..Line::default() }
    }

    #[test]
    fn a_line_is_bounded_whatever_is_in_it() {
        let long = || Some("\u{1}".repeat(10_000));
        let notes =
            BTreeMap::from([("reason", "ä\"\\\n".repeat(5_000)), ("b", "\u{1}".repeat(999))]);
        let line = Line { request: long(), detail: long(), request_id: long(), notes, ..refused() };
        let text = Line { principal: long(), ..line }.render();
        assert!(text.len() <= LINE_BYTES_MAX, "{}", text.len());
        assert_eq!(text.iter().filter(|byte| **byte == b'\n').count(), 1);
        let json: serde_json::Value = serde_json::from_slice(&text).unwrap();
        assert_eq!(json["event"], "refused");
        let short = Line { detail: Some("why".to_owned()), ..refused() }.render();
        let text = r#"{"time_ms":0,"service":"","event":"refused","detail":"why"}"#;
        assert_eq!(String::from_utf8(short).unwrap().trim_end(), text);
    }

    #[test]
    fn lines_go_to_the_file_of_that_name_and_refusals_are_bounded() {
        let folder = tempfile::TempDir::new().unwrap();
        let path = folder.path().join("audit");
        let old = folder.path().join("audit.1");
        let clock = Arc::new(ManualClock::new(0, 7));
        let kit = Kit::new("test").with_clock(Arc::clone(&clock) as _);
        let log = AuditLog::open(&path).unwrap();
        let lines = |path: &Path| std::fs::read_to_string(path).unwrap().lines().count();
        (0..1_000).for_each(|_| log.write(&kit, refused()).unwrap());
        assert_eq!(lines(&path), 200);
        log.write(&kit, Line { event: "admin", ..Line::default() }).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.ends_with("\"event\":\"admin\",\"suppressed\":800}\n"), "{text}");
        clock.advance(1_000);
        (0..1_000).for_each(|_| log.write(&kit, refused()).unwrap());
        assert_eq!(lines(&path), 221);

        std::fs::rename(&path, &old).unwrap();
        log.write(&kit, Line { event: "admin", ..Line::default() }).unwrap();
        assert_eq!((lines(&old), lines(&path)), (221, 1));
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);

        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        assert!(log.write(&kit, Line { event: "admin", ..Line::default() }).is_err());
        assert!(kit.health.report(false).text().contains("[!]audit-log"));
    }
}
