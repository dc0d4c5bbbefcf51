//! Conformance of the SDKs: one set of scenario files (`tests/sdk/scenarios`), run against a real
//! lock server and guard behind a proxy that causes faults, for the SDK of every language.
//!
//! # A scenario
//!
//! ```json
//! {
//!   "why": "One sentence.",
//!   "not_for": {"go": "the reason, shown in the table"},
//!   "servers": {"store": "embedded", "lock": ["--flag", "value"], "guard": []},
//!   "files": {"token": "text of the file $dir/token"},
//!   "bare": false,
//!   "steps": []
//! }
//! ```
//!
//! Only `why` and `steps` are required. `servers.store` is `memory`, or `embedded` if the lock
//! server's memory must survive a restart; the lists are further arguments. With `"tls": true` both
//! speak TLS and require a client's certificate (`$ca`, `$cert`, `$key`). Unless it is `bare`, a
//! scenario begins with `{"op": "client", "client": "c", "server": "$server", "guard": "$guard",
//! "owner": "tester"}`; requests that need a client and name none get `c`, and those that need a
//! lease and name none get `a`.
//!
//! # Steps
//!
//! - `{"send": {"op": …}, "expect": {"ok": {…}}}`: sends a request to the driver and awaits the
//!   reply. Without `expect`, the reply must be `ok`.
//! - `{"start": {"op": …}, "as": "x"}`, later `{"await": "x", "expect": …}`; a `cancel` names its
//!   target by `x`. `"pending"` in place of `expect` checks that there is no reply yet.
//! - `{"rival": {"op": …}, "expect": …}`: as `send`, by another process, which uses the Rust SDK
//!   and reaches the servers without the proxy; `"by": "rival"` does the same for `start`.
//! - `{"fault": {"server": "lock", "method": "POST", "path": "/renew", "do": "drop-reply",
//!   "times": 1}}`: only `do` is required. `path` is contained in the path of the request. Without
//!   `times` it lasts until `{"heal": "lock"}`. The effects:
//!   `drop-reply` (the server handles the request, then the connection closes), `hold-reply` (until
//!   healed), `hold` (the request does not reach the server until healed), `refuse` (the connection
//!   closes, the server gets nothing), `status` (a reply of the proxy: `status`, `headers`, `body`;
//!   the server gets nothing unless `"applied": true`), `delay` (`ms`, before the server).
//! - `{"cut": "lock"}`: closes the connections that exist.
//! - `{"kill": "lock"}` and `{"restart": "lock"}`: the process; a restart kills first.
//! - `{"stop": "driver"}` and `{"continue": "driver"}`: SIGSTOP and SIGCONT of its process group.
//! - `{"event": {"event": "lost", …}}`: awaits an event of the driver; one is consumed.
//!   `{"no_event": {…}}`: none such has arrived.
//! - `{"requests": {"server": "lock", "path": "/acquire", "body": {…}, "headers": {…},
//!   "at_least": 2, "at_most": 3, "exactly": 2, "distinct": {"lease_id": 1}, "apart_ms": 1000}}`:
//!   awaits that so many requests came to the proxy, and counts the values of a member of their
//!   bodies; two of them must be so many milliseconds apart.
//! - `{"queue": {"name": "a", "length": 1}}`: awaits so many waiters.
//! - `{"each": [{"x": 1}, {"x": 2}], "do": [steps]}`: runs the steps with each set of variables.
//!
//! # Values
//!
//! `"$x"` in an `expect` binds `x` if it has no value, and otherwise must be equal; in a request it
//! is replaced, and so is `${x}` within a text. Given are `$server` and `$guard` (behind the
//! proxy), `$server_direct`, `$guard_direct`, `$plain` (a web server that is no Fencepost), `$dir`.
//! Objects are compared by the members that are expected; and
//! `{"above": n}`, `{"below": n}`, `{"at_least": n}`, `{"at_most": n}`, `{"contains": "text"}`,
//! `{"one_of": […]}`, `{"not": value}` and `{"any": true}` by their words.
//!
//! # The driver
//!
//! A program per language reads one JSON object a line and writes one a line, as
//! [`driver`] says.

pub mod driver;
pub mod file;
pub mod host;
pub mod http_proxy;
pub mod run;
pub mod site;
pub mod suite;
pub mod values;
