//! The servers of one scenario, and the proxies before them.

use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

use super::file::{Scenario, ServerName, StoreKind};
use super::http_proxy::HttpProxy;
use super::values::Variables;
use crate::certificates::Certificates;
use crate::ports;
use crate::servers::{Server, Setup};

/// Lock server, guard and proxies of one scenario.
#[derive(Debug)]
pub struct Site {
    lock: Behind,
    guard: Behind,
    plain: String,
    folder: TempDir,
    certificates: Option<Certificates>,
    _plain: AbortOnDropHandle<()>,
}

/// A server behind its proxy.
#[derive(Debug)]
struct Behind {
    setup: Setup,
    server: Server,
    proxy: HttpProxy,
}

impl Behind {
    async fn start(setup: Setup) -> Self {
        // A restart keeps the port, which no outgoing connection takes meanwhile.
        let setup = setup.listen(format!("127.0.0.1:{}", ports::unused()));
        let server = setup.start().await;
        let proxy = HttpProxy::before(&server.address()).await;
        Self { setup, server, proxy }
    }
}

impl Site {
    /// Starts what a scenario needs.
    ///
    /// # Panics
    /// If a server does not start.
    pub async fn start(scenario: &Scenario) -> Self {
        let folder = crate::folder::new();
        for (name, text) in &scenario.files {
            std::fs::write(folder.path().join(name), text).expect("a file");
        }
        let store = match scenario.servers.store {
            StoreKind::Memory => "memory:".to_owned(),
            StoreKind::Embedded => format!("embedded:{}", folder.path().join("data").display()),
        };
        let certificates = scenario.servers.tls.then(Certificates::new);
        let tls = certificates.as_ref().map_or_else(Vec::new, |made| {
            let client = ["--tls-client-ca".to_owned(), made.text("ca.pem")];
            [&made.listener()[..], &client[..]].concat()
        });
        let with = |setup: Setup, args: &[String]| args.iter().chain(&tls).fold(setup, Setup::arg);
        let lock = with(Setup::lock_server(&store), &scenario.servers.lock);
        let guard = with(Setup::fenced_store("memory:"), &scenario.servers.guard);
        let (lock, guard) = tokio::join!(Behind::start(lock), Behind::start(guard));
        let (plain, serving) = plain_web_server().await;
        Self { lock, guard, plain, folder, certificates, _plain: serving }
    }

    /// The variables that every scenario has.
    pub fn variables(&self) -> Variables {
        let mut variables = Variables::default();
        variables.set("server", self.lock.proxy.base());
        variables.set("guard", self.guard.proxy.base());
        variables.set("server_direct", self.lock.server.base.clone());
        variables.set("guard_direct", self.guard.server.base.clone());
        variables.set("plain", self.plain.clone());
        variables.set("dir", self.folder.path().to_string_lossy().into_owned());
        for (name, file) in [("ca", "ca.pem"), ("cert", "client.pem"), ("key", "client.key")] {
            if let Some(certificates) = &self.certificates {
                variables.set(name, certificates.text(file));
            }
        }
        variables
    }

    /// The process behind the first proxy.
    pub fn lock_server(&self) -> &Server {
        &self.lock.server
    }

    /// The proxy before a server.
    pub fn proxy(&self, name: ServerName) -> &HttpProxy {
        match name {
            ServerName::Lock => &self.lock.proxy,
            ServerName::Guard => &self.guard.proxy,
        }
    }

    /// Kills a server.
    pub fn kill(&mut self, name: ServerName) {
        self.behind(name).server.process.kill();
    }

    /// Starts a server again at its address, killed before if it runs.
    pub async fn restart(&mut self, name: ServerName) {
        let behind = self.behind(name);
        behind.server.process.kill();
        behind.server = behind.setup.start().await;
    }

    fn behind(&mut self, name: ServerName) -> &mut Behind {
        match name {
            ServerName::Lock => &mut self.lock,
            ServerName::Guard => &mut self.guard,
        }
    }
}

/// A web server that is no Fencepost: it replies to every request with a page.
async fn plain_web_server() -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let base = format!("http://{}", listener.local_addr().expect("an address"));
    let serving = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut piece = [0_u8; 4096];
                let page = "<html>Welcome to another program</html>";
                let reply = format!(
                    "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close\r\n\
                     content-length: {}\r\n\r\n{page}",
                    page.len()
                );
                // A request of a test fits into one piece.
                if stream.read(&mut piece).await.is_ok_and(|count| count > 0) {
                    let _ = stream.write_all(reply.as_bytes()).await;
                    let _ = stream.shutdown().await;
                }
            });
        }
    });
    (base, AbortOnDropHandle::new(serving))
}
