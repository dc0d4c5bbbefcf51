//! Lock servers that start and stop.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Method, Request, header};
use clap::Parser;
use lease::{Limits, ListQuery, Machine, Reading, Record, Session};
use lock_server::app;
use lock_server::config::{Config, Settings};
use lock_server::driver::Driver;
use lock_server::engines::contract::{Key, RecordStore, ServerId};
use lock_server::engines::memory::MemoryRecords;
use lock_server::store::LockStore;
use serde_json::Value;
use service_kit::Kit;
use service_kit::http::ApiRouter;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

use crate::audit::Kind;
use crate::clock::SimClock;
use crate::records::SimRecords;
use crate::store::World;

/// The longest reply.
const REPLY_MAX: usize = 1 << 20;
/// For how long a server counts as alive once it has fallen silent: the default.
const LIVENESS: Duration = Duration::from_secs(3);

/// One life of one lock server.
#[derive(Debug)]
pub(crate) struct Server {
    id: ServerId,
    kit: Kit,
    records: SimRecords,
    router: ApiRouter,
    /// Its connections are broken.
    pub(crate) stopped: CancellationToken,
}

/// All lock servers; a place is empty while its server is stopped.
#[derive(Debug)]
pub(crate) struct Fleet {
    world: Arc<World>,
    kind: Kind,
    places: Mutex<Places>,
}

#[derive(Debug)]
struct Places {
    servers: Vec<Option<Arc<Server>>>,
    lives: u32,
}

fn settings() -> Settings {
    static SETTINGS: OnceLock<Settings> = OnceLock::new();
    let parse = || {
        let flags = ["lock-server", "--store", "memory:", "--unsigned", "--event-history", "0"];
        Config::try_parse_from(flags).unwrap().settings().unwrap()
    };
    SETTINGS.get_or_init(parse).clone()
}

impl Server {
    async fn start(world: &Arc<World>, kind: Kind, life: u32) -> Self {
        let id = ServerId(life);
        let origin_ms = world.origin_ms(life);
        let clock = Arc::new(SimClock::new(Instant::now(), origin_ms));
        world.server_starts(id, origin_ms);
        let kit = Kit::new("lock-server").with_clock(clock.clone());
        let is_alone = kind == Kind::Alone;
        let records = SimRecords::new(world.clone(), id, clock, is_alone);
        let engine = Arc::new(records.clone());
        let limits = Limits::default();
        let driver = match kind {
            Kind::Shared => {
                let driver = Driver::shared(engine, id, LIVENESS, limits, &kit);
                while driver.live().await.is_err() {}
                driver
            }
            Kind::Alone => {
                let machine = restored(&world.engine(world.lineage()).unwrap(), limits, &kit);
                Driver::alone(engine, machine, limits, &kit)
            }
        };
        let store: Arc<dyn LockStore> = Arc::new(driver);
        let router = app::router(store, settings(), &kit).await.unwrap();
        Self { id, kit, records, router, stopped: CancellationToken::new() }
    }

    /// One request, answered by the router in process.
    pub(crate) async fn call(&self, method: Method, path: &str, body: &Value) -> (u16, Value) {
        let bytes = if body.is_null() { Vec::new() } else { body.to_string().into_bytes() };
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header(header::HOST, "localhost")
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(bytes))
            .unwrap();
        let reply = self.router.clone().oneshot(request).await.unwrap();
        let status = reply.status().as_u16();
        let body = to_bytes(reply.into_body(), REPLY_MAX).await.unwrap();
        let mut body = serde_json::from_slice(&body).unwrap_or(Value::Null);
        if let Some(problem) = body.as_object_mut() {
            // It counts the requests of the whole process.
            problem.remove("request_id");
        }
        (status, body)
    }

    /// Stops without a word, at whatever its tasks wait for.
    fn kill(&self) {
        self.records.kill();
        self.stopped.cancel();
        self.kit.tasks.begin_shutdown();
    }
}

/// State that a server without others reads at its start, as the embedded store does.
fn restored(engine: &MemoryRecords, limits: Limits, kit: &Kit) -> Machine {
    let ready = |key: Key| {
        let read = futures_util::FutureExt::now_or_never(engine.read(std::slice::from_ref(&key)));
        read.unwrap().unwrap()
    };
    let now_ms = kit.clock.monotonic_ms();
    let reading = Reading::Restart { now_ms };
    let query = ListQuery { prefix: String::new(), after: None, limit: usize::MAX, owner: None };
    let locks = futures_util::FutureExt::now_or_never(engine.locks(&query));
    let sessions = futures_util::FutureExt::now_or_never(engine.sessions(None, usize::MAX));
    let counter = futures_util::FutureExt::now_or_never(engine.read(&[])).unwrap().unwrap().1;
    let mut machine = Machine::new(counter, limits);
    for id in sessions.unwrap().unwrap().0 {
        let stored = lease::from_bytes(&ready(Key::Session(id)).0[0].value).unwrap();
        machine.restore_session(id, Session::from_stored(stored, reading));
    }
    for lock in locks.unwrap().unwrap().0 {
        let stored = lease::from_bytes(&ready(Key::Lock(lock.clone())).0[0].value).unwrap();
        machine.restore(now_ms, lock, Record::from_stored(stored, reading).unwrap());
    }
    machine
}

impl Fleet {
    /// Starts so many servers.
    pub(crate) async fn start(world: &Arc<World>, kind: Kind, count: usize) -> Arc<Self> {
        let places = Places { servers: vec![None; count], lives: 0 };
        let fleet = Arc::new(Self { world: world.clone(), kind, places: Mutex::new(places) });
        for place in 0..count {
            fleet.restart(place).await;
        }
        fleet
    }

    fn places<T>(&self, work: impl FnOnce(&mut Places) -> T) -> T {
        work(&mut self.places.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Number of servers, running or not.
    pub(crate) fn count(&self) -> usize {
        self.places(|places| places.servers.len())
    }

    /// The server at a place.
    pub(crate) fn at(&self, place: usize) -> Option<Arc<Server>> {
        self.places(|places| places.servers[place].clone())
    }

    /// Starts the server at a place, where none runs.
    pub(crate) async fn restart(&self, place: usize) {
        if self.at(place).is_some() {
            return;
        }
        let life = self.places(|places| {
            places.lives += 1;
            places.lives
        });
        self.world.log(|| format!("server {life} starts at place {place}"));
        let server = Arc::new(Server::start(&self.world, self.kind, life).await);
        self.places(|places| places.servers[place] = Some(server));
    }

    /// Stops the server at a place: at once, or after it had time to finish.
    pub(crate) async fn stop(&self, place: usize, grace: Duration) {
        let Some(server) = self.places(|places| places.servers[place].take()) else { return };
        let now_ms = self.world.now_ms();
        self.world.log(|| format!("server {} stops within {grace:?}", server.id.0));
        self.world.state().audit.server_stopped(now_ms, server.id);
        if !grace.is_zero() {
            server.kit.tasks.begin_shutdown();
            tokio::time::sleep(grace).await;
        }
        server.kill();
        self.world.forget_server(server.id);
    }

    /// Pauses the server at a place.
    pub(crate) fn stall(&self, place: usize, length: Duration) {
        let Some(server) = self.at(place) else { return };
        self.world.log(|| format!("server {} is paused for {length:?}", server.id.0));
        let ms = u64::try_from(length.as_millis()).unwrap();
        self.world.state().audit.server_stalls(self.world.now_ms(), ms);
        server.records.stall(length);
    }
}
