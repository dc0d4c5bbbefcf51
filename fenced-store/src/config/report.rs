//! Flags of reports to lock servers.

use std::path::PathBuf;

use access_control::secret::authorization;
use clap::Args;
use service_kit::flags::PeerFlags;
use service_kit::tls::ServerUrl;

use crate::https::Https;
use crate::lock_servers::LockServers;

/// Maximum number of lock servers to report to.
const REPORT_TO_MAX: usize = 16;

/// Reports of refusals to lock servers.
#[derive(Clone, Debug, Args)]
pub struct ReportFlags {
    /// Lock server to which refusals are reported, http(s)://HOST:PORT; repeatable. The first that
    /// replies takes them. No operation waits for it.
    #[arg(long, value_name = "URL")]
    pub report_to: Vec<ServerUrl>,
    /// Bearer token for reports to a lock server with an access file. It needs the right "report *"
    /// there.
    #[arg(long, value_name = "FILE")]
    pub report_auth_file: Option<PathBuf>,
    /// HTTPS to lock servers.
    #[command(flatten)]
    pub peers: PeerFlags,
}

impl ReportFlags {
    /// Reads the files; `None` without a lock server. The certificates are also for `others`.
    pub(super) fn options(&self, others: &[ServerUrl]) -> Result<Option<LockServers>, String> {
        let auth = self.report_auth_file.as_deref().map(authorization).transpose();
        let auth = auth.map_err(|error| format!("--report-auth-file {error}"))?;
        let called: Vec<ServerUrl> = self.report_to.iter().chain(others).cloned().collect();
        let tls = self.peers.tls("--report-to or --leader-server", &called)?;
        match self.report_to.len() {
            0 if auth.is_some() => {
                Err("--report-auth-file is of no use without --report-to http://HOST:PORT"
                    .to_owned())
            }
            0 => Ok(None),
            1..=REPORT_TO_MAX => {
                let urls = self.report_to.clone();
                let https = Https::new(tls, urls.iter().any(ServerUrl::is_https))?;
                Ok(Some(LockServers { urls, auth, https }))
            }
            count => Err(format!(
                "--report-to: {count} lock servers are named; at most {REPORT_TO_MAX} can be notified"
            )),
        }
    }
}
