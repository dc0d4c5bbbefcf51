//! Runs the steps of one scenario.

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::driver::{Driver, Pending};
use super::file::{Actor, Awaited, FaultStep, Request, RequestCount, Scenario, ScenarioStep, read};
use super::host::Drivers;
use super::http_proxy::Seen;
use super::site::Site;
use super::values::Variables;
use crate::wait::{patience, until_some};

/// A scenario under way.
struct Run {
    site: Site,
    driver: Driver,
    rival: Option<Driver>,
    variables: Variables,
    started: BTreeMap<String, (u64, Pending)>,
}

/// Runs a scenario with one of these drivers.
///
/// # Errors
/// The step that did not do what is expected.
///
/// # Panics
/// If a condition does not come true, or a server does not start.
pub async fn run(scenario: &Scenario, drivers: &Drivers) -> Result<(), String> {
    let site = Site::start(scenario).await;
    let variables = site.variables();
    let driver = drivers.start().await?;
    let mut run = Run { site, driver, rival: None, variables, started: BTreeMap::new() };
    let done = run.all(scenario).await;
    done.map_err(|why| match run.driver.stderr() {
        errors if errors.is_empty() => why,
        errors => format!("{why}; its stderr ends in:\n{errors}"),
    })
}

impl Run {
    async fn all(&mut self, scenario: &Scenario) -> Result<(), String> {
        if !scenario.bare {
            let client =
                json!({"op": "client", "server": "$server", "guard": "$guard", "owner": "tester"});
            self.request(Actor::Driver, &client, None).await?;
        }
        self.steps(&scenario.steps).await
    }

    fn steps<'a>(
        &'a mut self,
        steps: &'a [ScenarioStep],
    ) -> Pin<Box<dyn Future<Output = Result<(), String>> + Send + 'a>> {
        Box::pin(async move {
            for (at, step) in steps.iter().enumerate() {
                let done = self.step(step).await;
                done.map_err(|why| format!("step {}: {why}", at + 1))?;
            }
            Ok(())
        })
    }

    async fn step(&mut self, step: &ScenarioStep) -> Result<(), String> {
        match step {
            ScenarioStep::Send(request) => {
                self.request(request.by, &request.request, request.expect.as_ref()).await?;
            }
            ScenarioStep::Start(request) => self.begin(request).await?,
            ScenarioStep::Await(awaited) => self.reply_of(awaited).await?,
            ScenarioStep::Fault(fault) => {
                let fault: FaultStep = read(self.variables.fill(fault)?)?;
                self.site.proxy(fault.server).begin(fault);
            }
            ScenarioStep::Heal(server) => self.site.proxy(*server).heal(),
            ScenarioStep::Cut(server) => self.site.proxy(*server).cut(),
            ScenarioStep::Kill(server) => self.site.kill(*server),
            ScenarioStep::Restart(server) => self.site.restart(*server).await,
            ScenarioStep::Stop => self.driver.pause(),
            ScenarioStep::Continue => self.driver.resume(),
            ScenarioStep::Event(expected) => {
                let variables = self.variables.clone();
                let is_it = |event: &Value| variables.clone().matches(expected, event).is_ok();
                let event = self.driver.event(is_it).await;
                let event = event.ok_or_else(|| {
                    let others = Value::Array(self.driver.events());
                    format!("no event {expected} within {:?}; others: {others}", patience())
                })?;
                self.variables.matches(expected, &event)?;
            }
            ScenarioStep::NoEvent(unexpected) => {
                for event in self.driver.events() {
                    if self.variables.clone().matches(unexpected, &event).is_ok() {
                        return Err(format!("unexpected event {event}"));
                    }
                }
            }
            ScenarioStep::Requests(count) => self.requests(count).await?,
            ScenarioStep::Queue(queue) => {
                self.site.lock_server().locks().queue_of(&queue.name, queue.length).await;
            }
            ScenarioStep::Each(sets, steps) => {
                for set in sets {
                    for (name, value) in set {
                        let value = self.variables.fill(value)?;
                        self.variables.set(name, value);
                    }
                    let set = Value::Object(set.clone());
                    self.steps(steps).await.map_err(|why| format!("with {set}: {why}"))?;
                }
            }
        }
        Ok(())
    }

    async fn begin(&mut self, request: &Request) -> Result<(), String> {
        let sent = self.send(request.by, &request.request).await?;
        self.started.insert(request.name.clone(), sent);
        Ok(())
    }

    async fn reply_of(&mut self, awaited: &Awaited) -> Result<(), String> {
        let name = &awaited.name;
        let (id, mut pending) =
            self.started.remove(name).ok_or_else(|| format!("no request {name:?} is under way"))?;
        if awaited.pending {
            if let Ok(reply) = pending.try_recv() {
                return Err(format!("{name:?} has a reply already: {reply}"));
            }
            self.started.insert(name.clone(), (id, pending));
            return Ok(());
        }
        self.check(name, pending, awaited.expect.as_ref()).await
    }

    async fn request(
        &mut self,
        by: Actor,
        request: &Value,
        expect: Option<&Value>,
    ) -> Result<(), String> {
        let (_, pending) = self.send(by, request).await?;
        self.check(&request.to_string(), pending, expect).await
    }

    /// Awaits a reply and compares it.
    async fn check(
        &mut self,
        what: &str,
        pending: Pending,
        expect: Option<&Value>,
    ) -> Result<(), String> {
        let reply = tokio::time::timeout(patience(), pending).await;
        let reply = reply.map_err(|_| format!("{what}: no reply within {:?}", patience()))?;
        let reply = reply.map_err(|_| format!("{what}: the driver ended without a reply"))?;
        let any = json!({"ok": {"any": true}});
        let compared = self.variables.matches(expect.unwrap_or(&any), &reply);
        compared.map_err(|why| format!("{what}: {why}; the reply: {reply}"))
    }

    async fn send(&mut self, by: Actor, request: &Value) -> Result<(u64, Pending), String> {
        let mut request = self.variables.fill(request)?;
        complete(&mut request);
        if request["op"] == "cancel" {
            let target = request["target"].as_str().unwrap_or_default();
            let started = self.started.get(target);
            let (id, _) = started.ok_or_else(|| format!("no request {target:?} is under way"))?;
            request["target"] = json!(id);
        }
        match by {
            Actor::Driver => self.driver.send(request).await,
            Actor::Rival => self.rival().await?.send(request).await,
        }
    }

    /// The rival's driver, with its client.
    async fn rival(&mut self) -> Result<&mut Driver, String> {
        if self.rival.is_none() {
            let mut rival = Driver::start(&rust_driver())?;
            let client = json!({
                "op": "client", "client": "c", "owner": "rival",
                "server": self.variables.fill(&json!("$server_direct"))?,
                "guard": self.variables.fill(&json!("$guard_direct"))?,
            });
            let (_, pending) = rival.send(client).await?;
            self.check("the rival's client", pending, None).await?;
            self.rival = Some(rival);
        }
        self.rival.as_mut().ok_or_else(|| "no rival".to_owned())
    }

    async fn requests(&mut self, step: &Value) -> Result<(), String> {
        let count = self.request_count(step)?;
        let least = count.at_least.or(count.exactly).unwrap_or(0);
        let are_there = || (self.found(&count).0.len() >= least).then_some(());
        if until_some(are_there).await.is_none() {
            let seen = self.site.proxy(count.server).seen();
            let limit = patience();
            return Err(format!("no {least} requests as {step} within {limit:?}: {seen:?}"));
        }
        let (found, variables) = self.found(&count);
        self.variables = variables;
        let most = count.at_most.or(count.exactly).unwrap_or(usize::MAX);
        if found.len() > most {
            return Err(format!("{} requests, at most {most} expected: {found:?}", found.len()));
        }
        let apart = Duration::from_millis(count.apart_ms);
        if found.windows(2).any(|two| two[1].at.duration_since(two[0].at) < apart) {
            return Err(format!("two requests are less than {apart:?} apart: {found:?}"));
        }
        for (member, expected) in &count.distinct {
            let values: BTreeSet<String> =
                found.iter().map(|seen| seen.body[member].to_string()).collect();
            if values.len() != *expected {
                return Err(format!("expected {expected} values of {member}, found {values:?}"));
            }
        }
        Ok(())
    }

    /// Reads the step with its variables replaced; those of bodies and headers are compared.
    fn request_count(&self, step: &Value) -> Result<RequestCount, String> {
        let mut filled = Map::new();
        for (name, value) in step.as_object().ok_or("`requests` takes an object")? {
            let is_compared = matches!(name.as_str(), "body" | "headers");
            let value = if is_compared { value.clone() } else { self.variables.fill(value)? };
            filled.insert(name.clone(), value);
        }
        read(Value::Object(filled))
    }

    /// The requests that are meant, and the variables that they bind.
    fn found(&self, count: &RequestCount) -> (Vec<Seen>, Variables) {
        let mut variables = self.variables.clone();
        let mut found = self.site.proxy(count.server).seen();
        found.retain(|seen| {
            let mut bound = variables.clone();
            let mut compare = |expected: &Option<Value>, found: &Value| {
                expected.as_ref().is_none_or(|expected| bound.matches(expected, found).is_ok())
            };
            let is_meant = seen.path.contains(&count.path)
                && count.method.as_ref().is_none_or(|method| *method == seen.method)
                && compare(&count.body, &seen.body)
                && compare(&count.headers, &seen.headers);
            if is_meant {
                variables = bound;
            }
            is_meant
        });
        (found, variables)
    }
}

/// Adds the client and the lease that a request does not name.
fn complete(request: &mut Value) {
    const OF_CLIENT: [&str; 10] = [
        "client", "lock", "lock_all", "run", "session", "campaign", "leader", "events", "show",
        "revoke",
    ];
    const OF_LEASE: [&str; 10] = [
        "lock",
        "lock_all",
        "run",
        "check",
        "release",
        "progress",
        "put",
        "get",
        "delete",
        "fork_check",
    ];
    let Some(members) = request.as_object_mut() else { return };
    let op = members.get("op").and_then(Value::as_str).unwrap_or_default().to_owned();
    for (ops, member, name) in [(OF_CLIENT, "client", "c"), (OF_LEASE, "lease", "a")] {
        if ops.contains(&op.as_str()) {
            members.entry(member).or_insert_with(|| json!(name));
        }
    }
}

/// The command of the Rust SDK's driver.
pub fn rust_driver() -> Vec<String> {
    vec![crate::binaries::path("rust-sdk-driver").to_string_lossy().into_owned()]
}
