//! A guard that answers when the test says so.

use std::sync::Arc;

use fence_protocol::FencingToken;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Mutex, Semaphore, mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

/// Speaks for a guard of namespace `default` that has seen nothing, and takes every seal.
pub(crate) struct Witness {
    pub(crate) base: String,
    /// Seals that may be answered.
    gate: Arc<Semaphore>,
    asked: Mutex<mpsc::Receiver<Seal>>,
    _accepting: AbortOnDropHandle<()>,
}

/// A seal that was asked for.
pub(crate) struct Seal {
    pub(crate) fence: FencingToken,
    verdict: oneshot::Sender<&'static str>,
}

const OPEN: usize = 1_000_000;
const OK: &str = "200 OK";

impl Seal {
    /// Answers this one.
    pub(crate) fn take(self) {
        self.verdict.send(OK).expect("a request");
    }

    /// Fails this one.
    pub(crate) fn fail(self) {
        self.verdict.send("503 Service Unavailable").expect("a request");
    }
}

impl Witness {
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let gate = Arc::new(Semaphore::new(OPEN));
        let (asked, seals) = mpsc::channel(64);
        let at_gate = Arc::clone(&gate);
        let accepting = AbortOnDropHandle::new(tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, Arc::clone(&at_gate), asked.clone()));
            }
        }));
        Self { base, gate, asked: Mutex::new(seals), _accepting: accepting }
    }

    /// From now on seals wait for [`answer`](Self::answer).
    pub(crate) fn hold(&self) {
        self.gate.forget_permits(OPEN);
    }

    /// Answers one seal.
    pub(crate) fn answer(&self) {
        self.gate.add_permits(1);
    }

    /// The next seal that was asked for.
    pub(crate) async fn asked(&self) -> FencingToken {
        self.seal().await.fence
    }

    /// Like [`asked`](Self::asked), to be answered before or after others.
    pub(crate) async fn seal(&self) -> Seal {
        let mut asked = self.asked.lock().await;
        fence_tests::wait::soon("a seal", asked.recv()).await.expect("a seal")
    }
}

async fn serve(mut stream: TcpStream, gate: Arc<Semaphore>, asked: mpsc::Sender<Seal>) {
    let mut status = OK;
    let mut request = vec![0; 8_192];
    let bytes = stream.read(&mut request).await.unwrap_or_default();
    let request = String::from_utf8_lossy(&request[..bytes]).into_owned();
    let path = request.split(' ').nth(1).unwrap_or_default();
    let header = request.lines().find_map(|line| line.strip_prefix("fencing-token: "));
    let body = match header.and_then(|header| header.parse::<FencingToken>().ok()) {
        Some(fence) => {
            let body = format!(r#"{{"lock":"{}","mark":{}}}"#, fence.lock, fence.token);
            let (verdict, answer) = oneshot::channel();
            let _ = asked.send(Seal { fence, verdict }).await;
            status = tokio::select! {
                permit = gate.acquire() => {
                    permit.unwrap().forget();
                    OK
                }
                Ok(status) = answer => status,
            };
            body
        }
        None if path == "/v1/stores" => {
            r#"{"namespace":"default","mode":"enforce","stores":[]}"#.to_owned()
        }
        None => r#"{"fences":[]}"#.to_owned(),
    };
    let head = "content-type: application/json\r\nconnection: close";
    let reply =
        format!("HTTP/1.1 {status}\r\n{head}\r\ncontent-length: {}\r\n\r\n{body}", body.len());
    let _ = stream.write_all(reply.as_bytes()).await;
}
