//! Routes that are found without the router's search.

use std::fmt;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::Method;
use fence_protocol::LockName;

use super::HandlerFuture;

type LockHandler = dyn Fn(LockName, Request) -> HandlerFuture + Send + Sync;

/// A route of a lock that most requests take: it is found by the beginning and the end of its path.
///
/// The router has the same route. It gets what is found here only by looking closer: other methods,
/// names in which more than `%2F` is encoded, and names that are none. Cheap to clone.
#[derive(Clone)]
pub struct LockRoute {
    /// The route as the router has it, for metrics and spans.
    name: &'static str,
    /// Its path before the name, and after it.
    ends: (&'static str, &'static str),
    /// The handler gets the path with the name as one segment.
    pub(super) is_folded: bool,
    handler: Arc<LockHandler>,
}

impl fmt::Debug for LockRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LockRoute").field("name", &self.name).finish_non_exhaustive()
    }
}

impl LockRoute {
    /// A route with one capture, which is the lock, and its handler of POST.
    ///
    /// # Panics
    /// If the route has no `{lock}`.
    pub fn post(
        name: &'static str,
        handler: impl Fn(LockName, Request) -> HandlerFuture + Send + Sync + 'static,
    ) -> Self {
        let Some(ends) = name.split_once("{lock}") else { panic!("no {{lock}} in {name}") };
        Self { name, ends, is_folded: false, handler: Arc::new(handler) }
    }

    /// The route as it was given, `/v1/locks/{lock}/acquire`.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// The same route with something around its handler, which gets the path with the name as one
    /// segment, as handlers behind the router do.
    #[must_use]
    pub fn around(
        self,
        layer: impl Fn(LockName, Request, &LockRoute) -> HandlerFuture + Send + Sync + 'static,
    ) -> Self {
        let inner = self.clone();
        let handler = Arc::new(move |lock, request| layer(lock, request, &inner));
        Self { is_folded: true, handler, ..self }
    }

    /// Handles a request of this route.
    pub fn handle(&self, lock: LockName, request: Request) -> HandlerFuture {
        (self.handler)(lock, request)
    }

    /// The lock, if the request is one of this route.
    pub(super) fn find<B>(&self, request: &axum::http::Request<B>) -> Option<LockName> {
        if *request.method() != Method::POST {
            return None;
        }
        let name = request.uri().path().strip_prefix(self.ends.0)?.strip_suffix(self.ends.1)?;
        // So clients write a name as one segment. No name has a `%`.
        match name.contains('%') {
            true => LockName::new(&name.replace("%2F", "/")).ok(),
            false => LockName::new(name).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_that_are_easily_read_are_found() {
        let handler = |_: LockName, _: Request| -> HandlerFuture { unreachable!() };
        let route = LockRoute::post("/v1/locks/{lock}/renew", handler);
        let found = |path: &str| {
            let uri = format!("http://h/v1/locks/{path}");
            let request = axum::http::Request::post(uri).body(()).unwrap();
            route.find(&request).map(|lock| lock.as_str().to_owned())
        };
        for (path, lock) in [
            ("a/renew", "a"),
            ("a/b/renew", "a/b"),
            ("a%2Fb/renew", "a/b"),
            ("a%2Fb/c/renew?x=%2F", "a/b/c"),
            ("renew/renew", "renew"),
        ] {
            assert_eq!(found(path).as_deref(), Some(lock), "{path}");
        }
        for path in [
            "a%2fb/renew",
            "a%2Fb%2fc/renew",
            "a%252Fb/renew",
            "a%3Ab/renew",
            "%2F/renew",
            "a%2F%2Fb/renew",
            "a%2F../renew",
            "a//b/renew",
            "/renew",
            "renew",
            "a/release",
            "a",
        ] {
            assert_eq!(found(path), None, "{path}");
        }
        let get = axum::http::Request::get("http://h/v1/locks/a/renew").body(()).unwrap();
        assert_eq!(route.find(&get), None);
    }
}
