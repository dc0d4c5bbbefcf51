//! A lock server in this process, and a TCP relay in front of it that loses requests or replies.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser as _;
use fence_client::{Client, clock};
use service_kit::Kit;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The moment at which a condition that is awaited from now on fails the test: a minute, multiplied
/// by `FENCE_TEST_PATIENCE` as in `tests/src/wait.rs`.
pub(crate) fn limit() -> clock::Moment {
    let text = std::env::var("FENCE_TEST_PATIENCE").unwrap_or_else(|_| "1".to_owned());
    let factor = text.trim().parse::<f64>().ok().filter(|factor| *factor > 0.0);
    let factor = factor.filter(|factor| *factor <= 1_000.0);
    let factor = factor.unwrap_or_else(|| {
        panic!("FENCE_TEST_PATIENCE={text:?}: expected a number above 0, at most 1000")
    });
    clock::now().plus(Duration::from_secs(60).mul_f64(factor))
}

/// Fault of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Loss {
    /// The request never arrives, and the connection breaks.
    Request,
    /// The request is handled, the reply is dropped, and the connection breaks.
    Reply,
    /// As `Reply`, but the connection breaks after this time.
    ReplyAfter(Duration),
    /// As `Reply`, but the connection breaks once the network is closed.
    ReplyUntilClosed,
    /// The reply is delayed by this time.
    Late(Duration),
    /// The request is delayed by this time.
    LateRequest(Duration),
}

#[derive(Debug)]
struct FaultPlan {
    /// End of the paths of the affected requests; empty for all.
    path_end: String,
    loss: Loss,
    times: u32,
}

#[derive(Debug, Default)]
struct Faults {
    plan: Mutex<Option<FaultPlan>>,
    is_closed: watch::Sender<bool>,
}

impl Faults {
    /// Waits until the network is closed.
    async fn closed(&self) {
        drop(self.is_closed.subscribe().wait_for(|is_closed| *is_closed).await);
    }
}

/// A lock server with two addresses: its own, and that of a relay with faults.
pub(crate) struct Network {
    server: String,
    relay: String,
    faults: Arc<Faults>,
    listening: AbortHandle,
    kit: Kit,
}

impl Network {
    pub(crate) async fn start() -> Self {
        let args = ["l", "--listen=127.0.0.1:0", "--store=memory:", "--unsigned"];
        let config = lock_server::config::Config::try_parse_from(args).unwrap();
        let kit = Kit::new("lock-server");
        let app = lock_server::app::build(config.settings().unwrap(), &kit).await.unwrap();
        let bound = app.bind().await.unwrap();
        let server = bound.url().unwrap();
        kit.tasks.spawn(bound.serve());

        let faults = Arc::<Faults>::default();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let relay = format!("http://{}", listener.local_addr().unwrap());
        let target = server.trim_start_matches("http://").to_owned();
        let listening = tokio::spawn(relay_all(listener, target, Arc::clone(&faults)));
        Self { server, relay, faults, listening: listening.abort_handle(), kit }
    }

    /// Client behind the relay.
    pub(crate) fn client(&self) -> Client {
        Client::builder().lock_server(&self.relay).owner("tested").build().unwrap()
    }

    /// Client without faults.
    pub(crate) fn direct(&self) -> Client {
        Client::builder().lock_server(&self.server).owner("observer").build().unwrap()
    }

    /// Plans the fault for the next `times` requests whose path ends with `path_end`.
    pub(crate) fn lose(&self, path_end: &str, loss: Loss, times: u32) {
        let plan = FaultPlan { path_end: path_end.to_owned(), loss, times };
        *self.faults.plan.lock().unwrap() = Some(plan);
    }

    pub(crate) fn heal(&self) {
        *self.faults.plan.lock().unwrap() = None;
    }

    /// Refuses new connections from now on, and breaks those that are open: a client may have
    /// another one in its pool.
    pub(crate) async fn close(&self) {
        self.listening.abort();
        while !self.listening.is_finished() {
            tokio::task::yield_now().await;
        }
        self.faults.is_closed.send_replace(true);
    }

    pub(crate) fn left_to_lose(&self) -> u32 {
        self.faults.plan.lock().unwrap().as_ref().map_or(0, |plan| plan.times)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        self.kit.tasks.begin_shutdown();
    }
}

async fn relay_all(listener: TcpListener, target: String, faults: Arc<Faults>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let target = target.clone();
        let faults = Arc::clone(&faults);
        tokio::spawn(async move {
            let server = TcpStream::connect(target).await.unwrap();
            let _ = relay(client, server, &faults).await;
        });
    }
}

/// Relays one connection. The client does not pipeline, and its requests are small: each arrives in
/// one read or a few.
async fn relay(
    mut client: TcpStream,
    mut server: TcpStream,
    faults: &Faults,
) -> std::io::Result<()> {
    let mut request = vec![0; 64 * 1024];
    let mut reply = vec![0; 64 * 1024];
    loop {
        tokio::select! {
            biased;
            () = faults.closed() => return Ok(()),
            read = client.read(&mut request) => {
                let bytes = read?;
                if bytes == 0 {
                    return Ok(());
                }
                match due(&faults.plan, &request[..bytes]) {
                    Some(Loss::Late(pause)) => {
                        server.write_all(&request[..bytes]).await?;
                        tokio::time::sleep(pause).await;
                    }
                    Some(Loss::LateRequest(pause)) => {
                        tokio::time::sleep(pause).await;
                        server.write_all(&request[..bytes]).await?;
                    }
                    None => server.write_all(&request[..bytes]).await?,
                    Some(Loss::Request) => return Ok(()),
                    Some(Loss::Reply) => {
                        return swallow(&mut server, &request[..bytes]).await;
                    }
                    Some(Loss::ReplyAfter(pause)) => {
                        swallow(&mut server, &request[..bytes]).await?;
                        tokio::time::sleep(pause).await;
                        return Ok(());
                    }
                    Some(Loss::ReplyUntilClosed) => {
                        swallow(&mut server, &request[..bytes]).await?;
                        faults.closed().await;
                        return Ok(());
                    }
                }
            }
            read = server.read(&mut reply) => {
                let bytes = read?;
                if bytes == 0 {
                    return Ok(());
                }
                client.write_all(&reply[..bytes]).await?;
            }
        }
    }
}

/// Lets the server handle the request, and drops its reply.
async fn swallow(server: &mut TcpStream, request: &[u8]) -> std::io::Result<()> {
    server.write_all(request).await?;
    let _ = server.read(&mut [0; 1024]).await?;
    Ok(())
}

fn due(plan: &Mutex<Option<FaultPlan>>, request: &[u8]) -> Option<Loss> {
    let text = String::from_utf8_lossy(request);
    let path = text.lines().next()?.split(' ').nth(1)?;
    let mut plan = plan.lock().unwrap();
    let plan = plan.as_mut().filter(|plan| plan.times > 0 && path.ends_with(&plan.path_end))?;
    plan.times = plan.times.saturating_sub(1);
    Some(plan.loss)
}
