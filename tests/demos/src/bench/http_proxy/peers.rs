//! Peers that are measured beside each other: the origin, nginx and HAProxy before it, and the
//! guard before it.

use std::path::Path;

use crate::bench::forwarder::{Forwarder, Started};
use crate::bench::http;
use crate::bench::load::Counted;
use crate::bench::server::Server;
use fence_terminal::exit::Failure;
use fence_terminal::output::say;

/// Namespace of servers of the benchmark's own.
const NAMESPACE: [&str; 2] = ["--namespace", "bench"];

/// Everything that was started; killed where this is dropped.
pub(super) struct Peers {
    origin: Server,
    guard: Server,
    locks: Server,
    others: Vec<Forwarder>,
    missing: Vec<String>,
    token: String,
    /// Of locks of which each client has one.
    own_tokens: Vec<String>,
}

/// One side.
#[derive(Clone, Debug)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    pub(super) url: String,
    pub(super) counted: Vec<Counted>,
    tokens: Tokens,
}

/// The tokens of the clients of a side.
#[derive(Clone, Debug)]
enum Tokens {
    None,
    /// One that all present.
    Same(String),
    /// One for each, of a lock of its own.
    Own(Vec<String>),
}

impl Peer {
    /// Path that client `number` writes, and its token.
    pub(super) fn resource(&self, number: u16) -> (String, Option<&str>) {
        match &self.tokens {
            Tokens::None => (format!("/open/{number}"), None),
            Tokens::Same(token) => (format!("/shared/{number}"), Some(token)),
            Tokens::Own(tokens) => {
                let token = tokens.get(usize::from(number)).map(String::as_str);
                (format!("/own/{number:04}/x"), token)
            }
        }
    }
}

impl Peers {
    /// Starts what is measured for so many clients.
    pub(super) async fn start(clients: u16) -> Result<Self, Failure> {
        let origin = Server::start_role("bench-origin", &["bench-origin"]).await?;
        let locks = Server::start("lock-server", "embedded:", &NAMESPACE).await?;
        let rules = ["--rule=shared/**=shared", "--rule=own/{client}/**=own/{client}"];
        let guard = Server::start_proxy(&origin.url, &[&NAMESPACE[..], &rules].concat()).await?;
        let mut others = Vec::new();
        let mut missing = Vec::new();
        for start in [nginx, haproxy] {
            match start(&origin.url)? {
                Ok(forwarder) => {
                    forwarder.answers().await?;
                    others.push(forwarder);
                }
                Err(why) => {
                    say(&format!("NOT MEASURED: {why}"));
                    missing.push(why);
                }
            }
        }
        let token = http::lease(&locks.url, "shared").await?.fencing_token;
        let mut own_tokens = Vec::new();
        for number in 0..clients {
            let lease = http::lease(&locks.url, &format!("own/{number:04}")).await?;
            own_tokens.push(lease.fencing_token);
        }
        Ok(Self { origin, guard, locks, others, missing, token, own_tokens })
    }

    /// The sides, the origin itself first.
    pub(super) fn columns(&self) -> Vec<Peer> {
        let origin = ("origin", self.origin.pid());
        let mut columns = vec![Peer {
            name: "direct",
            url: self.origin.url.clone(),
            counted: vec![origin],
            tokens: Tokens::None,
        }];
        columns.extend(self.others.iter().map(|other| Peer {
            name: other.name,
            url: format!("http://{}", other.address),
            counted: vec![origin, (other.name, other.pid())],
            tokens: Tokens::None,
        }));
        for (name, tokens) in [
            ("guard, token", Tokens::Same(self.token.clone())),
            ("guard, a lock each", Tokens::Own(self.own_tokens.clone())),
        ] {
            columns.push(Peer {
                name,
                url: self.guard.port.clone().unwrap_or_default(),
                counted: vec![origin, ("fenced-store", self.guard.pid())],
                tokens,
            });
        }
        columns
    }

    /// Sides that are not there, and why.
    pub(super) fn missing(&self) -> Vec<String> {
        self.missing.clone()
    }

    /// Ends what was started.
    pub(super) async fn end(self) {
        for server in [self.guard, self.locks, self.origin] {
            server.end().await;
        }
        for other in self.others {
            other.end().await;
        }
    }
}

/// nginx as one process, which ends when it is killed, with connections that stay open.
fn nginx(origin: &str) -> Started {
    let conf = |dir: &Path, port: u16| {
        format!(
            "daemon off;\nmaster_process off;\npid {dir}/pid;\nerror_log {dir}/error;\n\
             events {{ worker_connections 4096; }}\nhttp {{\n access_log off;\n \
             client_body_temp_path {dir}/a;\n proxy_temp_path {dir}/b;\n \
             fastcgi_temp_path {dir}/c;\n uwsgi_temp_path {dir}/d;\n scgi_temp_path {dir}/e;\n \
             keepalive_requests 1000000000;\n upstream origin {{ server {origin}; \
             keepalive 256; \
             keepalive_requests 1000000000; }}\n server {{\n  listen 127.0.0.1:{port};\n  \
             location / {{ proxy_pass http://origin; proxy_http_version 1.1; \
             proxy_set_header Connection \"\"; }}\n }}\n}}\n",
            dir = dir.display(),
            origin = origin.trim_start_matches("http://"),
        )
    };
    Forwarder::start("nginx", &["-c"], conf)
}

/// HAProxy with a thread a core and connections that stay open.
fn haproxy(origin: &str) -> Started {
    let conf = |_: &Path, port: u16| {
        format!(
            "global\n maxconn 4096\ndefaults\n mode http\n timeout connect 5s\n \
             timeout client 60s\n timeout server 60s\n http-reuse always\nfrontend all\n \
             bind 127.0.0.1:{port}\n default_backend origin\nbackend origin\n server origin {}\n",
            origin.trim_start_matches("http://"),
        )
    };
    Forwarder::start("haproxy", &["-db", "-f"], conf)
}
