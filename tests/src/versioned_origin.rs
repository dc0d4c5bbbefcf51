//! A datastore with an ETag for each version, which checks If-Match and If-None-Match: honest, or
//! with one lie.

use std::collections::{BTreeMap, HashMap};
use std::io::Error;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use http::{HeaderMap, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use tokio::net::TcpListener;
use tokio::sync::{Barrier, watch};
use tokio_util::task::AbortOnDropHandle;

use crate::wait::soon;

/// Length up to which a body is small to [`Lie::ChecksAtHead`].
const SMALL: u64 = 64 * 1024;

/// Deviation of an origin from what conditional writes need.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lie {
    /// It is honest.
    #[default]
    None,
    /// The tags are weak.
    Weak,
    /// There are no tags.
    Untagged,
    /// Equal content has an equal tag.
    Hashed,
    /// A resource that is made again has its first tag again.
    CountsFromOne,
    /// Size and second of the change make the tag.
    Timed,
    /// If-Match is ignored.
    IgnoresMatch,
    /// If-Match is checked on resources that exist alone.
    IgnoresMatchOfMissing,
    /// If-None-Match is ignored.
    IgnoresAbsent,
    /// A DELETE checks nothing.
    DeletesAlways,
    /// A write that is refused with 412 takes effect.
    AppliesRefused,
    /// Check and write are two steps.
    ChecksThenWrites,
    /// A large PUT is checked when its head arrives, and written when its body is whole.
    ChecksAtHead,
    /// A write is refused whatever its condition, once the probe has passed.
    RefusesAll,
}

/// A write that was checked, in the order of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checked {
    /// `PUT`, `DELETE` or another.
    pub method: Method,
    /// Body that was to be written.
    pub value: String,
    /// It carried If-Match or If-None-Match.
    pub is_conditional: bool,
    /// Reply, even if it was lost: 412 if the condition did not hold.
    pub status: u16,
}

#[derive(Debug, Default)]
struct OriginState {
    objects: BTreeMap<String, (String, Bytes)>,
    changes: u64,
    lie: Lie,
    log: Vec<(String, Checked)>,
    gates: HashMap<String, Gate>,
    /// Bodies of writes whose reply is lost.
    mute: Vec<String>,
    both: Option<Arc<Barrier>>,
}

impl OriginState {
    /// Returns what two writes of the probe's race meet at, between check and write.
    fn race(&mut self, value: &str) -> Option<Arc<Barrier>> {
        let is_racer = !["", r#"{"probe":10}"#, r#"{"probe":11}"#].contains(&value);
        (is_racer && self.lie == Lie::ChecksThenWrites)
            .then(|| Arc::clone(self.both.get_or_insert_with(|| Arc::new(Barrier::new(2)))))
    }
}

#[derive(Debug)]
struct Gate {
    arrived: watch::Sender<bool>,
    open: watch::Receiver<bool>,
}

/// A write that the origin holds before it checks it. Dropping it lets the write through.
#[derive(Debug)]
pub struct Held {
    arrived: watch::Receiver<bool>,
    open: watch::Sender<bool>,
}

impl Held {
    /// Waits until the write is at the origin.
    ///
    /// # Panics
    /// If it never comes.
    pub async fn arrived(&mut self) {
        let seen = soon("the write to reach the origin", self.arrived.wait_for(|seen| *seen));
        assert!(*seen.await.expect("the origin lives"));
    }

    /// Lets it be checked.
    pub fn release(&self) {
        self.open.send_replace(true);
    }
}

/// The origin, for as long as it lives.
#[derive(Debug)]
pub struct VersionedOrigin {
    base: String,
    state: Arc<Mutex<OriginState>>,
    _accepting: AbortOnDropHandle<()>,
}

impl VersionedOrigin {
    /// Starts one.
    ///
    /// # Panics
    /// If no port is free.
    pub async fn start(lie: Lie) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let base = format!("http://{}", listener.local_addr().expect("an address"));
        let state = Arc::new(Mutex::new(OriginState { lie, ..OriginState::default() }));
        let accepting = AbortOnDropHandle::new(tokio::spawn(accept(listener, state.clone())));
        Self { base, state, _accepting: accepting }
    }

    /// `http://127.0.0.1:PORT`.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// Begins to lie.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn lie(&self, lie: Lie) {
        self.state.lock().unwrap().lie = lie;
    }

    /// Holds the next write of exactly this body until it is let go.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn hold(&self, body: &str) -> Held {
        let (arrived, arrived_seen) = watch::channel(false);
        let (open, open_seen) = watch::channel(false);
        let gate = Gate { arrived, open: open_seen };
        self.state.lock().unwrap().gates.insert(body.to_owned(), gate);
        Held { arrived: arrived_seen, open }
    }

    /// Loses the reply to the next write of exactly this body, after it took effect.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn lose_reply(&self, body: &str) {
        self.state.lock().unwrap().mute.push(body.to_owned());
    }

    /// Every checked write of a path, in order.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn log(&self, path: &str) -> Vec<Checked> {
        let state = self.state.lock().unwrap();
        state.log.iter().filter(|(at, _)| at == path).map(|(_, write)| write.clone()).collect()
    }

    /// Bodies of the writes of a path that took effect, in order.
    pub fn applied(&self, path: &str) -> Vec<String> {
        let log = self.log(path).into_iter();
        log.filter(|write| write.status < 300).map(|write| write.value).collect()
    }

    /// Paths of all resources.
    ///
    /// # Panics
    /// Never, unless another test thread died inside.
    pub fn paths(&self) -> Vec<String> {
        self.state.lock().unwrap().objects.keys().cloned().collect()
    }
}

async fn accept(listener: TcpListener, state: Arc<Mutex<OriginState>>) {
    while let Ok((stream, _)) = listener.accept().await {
        let state = state.clone();
        let service = service_fn(move |request| answer(request, state.clone()));
        tokio::spawn(
            hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), service),
        );
    }
}

/// A reply, or the end of the connection without one.
type Answer = Result<Response<Full<Bytes>>, Error>;

async fn answer(request: Request<Incoming>, state: Arc<Mutex<OriginState>>) -> Answer {
    let path = request.uri().path().to_owned();
    let (head, body) = request.into_parts();
    let checked = {
        let state = state.lock().unwrap();
        let length = head.headers.get(header::CONTENT_LENGTH);
        let length = length.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or(0_u64);
        let is_early = state.lie == Lie::ChecksAtHead && length > SMALL;
        is_early.then(|| holds(&path, &head.method, &head.headers, &state))
    };
    let body = body.collect().await.map_err(Error::other)?.to_bytes();
    if head.method == Method::GET || head.method == Method::HEAD {
        return Ok(read(&path, &state.lock().unwrap()));
    }
    // A task of its own: a real datastore continues with a write whose sender has gone.
    let write = tokio::spawn(write(path, (head.method, head.headers, checked), body, state));
    write.await.map_err(Error::other)?
}

fn read(path: &str, state: &OriginState) -> Response<Full<Bytes>> {
    let Some((tag, body)) = state.objects.get(path) else { return empty(404, None) };
    let mut response = empty(200, Some(tag));
    *response.body_mut() = Full::new(body.clone());
    response
}

async fn write(
    path: String,
    (method, headers, checked): (Method, HeaderMap, Option<bool>),
    body: Bytes,
    state: Arc<Mutex<OriginState>>,
) -> Answer {
    let value = String::from_utf8_lossy(&body).into_owned();
    let gate = state.lock().unwrap().gates.remove(&value);
    if let Some(mut gate) = gate {
        gate.arrived.send_replace(true);
        let _ = gate.open.wait_for(|open| *open).await;
    }
    let earlier = checked.or_else(|| {
        let state = state.lock().unwrap();
        let is_earlier = state.lie == Lie::ChecksThenWrites;
        is_earlier.then(|| holds(&path, &method, &headers, &state))
    });
    let both = state.lock().unwrap().race(&value);
    if let Some(both) = both {
        both.wait().await;
    }
    let mut state = state.lock().unwrap();
    // Check and write are one step.
    let holds = earlier.unwrap_or_else(|| holds(&path, &method, &headers, &state));
    let before = state.objects.contains_key(&path);
    let status = match (holds, &method) {
        (false, _) => 412,
        (true, &Method::DELETE) if !before => 404,
        (true, &Method::PUT) if !before => 201,
        _ => 204,
    };
    if holds || state.lie == Lie::AppliesRefused {
        apply(&path, &method, body, &mut state);
    }
    let is_conditional =
        headers.contains_key(header::IF_MATCH) || headers.contains_key(header::IF_NONE_MATCH);
    let checked = Checked { method, value: value.clone(), is_conditional, status };
    state.log.push((path.clone(), checked));
    if let Some(at) = state.mute.iter().position(|mute| *mute == value) {
        state.mute.remove(at);
        return Err(Error::other("the reply is lost"));
    }
    let tag = state.objects.get(&path).map(|(tag, _)| tag.as_str());
    Ok(empty(status, tag))
}

fn holds(path: &str, method: &Method, headers: &HeaderMap, state: &OriginState) -> bool {
    let tag = state.objects.get(path).map(|(tag, _)| tag.as_str());
    let is_probe = path.contains("probe");
    let lie = state.lie;
    if (lie == Lie::RefusesAll && !is_probe && headers.contains_key(header::IF_MATCH))
        || (lie == Lie::DeletesAlways && *method == Method::DELETE)
    {
        return lie == Lie::DeletesAlways;
    }
    let is_checked = match lie {
        Lie::IgnoresMatch => false,
        Lie::IgnoresMatchOfMissing => tag.is_some(),
        _ => true,
    };
    let wanted = headers.get(header::IF_MATCH).and_then(|value| value.to_str().ok());
    if is_checked && wanted.is_some_and(|wanted| tag != Some(wanted)) {
        return false;
    }
    !headers.contains_key(header::IF_NONE_MATCH) || tag.is_none() || lie == Lie::IgnoresAbsent
}

fn apply(path: &str, method: &Method, body: Bytes, state: &mut OriginState) {
    if *method == Method::DELETE {
        drop(state.objects.remove(path));
        return;
    }
    state.changes += 1;
    let changes = state.changes;
    let length = body.len();
    let tag = match state.lie {
        Lie::Weak => format!("W/\"{changes}\""),
        Lie::Untagged => String::new(),
        Lie::Hashed => format!("\"{}\"", String::from_utf8_lossy(&body).replace('"', "_")),
        // All writes of a test are within one second.
        Lie::Timed => format!("\"67422b80-{length}\""),
        Lie::CountsFromOne => {
            let before =
                state.objects.get(path).and_then(|(tag, _)| tag.trim_matches('"').parse().ok());
            format!("\"{}\"", before.unwrap_or(0_u64) + 1)
        }
        _ => format!("\"{changes}\""),
    };
    state.objects.insert(path.to_owned(), (tag, body));
}

fn empty(status: u16, tag: Option<&str>) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::new(Bytes::new()));
    *response.status_mut() = StatusCode::from_u16(status).expect("a status");
    if let Some(tag) = tag.filter(|tag| !tag.is_empty()) {
        response.headers_mut().insert(header::ETAG, tag.parse().expect("a tag"));
    }
    response
}
