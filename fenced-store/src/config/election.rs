//! Flags of a proxy's standby.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use access_control::secret::authorization;
use clap::Args;
use fence_protocol::duration::parse_positive;
use fence_protocol::{LockName, Owner, Ttl};
use service_kit::flags::PeerFlags;
use service_kit::login::StoreLogin;
use service_kit::tls::ServerUrl;

use crate::doors::http_proxy::{ElectionOptions, LaneState};
use crate::https::Https;
use crate::lock_servers::LockServers;

/// Several guards before one upstream, of which one leads.
#[derive(Clone, Debug, Args)]
pub struct ElectionFlags {
    /// Place of the proxy's durable marks and open lanes: a folder of this guard alone, or
    /// redis://HOST:PORT, where a standby finds them. Redis needs appendfsync always.
    #[arg(long, value_name = "DIR|URL")]
    pub state: Option<String>,
    /// Lock whose holder leads, for --state redis://; the same for all guards of the upstream, and
    /// another for each upstream.
    #[arg(long, value_name = "LOCK")]
    pub leader_lock: Option<LockName>,
    /// Lock server of --leader-lock, http(s)://HOST:PORT; repeatable. The first that replies is
    /// used.
    #[arg(long, value_name = "URL")]
    pub leader_server: Vec<ServerUrl>,
    /// Bearer token for a lock server with an access file. It needs the right to acquire the lock.
    #[arg(long, value_name = "FILE")]
    pub leader_auth_file: Option<PathBuf>,
    /// Time to live of the leader's lease.
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = parse_positive)]
    pub leader_ttl: Duration,
    /// Name of this guard, for clients of its standby [default: the address of the proxy].
    #[arg(long, value_name = "NAME")]
    pub leader_name: Option<Owner>,
}

impl ElectionFlags {
    /// Returns the place of the state, and how a leader is elected if guards share it.
    pub(super) fn state(
        &self,
        listen: SocketAddr,
        login: &StoreLogin,
        peers: &PeerFlags,
        report_to: &[ServerUrl],
    ) -> Result<LaneState, String> {
        let Some(state) = &self.state else {
            return Err("--state is missing: set the folder of marks and open lanes".to_owned());
        };
        let is_shared = state.contains("://");
        let is_elected = self.leader_lock.is_some() || !self.leader_server.is_empty();
        match (is_shared, is_elected) {
            (false, false) => return Ok(LaneState::Folder(PathBuf::from(state))),
            (false, true) => {
                return Err("--leader-lock and --leader-server are for guards that share their \
                            state: set --state redis://HOST:PORT"
                    .to_owned());
            }
            _ => {}
        }
        let target: redis_link::RedisTarget =
            state.parse().map_err(|error| format!("--state cannot be used: {error}"))?;
        if target.is_sentinel() {
            return Err("--state takes one Redis: a failover loses marks whose data stays; write \
                        redis://HOST:PORT"
                .to_owned());
        }
        let target = target.with_login(login)?;
        let (Some(lock), false) = (self.leader_lock.clone(), self.leader_server.is_empty()) else {
            return Err("--state redis:// is for several guards, of which one leads: set \
                        --leader-lock and --leader-server"
                .to_owned());
        };
        let auth = self.leader_auth_file.as_deref().map(authorization).transpose();
        let auth = auth.map_err(|error| format!("--leader-auth-file {error}"))?;
        let urls = self.leader_server.clone();
        let called: Vec<ServerUrl> = urls.iter().chain(report_to).cloned().collect();
        let tls = peers.tls("--leader-server or --report-to", &called)?;
        let https = Https::new(tls, urls.iter().any(ServerUrl::is_https))?;
        let ttl_ms = u64::try_from(self.leader_ttl.as_millis()).unwrap_or(u64::MAX);
        let ttl = Ttl::from_ms(ttl_ms).map_err(|error| format!("--leader-ttl: {error}"))?;
        let name = match &self.leader_name {
            Some(name) => name.clone(),
            None => Owner::new(listen.to_string()).map_err(|error| error.to_string())?,
        };
        let servers = LockServers { urls, auth, https };
        let options = ElectionOptions { redis: target, lock, servers, ttl, name };
        Ok(LaneState::Shared(Box::new(options)))
    }
}
