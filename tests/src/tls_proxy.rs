//! nginx and HAProxy, which end TLS before a plain server as docs/operating/tls.md says.

use std::net::TcpStream;

use tempfile::TempDir;

use crate::certificates::Certificates;
use crate::ports;
use crate::process::{Process, command};
use crate::wait::until_true;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/operating/tls.md");

/// A program that ends TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Terminator {
    /// Debian's nginx, with the configuration of the docs.
    Nginx,
    /// Debian's haproxy, with the configuration of the docs.
    Haproxy,
}

impl Terminator {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Nginx, Self::Haproxy];

    fn name(self) -> &'static str {
        match self {
            Self::Nginx => "nginx",
            Self::Haproxy => "haproxy",
        }
    }

    /// The sample of the page, with a test's files and addresses.
    fn sample(self, certificates: &Certificates, port: u16, server: &str) -> String {
        let page = std::fs::read_to_string(PAGE).expect("the page");
        let after = page.split(&format!("```{}\n", self.name())).nth(1).expect("a sample");
        let sample = after.split("```").next().unwrap_or_default();
        let files = certificates.file("");
        std::fs::copy(files.join("server.key"), files.join("server.pem.key")).expect("a copy");
        let mut text = sample.to_owned();
        for (from, to) in [
            ("/etc/fencepost/", files.to_str().expect("a path in UTF-8")),
            ("listen 7443", &format!("listen 127.0.0.1:{port}")),
            ("bind :7443", &format!("bind 127.0.0.1:{port}")),
            ("127.0.0.1:7420", server),
        ] {
            text = text.replace(from, to);
        }
        text
    }

    fn configuration(self, sample: &str, folder: &str) -> String {
        let Self::Nginx = self else { return sample.to_owned() };
        let paths = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {folder}/{kind};"))
            .join(" ");
        // A line a request, with the number of the connection that it came by.
        format!(
            "daemon off; master_process off; pid {folder}/pid; events {{}}\n\
             http {{ {paths}\n\
             log_format test '$connection $request'; access_log {folder}/access test;\n\
             {sample} }}\n"
        )
    }
}

/// A terminator that runs.
#[derive(Debug)]
pub struct TlsProxy {
    /// `https://localhost:PORT`.
    pub base: String,
    folder: TempDir,
    _process: Process,
}

impl TlsProxy {
    /// Starts one before the server at `base`, `http://127.0.0.1:PORT`.
    pub async fn start(kind: Terminator, certificates: &Certificates, base: &str) -> Self {
        let server = base.trim_start_matches("http://");
        let port = ports::unused();
        let folder = crate::folder::new();
        let sample = kind.sample(certificates, port, server);
        let path = folder.path().to_str().expect("a path in UTF-8");
        let file = folder.path().join("configuration");
        std::fs::write(&file, kind.configuration(&sample, path)).expect("a file");
        let mut program = command(kind.name());
        match kind {
            Terminator::Nginx => program.args(["-e", "stderr", "-c"]).arg(&file),
            Terminator::Haproxy => program.args(["-db", "-f"]).arg(&file),
        };
        let mut process = Process::spawn(kind.name(), program);
        until_true(&format!("{} to listen", kind.name()), || {
            assert!(process.is_running(), "{}", process.tail());
            std::future::ready(TcpStream::connect(("127.0.0.1", port)).is_ok())
        })
        .await;
        Self { base: format!("https://localhost:{port}"), folder, _process: process }
    }

    /// The requests so far (nginx): the number of the connection, the method and the path of each.
    pub fn requests(&self) -> Vec<(u64, String)> {
        let text = std::fs::read_to_string(self.folder.path().join("access")).unwrap_or_default();
        let request = |line: &str| {
            let (connection, request) = line.split_once(' ')?;
            Some((connection.parse().ok()?, request.to_owned()))
        };
        // Without one that is being written.
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().filter_map(request).collect()
    }
}
