//! The flags of access control, which both servers have.

use std::path::PathBuf;

use clap::Args;

use crate::audit::AuditLog;
use crate::file::AccessFile;
use crate::gate::Gate;

/// Flags for the access file and the audit log.
#[derive(Clone, Debug, Args)]
pub struct AccessFlags {
    /// The file of rights: names, hashes of their bearer tokens, rights and limits (TOML; fence
    /// auth new makes an entry). It is read again when it changes. Without it, every client that
    /// reaches the server may do everything.
    #[arg(long, value_name = "FILE")]
    pub access_file: Option<PathBuf>,
    /// The file to which acts of administration and refusals are appended, a JSON object a line.
    #[arg(long, value_name = "FILE")]
    pub audit_log: Option<PathBuf>,
}

impl AccessFlags {
    /// The same without an audit log that does not exist yet: a check creates nothing.
    #[must_use]
    pub fn for_check(mut self) -> Self {
        self.audit_log = self.audit_log.filter(|file| file.exists());
        self
    }

    /// Reads the access file and opens the audit log.
    ///
    /// # Errors
    /// A sentence where one of them cannot be used.
    pub fn open(&self) -> Result<Gate, String> {
        let file = self.access_file.as_deref().map(AccessFile::open).transpose()?;
        let audit = self.audit_log.as_deref().map(AuditLog::open).transpose()?;
        Ok(Gate::new(file, audit))
    }
}
