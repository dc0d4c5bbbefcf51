//! The files: one scenario each.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use serde_json::{Map, Value};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/sdk/scenarios");

/// A scenario as it stands in its file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// The name of the file, without its ending.
    #[serde(skip)]
    pub name: String,
    /// One sentence: the behaviour that is expected.
    pub why: String,
    /// Languages that cannot show it, with the reason.
    #[serde(default)]
    pub not_for: BTreeMap<String, String>,
    /// Settings of the servers.
    #[serde(default)]
    pub servers: ServerSettings,
    /// Names and texts of files in `$dir`.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
    /// `true` if there is no client at the beginning.
    #[serde(default)]
    pub bare: bool,
    /// The steps, in order.
    pub steps: Vec<ScenarioStep>,
}

/// Settings of the two servers of a scenario.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ServerSettings {
    /// Store of the lock server.
    pub store: StoreKind,
    /// Further arguments of the lock server.
    pub lock: Vec<String>,
    /// Further arguments of the guard.
    pub guard: Vec<String>,
    /// `true` if both speak TLS and require a client's certificate; no proxy is before them then.
    pub tls: bool,
}

/// Store of the lock server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StoreKind {
    /// Forgets everything in a restart.
    #[default]
    Memory,
    /// Survives a restart.
    Embedded,
}

/// One of the two servers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServerName {
    /// lock-server.
    #[default]
    Lock,
    /// fenced-store.
    Guard,
}

/// The driver that gets a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Actor {
    /// The SDK under test.
    #[default]
    Driver,
    /// The Rust SDK, not through the proxy.
    Rival,
}

/// A step, by the member that names it.
#[derive(Clone, Debug)]
pub enum ScenarioStep {
    /// Sends a request and awaits its reply.
    Send(Request),
    /// Sends a request whose reply is awaited later.
    Start(Request),
    /// Awaits the reply of a request that was started.
    Await(Awaited),
    /// Begins a fault: a [`FaultStep`] with variables.
    Fault(Value),
    /// Ends the faults of a server.
    Heal(ServerName),
    /// Closes the connections to a server.
    Cut(ServerName),
    /// Kills a server.
    Kill(ServerName),
    /// Starts a server again.
    Restart(ServerName),
    /// SIGSTOP.
    Stop,
    /// SIGCONT.
    Continue,
    /// Awaits an event.
    Event(Value),
    /// Checks that no such event has arrived.
    NoEvent(Value),
    /// Awaits a number of requests: a [`RequestCount`] with variables.
    Requests(Value),
    /// Awaits a number of waiters.
    Queue(QueueStep),
    /// Repeats steps with each set of variables.
    Each(Vec<Map<String, Value>>, Vec<ScenarioStep>),
}

/// A request to a driver.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Request {
    /// The request, with its variables.
    #[serde(alias = "send", alias = "start", alias = "rival")]
    pub request: Value,
    /// The expected reply; anything that is `ok` without it.
    pub expect: Option<Value>,
    /// The name under which its reply is awaited.
    #[serde(default, rename = "as")]
    pub name: String,
    /// The driver that gets it.
    #[serde(default)]
    pub by: Actor,
}

/// A reply that is awaited.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Awaited {
    /// The name of the request.
    #[serde(rename = "await")]
    pub name: String,
    /// The expected reply; anything that is `ok` without it.
    pub expect: Option<Value>,
    /// Checks that there is no reply yet, and awaits none.
    #[serde(default)]
    pub pending: bool,
}

/// A fault of the proxy before a server.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct FaultStep {
    /// The server that it is before.
    pub server: ServerName,
    /// The method of the requests concerned; all if absent.
    pub method: Option<String>,
    /// A part of their paths.
    pub path: String,
    /// Treatment of each request.
    #[serde(rename = "do")]
    pub effect: Effect,
    /// Number of requests that it concerns; all until healed if absent.
    pub times: Option<u32>,
    /// Status of the proxy's own reply.
    pub status: u16,
    /// Headers of the proxy's own reply.
    pub headers: BTreeMap<String, String>,
    /// Body of the proxy's own reply: a text, or a problem document.
    pub body: Value,
    /// `true` if the server handles the request before the proxy replies.
    pub applied: bool,
    /// Milliseconds of a delay.
    pub ms: u64,
}

/// Effect of a fault on one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Effect {
    /// The server handles the request; the connection closes without its reply.
    #[default]
    DropReply,
    /// The server handles the request; the reply comes once the fault is healed.
    HoldReply,
    /// The request reaches the server once the fault is healed.
    Hold,
    /// The request reaches the server later.
    Delay,
    /// The connection closes; the server gets nothing.
    Refuse,
    /// The proxy replies by itself.
    Status,
}

/// Requests that came to a proxy.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RequestCount {
    /// The server that they were for.
    pub server: ServerName,
    /// Their method; any if absent.
    pub method: Option<String>,
    /// A part of their paths.
    pub path: String,
    /// Members of their JSON bodies.
    pub body: Option<Value>,
    /// Headers, names in lower case.
    pub headers: Option<Value>,
    /// Least number.
    pub at_least: Option<usize>,
    /// Greatest number.
    pub at_most: Option<usize>,
    /// The number.
    pub exactly: Option<usize>,
    /// Least time between two of them, in milliseconds.
    pub apart_ms: u64,
    /// Numbers of different values of members of their bodies.
    pub distinct: BTreeMap<String, usize>,
}

/// Waiters of a lock.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct QueueStep {
    /// The lock.
    pub name: String,
    /// Number of waiters.
    pub length: usize,
}

impl<'de> Deserialize<'de> for ScenarioStep {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let step = Map::<String, Value>::deserialize(deserializer)?;
        Self::from_members(step).map_err(serde::de::Error::custom)
    }
}

impl ScenarioStep {
    fn from_members(mut step: Map<String, Value>) -> Result<Self, String> {
        const TYPED: [&str; 5] = ["send", "start", "rival", "await", "each"];
        if let Some(verb) = TYPED.into_iter().find(|verb| step.contains_key(*verb)) {
            return Self::with_members(verb, step);
        }
        if step.len() != 1 {
            return Err(format!("a step has one member that names it: {step:?}"));
        }
        let verb = step.keys().next().cloned().unwrap_or_default();
        let value = step.remove(&verb).unwrap_or_default();
        Ok(match verb.as_str() {
            "fault" => Self::Fault(value),
            "heal" => Self::Heal(read(value)?),
            "cut" => Self::Cut(read(value)?),
            "kill" => Self::Kill(read(value)?),
            "restart" => Self::Restart(read(value)?),
            "stop" => Self::Stop,
            "continue" => Self::Continue,
            "event" => Self::Event(value),
            "no_event" => Self::NoEvent(value),
            "requests" => Self::Requests(value),
            "queue" => Self::Queue(read(value)?),
            _ => return Err(format!("there is no step {verb:?}")),
        })
    }

    /// A step with members beside the one that names it.
    fn with_members(verb: &str, mut step: Map<String, Value>) -> Result<Self, String> {
        if verb == "each" {
            let sets = read(step.remove("each").unwrap_or_default())?;
            let steps = read(step.remove("do").unwrap_or_default())?;
            return if step.is_empty() {
                Ok(Self::Each(sets, steps))
            } else {
                Err(format!("`each` has `do` beside it, and nothing else: {step:?}"))
            };
        }
        if verb == "await" {
            return Ok(Self::Await(read(Value::Object(step))?));
        }
        let mut request: Request = read(Value::Object(step))?;
        Ok(match verb {
            "start" => Self::Start(request),
            "send" => Self::Send(request),
            _ => {
                request.by = Actor::Rival;
                Self::Send(request)
            }
        })
    }
}

/// Reads a part of a scenario.
///
/// # Errors
/// The text of what cannot be read.
pub fn read<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, String> {
    let text = value.to_string();
    serde_json::from_value(value).map_err(|error| format!("{error} in {text}"))
}

/// All scenarios whose name contains `part`, ordered by name.
///
/// # Panics
/// If a file cannot be read as a scenario.
pub fn scenarios(part: &str) -> Vec<Scenario> {
    let mut paths: Vec<PathBuf> = std::fs::read_dir(FOLDER)
        .expect("the folder of scenarios")
        .map(|entry| entry.expect("an entry").path())
        .filter(|path| path.extension().is_some_and(|ending| ending == "json"))
        .collect();
    paths.sort();
    let all = paths.iter().map(|path| scenario(path));
    all.filter(|scenario| scenario.name.contains(part)).collect()
}

fn scenario(path: &Path) -> Scenario {
    let text = std::fs::read_to_string(path).expect("a readable file");
    let parsed: Result<Scenario, _> = serde_json::from_str(&text);
    let mut scenario = parsed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    scenario.name = path.file_stem().expect("a name").to_string_lossy().into_owned();
    scenario
}
