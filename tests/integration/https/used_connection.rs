//! A server that refuses the client on a connection that was used before.

use std::fs::File;
use std::io::Write as _;
use std::process::{Child, ChildStdin, Stdio};

use fence_client::{Client, ErrorKind};
use fence_protocol::LockName;
use fence_tests::certificates::Certificates;
use fence_tests::key_file::lease_id;
use fence_tests::process::command;
use fence_tests::wait::until;
use service_kit::tls::TlsOptions;
use tempfile::TempDir;

/// `openssl s_server`, whose replies the test writes.
struct Openssl {
    child: Child,
    input: ChildStdin,
    logs: TempDir,
}

impl Openssl {
    fn start(made: &Certificates) -> Self {
        let logs = TempDir::new().unwrap();
        let mut openssl = command("openssl");
        openssl.args(["s_server", "-accept", "127.0.0.1:0", "-tls1_2"]);
        openssl.args(["-cert", &made.text("server.pem"), "-key", &made.text("server.key")]);
        let output = File::create(logs.path().join("output")).unwrap();
        openssl.stdin(Stdio::piped()).stderr(output.try_clone().unwrap()).stdout(output);
        let mut child = openssl.spawn().unwrap();
        let input = child.stdin.take().unwrap();
        Self { child, input, logs }
    }

    /// The line with `part`, once it is there.
    async fn line(&self, part: &str) -> String {
        let file = self.logs.path().join("output");
        until(part, || {
            let text = String::from_utf8_lossy(&std::fs::read(&file).unwrap()).into_owned();
            let whole = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
            std::future::ready(whole.lines().find(|line| line.contains(part)).map(str::to_owned))
        })
        .await
    }

    fn write(&mut self, text: &str) {
        self.input.write_all(text.as_bytes()).unwrap();
        self.input.flush().unwrap();
    }
}

impl Drop for Openssl {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The server has read the request, and may have done it: it asks for a certificate only then
/// (renegotiation, as web servers do for single paths), and ends the connection without one.
#[tokio::test]
async fn a_refusal_on_a_used_connection_leaves_the_outcome_unknown() {
    let made = Certificates::new();
    let mut server = Openssl::start(&made);
    let accepts = server.line("ACCEPT").await;
    let port = accepts.rsplit_once(':').unwrap().1.to_owned();
    let tls = TlsOptions::default().with_ca(&made.file("ca.pem")).unwrap();
    let builder = Client::builder().lock_server(format!("https://127.0.0.1:{port}"));
    let client = builder.tls(tls).build().unwrap();
    let lock = LockName::new("a").unwrap();

    let used = async {
        server.line("GET /v1/locks/a").await;
        server.write("HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n");
    };
    let (reply, ()) = tokio::join!(client.locks().show(&lock), used);
    assert!(reply.unwrap_err().to_string().contains("replied 404"));

    let refused = async {
        server.line("POST /v1/locks/a/renew").await;
        server.write("R\n");
    };
    let (reply, ()) = tokio::join!(client.locks().renew(&lock, lease_id(), None), refused);
    let error = reply.unwrap_err();
    assert!(error.to_string().contains("HandshakeFailure"), "{error}");
    assert_eq!(*error.kind(), ErrorKind::OutcomeUnknown, "{error}");
}
