//! Flags of the Redis port.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use fence_protocol::duration::parse;
use service_kit::limit;
use service_kit::listener::{Exposure, ListenOptions, listen_addr};

use crate::doors::redis::resp::request::ARGUMENT_BYTES_MAX;
use crate::doors::redis::{
    AfterFenced, PortPassword, PortSettings, SilenceLimits, plain_text_reply,
};
use crate::doors::tcp::front::FrontSettings;
use crate::stores::open::StoreUrl;

/// Largest command that a setting can allow: the longest argument, and room for the others.
const COMMAND_BYTES_MAX: usize = ARGUMENT_BYTES_MAX + (1 << 20);
/// Largest command by default.
const COMMAND_BYTES: usize = 64 << 20;

/// Redis port before the Redis of `--store`.
#[derive(Clone, Debug, Args)]
pub struct RedisPortFlags {
    /// Address of the Redis port, before the Redis of --store. Clients keep their driver and give
    /// the token as the password.
    #[arg(long, value_name = "ADDR", value_parser = listen_addr)]
    pub redis_listen: Option<SocketAddr>,
    /// The Redis port speaks no TLS, though the other ports do (--tls-cert). For clients on this
    /// machine.
    #[arg(long)]
    pub redis_plaintext: bool,
    /// Threads of the Redis port, 1 to 64. One is enough for what one Redis can do.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub redis_threads: usize,
    /// Largest command at the Redis port, at most 513 MiB. That holds an argument of the 512 MiB
    /// that Redis takes.
    #[arg(long, value_name = "BYTES", default_value_t = COMMAND_BYTES, value_parser = limit::parse)]
    pub max_command_bytes: usize,
    /// Buffers of all clients of the Redis port, beyond 64 KiB each and direction.
    #[arg(long, value_name = "BYTES", default_value_t = 512 << 20)]
    pub max_redis_buffer_bytes: usize,
    /// Idle time of a client of the Redis port with a token; 0 is no limit. A client that waits for
    /// Redis, or subscribes, is not idle.
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = parse)]
    pub redis_idle_timeout: Duration,
    /// close or keep a connection of the Redis port after FENCED. Closed, pools connect again with
    /// the newest token; kept, it takes a newer token.
    #[arg(long, value_name = "WHAT", value_enum, default_value_t)]
    pub after_fenced: AfterFenced,
    /// Password of the Redis port, in one line. As Redis' requirepass: a client is served nothing
    /// until it has presented the password or a fencing credential. Read again when it changes; not
    /// with --unsigned, where any program can make a credential.
    #[arg(long, value_name = "FILE")]
    pub redis_password_file: Option<PathBuf>,
}

impl RedisPortFlags {
    /// Checks the flags beside those of the whole guard; `exposure` is `None` if that is wrong.
    pub(super) fn settings(
        &self,
        store: Option<&StoreUrl>,
        exposure: Option<Exposure>,
        listener: ListenOptions,
        is_unsigned: bool,
    ) -> Result<Option<PortSettings>, String> {
        let Some(listen) = self.redis_listen else { return self.no_port().map(|()| None) };
        let is_plain = exposure.as_ref().is_some_and(|exposure| exposure.tls().is_none());
        if self.redis_plaintext && is_plain {
            let text = "--redis-plaintext is for a guard with --tls-cert: without, every port is \
                        plain; leave it out";
            return Err(text.to_owned());
        }
        self.check_store(store)?;
        self.check_sizes()?;
        let password = self.password(is_unsigned)?;
        let exposure = exposure.unwrap_or_default();
        let tls = exposure.tls().filter(|_| !self.redis_plaintext).cloned();
        Ok(Some(PortSettings {
            front: FrontSettings {
                listen,
                exposure,
                tls: tls.map(|tls| tls.for_listener(listener.header_timeout, plain_text_reply)),
                threads: self.redis_threads,
                max_connections: listener.max_connections,
            },
            max_command_bytes: self.max_command_bytes,
            max_buffer_bytes: self.max_redis_buffer_bytes,
            after_fenced: self.after_fenced,
            password,
            silence: SilenceLimits {
                command: listener.body_timeout,
                bytes_per_sec_min: listener.body_bytes_per_sec_min,
                stranger: listener.idle_timeout,
                idle: Some(self.redis_idle_timeout).filter(|limit| !limit.is_zero()),
            },
        }))
    }

    /// Refuses flags that have no effect without `--redis-listen`.
    fn no_port(&self) -> Result<(), String> {
        let flag = match (&self.redis_password_file, self.redis_plaintext) {
            (Some(_), _) => "--redis-password-file",
            (None, true) => "--redis-plaintext",
            (None, false) => return Ok(()),
        };
        Err(format!("{flag} is for the Redis port; set --redis-listen, or leave it out"))
    }

    fn check_store(&self, store: Option<&StoreUrl>) -> Result<(), String> {
        let text = match store {
            Some(url @ (StoreUrl::Redis(_) | StoreUrl::Cluster(_))) if url.is_tls() => {
                "--redis-listen passes bytes on to a plain Redis, and --store is rediss://; write \
                 redis://, or serve objects alone"
            }
            Some(StoreUrl::Redis(_) | StoreUrl::Cluster(_)) => return Ok(()),
            _ => "--redis-listen needs the Redis behind it: set --store redis://HOST:PORT",
        };
        Err(text.to_owned())
    }

    fn check_sizes(&self) -> Result<(), String> {
        let Self { redis_threads: threads, max_command_bytes: command_bytes, .. } = *self;
        if threads == 0 || threads > 64 {
            return Err(format!("--redis-threads {threads} is not in 1 to 64"));
        }
        if command_bytes > COMMAND_BYTES_MAX {
            return Err(format!(
                "--max-command-bytes {command_bytes} is above {COMMAND_BYTES_MAX}: an argument of \
                 512 MiB, which is what Redis takes, and 1 MiB for the others"
            ));
        }
        let thread_bytes = self.max_redis_buffer_bytes / threads;
        if command_bytes > thread_bytes.max(COMMAND_BYTES) {
            return Err(format!(
                "--max-command-bytes {command_bytes} does not fit into the {thread_bytes} bytes \
                 that a thread has of --max-redis-buffer-bytes; raise that to twice the largest \
                 command for each of --redis-threads"
            ));
        }
        Ok(())
    }

    fn password(&self, is_unsigned: bool) -> Result<Option<PortPassword>, String> {
        let Some(file) = &self.redis_password_file else { return Ok(None) };
        if is_unsigned {
            let text = "--redis-password-file is of no use with --unsigned: a fencing credential \
                        stands in for the password, and any program can make one; use \
                        --token-key-file";
            return Err(text.to_owned());
        }
        let password = PortPassword::read(file);
        password.map(Some).map_err(|error| format!("--redis-password-file: {error}"))
    }
}
