//! The gate around a router.

use std::fmt;
use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::{Body, HttpBody as _};
use axum::extract::{FromRequestParts as _, MatchedPath, Query, RawPathParams, Request, State};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use serde::Deserialize;
use service_kit::http::{LockRoute, RequestId};
use service_kit::problem::{Reject, problem_of};

use crate::audit::Line;
use crate::caller::{Act, Caller};
use crate::gate::{Gate, Need, Refused};
use crate::rights::Verb;

/// Head of a request, for the mapping of routes to rights.
#[derive(Clone, Copy, Debug)]
pub struct RequestTarget<'a> {
    /// The method; HEAD comes as GET.
    pub method: &'a Method,
    /// The route as it was written, `/v1/locks/{lock}`.
    pub route: &'a str,
    /// The path and the query.
    pub uri: &'a Uri,
    params: &'a [(String, String)],
}

impl<'a> RequestTarget<'a> {
    /// A request by its parts; `params` are the captures of the route.
    pub fn new(
        method: &'a Method,
        route: &'a str,
        uri: &'a Uri,
        params: &'a [(String, String)],
    ) -> Self {
        Self { method, route, uri, params }
    }

    /// A capture of the route, decoded as the handler gets it; empty where it is not there.
    pub fn param(&self, name: &str) -> &str {
        let found = self.params.iter().find(|(own, _)| own == name);
        found.map_or("", |(_, value)| value.as_str())
    }

    /// The `prefix` of the query, decoded as the handler gets it; empty, which is everything, where
    /// there is none or it cannot be read.
    pub fn prefix(&self) -> Vec<u8> {
        #[derive(Deserialize)]
        struct Listing {
            #[serde(default)]
            prefix: String,
        }
        let listing = Query::<Listing>::try_from_uri(self.uri);
        listing.map(|Query(listing)| listing.prefix.into_bytes()).unwrap_or_default()
    }
}

type Map = Arc<dyn Fn(&RequestTarget<'_>) -> Need + Send + Sync>;

#[derive(Clone)]
struct Layer {
    gate: Gate,
    map: Map,
}

impl fmt::Debug for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Layer").field("gate", &self.gate).finish_non_exhaustive()
    }
}

/// Puts `gate`, which was started, around every route of the router. `map` returns the requirement
/// of a request; `/livez` and `/readyz` are public, and `/readyz?verbose`, `/version`, `/metrics`
/// and `/openapi.json` need a valid bearer token. Without an access file and an audit log the
/// router is returned unchanged.
pub fn protect(
    router: Router,
    gate: Gate,
    map: impl Fn(&RequestTarget<'_>) -> Need + Send + Sync + 'static,
) -> Router {
    if gate.is_open() {
        return router;
    }
    router.route_layer(from_fn_with_state(Layer { gate, map: Arc::new(map) }, pass))
}

/// Puts `gate` around a route that is found without the router, as [`protect`] does around the same
/// route of the router.
pub fn protect_found(
    route: LockRoute,
    gate: &Gate,
    map: impl Fn(&RequestTarget<'_>) -> Need + Send + Sync + 'static,
) -> LockRoute {
    if gate.is_open() {
        return route;
    }
    let layer = Layer { gate: gate.clone(), map: Arc::new(map) };
    route.around(move |lock, request, inner| {
        let layer = layer.clone();
        let inner = inner.clone();
        Box::pin(async move {
            let params = [("lock".to_owned(), lock.as_str().to_owned())];
            let (parts, body) = request.into_parts();
            let route = inner.name();
            layer.admit(route, &params, parts, body, |request| inner.handle(lock, request)).await
        })
    })
}

async fn pass(State(layer): State<Layer>, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let params: Vec<(String, String)> = RawPathParams::from_request_parts(&mut parts, &())
        .await
        .map(|all| all.iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect())
        .unwrap_or_default();
    let route = parts.extensions.get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let route = route.unwrap_or_default();
    layer.admit(&route, &params, parts, body, |request| next.run(request)).await
}

impl Layer {
    /// Lets a request pass that may, and accounts for it.
    async fn admit<F: Future<Output = Response>>(
        self,
        route: &str,
        params: &[(String, String)],
        mut parts: Parts,
        body: Body,
        handle: impl FnOnce(Request) -> F,
    ) -> Response {
        let method = if parts.method == Method::HEAD { Method::GET } else { parts.method.clone() };
        let target = RequestTarget::new(&method, route, &parts.uri, params);
        let need = match target.route {
            "/readyz" if service_kit::is_verbose(parts.uri.query()) => Need::Known,
            "/livez" | "/readyz" => Need::Public,
            "/version" | "/metrics" | "/openapi.json" => Need::Known,
            _ => (self.map)(&target),
        };
        let mut account = Account::new(self.gate, &parts, &need);
        match account.gate.admit(&parts, &need) {
            Ok(caller) => account.caller = caller,
            Err(Refused { reject, caller }) => {
                account.caller = caller;
                return account.answered(refusal(reject, &body));
            }
        }
        if let Err(reject) = account.begin() {
            return refusal(reject, &body);
        }
        let act = Act {
            recorder: account.gate.recorder.clone(),
            line: account.line.clone(),
            verb: OnceLock::new(),
        };
        account.caller.act = Some(Arc::new(act));
        parts.extensions.insert(account.caller.clone());
        let response = handle(Request::from_parts(parts, body)).await;
        account.answered(response)
    }
}

/// Response of a refusal by the gate. If the request's body stays unread, the connection cannot
/// carry another request, and the response says so.
fn refusal(reject: Reject, body: &Body) -> Response {
    let mut response = reject.into_response();
    if !body.is_end_stream() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        let kind = HeaderValue::from_static("Bearer realm=\"fencepost\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, kind);
    }
    response
}

/// Audit lines of a request: two of an act of administration, one of a refusal, none of others.
struct Account {
    gate: Gate,
    caller: Caller,
    line: Line,
    is_admin: bool,
    /// `true` while an admitted act of administration has no reply yet.
    is_running: bool,
    is_answered: bool,
}

impl Account {
    fn new(gate: Gate, parts: &axum::http::request::Parts, need: &Need) -> Self {
        let id = RequestId::find(&parts.extensions);
        let line = Line {
            verb: need.verb().map(|verb| verb.as_str()),
            request: Some(format!("{} {}", parts.method, parts.uri.path())),
            request_id: id.map(|id| id.as_str().to_owned()),
            ..Line::default()
        };
        let is_admin = need.verb().is_some_and(|verb| verb.is_admin());
        Self {
            gate,
            caller: Caller::default(),
            line,
            is_admin,
            is_running: false,
            is_answered: false,
        }
    }

    fn line(&self, event: &'static str, phase: &'static str) -> Line {
        let principal = self.caller.name().map(ToOwned::to_owned);
        let verb = self.begun().map(Verb::as_str).or(self.line.verb);
        Line { event, phase, principal, verb, ..self.line.clone() }
    }

    /// Verb of an act that the handler has begun.
    fn begun(&self) -> Option<Verb> {
        self.caller.act.as_ref().and_then(|act| act.verb.get()).copied()
    }

    /// Writes the first line of an act of administration, which is refused if that fails.
    fn begin(&mut self) -> Result<(), Reject> {
        if self.is_admin {
            self.gate.recorder.record(self.line("admin", "asked"))?;
            self.is_running = true;
        }
        Ok(())
    }

    fn answered(mut self, response: Response) -> Response {
        self.is_running |= self.begun().is_some();
        let status = response.status();
        let is_refusal = matches!(status.as_u16(), 401 | 403 | 429);
        if !self.is_running && !is_refusal {
            return response;
        }
        let problem = problem_of(&response);
        let (event, phase) = if self.is_running { ("admin", "answered") } else { ("refused", "") };
        let mut line = self.line(event, phase);
        line.status = Some(status.as_u16());
        line.code = problem.as_ref().map(|problem| problem.code.as_str());
        line.detail = problem.map(|problem| problem.detail);
        line.notes = self.caller.take_notes();
        self.is_running = false;
        self.is_answered = true;
        // If the line cannot be written, readiness fails; the act is not undone.
        let _ = self.gate.recorder.record(line);
        response
    }
}

impl Drop for Account {
    /// The client disconnected before the reply: the outcome is unknown.
    fn drop(&mut self) {
        if self.is_running || (!self.is_answered && self.begun().is_some()) {
            let mut line = self.line("admin", "abandoned");
            line.notes = self.caller.take_notes();
            let _ = self.gate.recorder.record(line);
        }
    }
}
