//! The console in a real browser, against real servers.

mod assets;
mod foreign;
mod rights;
mod search;

use std::path::Path;

use fence_protocol::wire::lock::LeaseReply;
use fence_tests::api::Locks;
use fence_tests::browser::{Browser, ENTER};
use fence_tests::key_file::{KeyFile, lease_id};
use fence_tests::ports;
use fence_tests::servers::{Server, Setup};
use serde_json::json;

use super::docs::ROOT;

/// An owner as an attacker would call itself: every text must stay a text.
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// A guard, and a lock server that names it and gets its reports.
struct Pair {
    guard: Server,
    server: Server,
    _keys: KeyFile,
}

impl Pair {
    async fn start() -> Self {
        let keys = KeyFile::new("k1", 7);
        let address = format!("127.0.0.1:{}", ports::unused());
        let guard = Setup::fenced_store("memory:")
            .keys(&keys.path())
            .args(&[
                "--report-to",
                &format!("http://{address}"),
                "--rule",
                "orders/{id}/**=orders/{id}",
            ])
            .start()
            .await;
        let server = Setup::lock_server("memory:")
            .keys(&keys.path())
            .listen(address)
            .args(&["--guard", &guard.base])
            .start()
            .await;
        Self { guard, server, _keys: keys }
    }

    async fn write(&self, lease: &LeaseReply, expected: u16) {
        let headers = [
            ("fencing-token", lease.fencing_token.as_str()),
            ("fence-owner", lease.owner.as_str()),
        ];
        let guard = self.guard.guard();
        let reply = guard.with(http::Method::PUT, "orders/42/total", &headers, "1").await;
        reply.expect(expected);
    }
}

async fn granted(locks: &Locks, lock: &str, owner: &str) -> LeaseReply {
    locks.acquire(lock, json!({"ttl_ms": 600_000, "owner": owner})).await.lease()
}

/// Keeps a picture for a person to look at, if `FENCE_SCREENSHOTS` names a folder.
pub(crate) async fn keep(browser: &Browser, name: &str) {
    let picture = browser.screenshot().await;
    if let Some(folder) = std::env::var_os("FENCE_SCREENSHOTS") {
        std::fs::write(Path::new(&folder).join(name), picture).unwrap();
    }
}

/// All of it appears by itself, as it happens.
#[tokio::test]
async fn shows_a_grant_a_queue_a_hand_over_and_a_refused_write() {
    let pair = Pair::start().await;
    let locks = pair.server.locks();
    let browser = Browser::start().await;
    browser.show_as(1200, 820, "light").await;
    browser.open(&format!("{}/ui", pair.server.base)).await;
    browser.until_text("#live", "Live").await;

    let first = granted(&locks, "orders/42", "worker-1@host-2").await;
    pair.write(&first, 201).await;
    browser.until_text(".list table", "worker-1@host-2").await;
    browser.until_text(".activity", "granted orders/42").await;

    let waiter = {
        let locks = locks.clone();
        let body = json!({"ttl_ms": 600_000, "wait_ms": 60_000, "owner": "worker-2@host-3"});
        tokio::spawn(async move { locks.acquire("orders/42", body).await.lease() })
    };
    browser.until_text(".list .waiting", "1").await;

    // By the keyboard alone.
    browser.press("/").await;
    browser.press("orders/42").await;
    browser.press(ENTER).await;
    browser.until_text("h1", "orders/42").await;
    browser.until_text(".holder", "worker-1@host-2").await;
    browser.until_text(".queue", "worker-2@host-3").await;
    browser.until_text(".guard", "everything earlier is refused").await;

    let renew = json!({"lease_id": first.lease_id, "ttl_ms": 100});
    locks.0.post("/v1/locks/orders%2F42/renew", &renew).await.lease();
    let second = waiter.await.unwrap();
    browser.until_text(".holder", "worker-2@host-3").await;
    browser.until_text(".guard", "has not seen the holder").await;
    pair.write(&second, 204).await;
    pair.write(&first, 412).await;
    browser.until("document.querySelectorAll('.timeline .refusal').length === 1").await;
    let story = format!(
        "worker-1@host-2 went on writing with token {}: a guard refused 1 operation,",
        first.token
    );
    browser.until_text(".story .bad", &story).await;
    browser.until_text("[aria-label='Refused writes']", "PUT orders/42/total: stale-token").await;
    browser
        .until("document.querySelector('.lease.expired') && document.querySelector('.hand-over')")
        .await;

    if super::generated::regenerates() {
        let picture = browser.screenshot().await;
        assert!(picture.len() < 200_000, "{} bytes", picture.len());
        std::fs::write(Path::new(ROOT).join("docs/operating/console.png"), picture).unwrap();
    }
    let hostile = json!({"wait_ms": 60_000, "owner": HOSTILE});
    let hostile = tokio::spawn(async move { locks.acquire("orders/42", hostile).await });
    browser.until_text(".queue", HOSTILE).await;
    browser.until("document.querySelectorAll('main img').length === 0").await;
    hostile.abort();
    browser.until("document.querySelector('.queue') === null").await;

    assert_eq!(browser.errors().await, Vec::<String>::new());
}

/// Every view shows what the API has, also where there are many locks, and fits a phone.
#[tokio::test]
async fn shows_ten_thousand_locks_by_pages_and_every_view_fits_a_phone() {
    let pair = Pair::start().await;
    let locks = pair.server.locks();
    for part in 0..157 {
        let names = (0..64).map(|at| json!({"lock": format!("jobs/{part:03}/{at:02}")}));
        let body = json!({"locks": names.collect::<Vec<_>>(), "ttl_ms": 600_000, "owner": "batch"});
        locks.0.post("/v1/acquire", &body).await.expect(200);
    }
    let session = json!({"session_id": lease_id(), "owner": "scheduler-1", "ttl_ms": 600_000});
    locks.0.post("/v1/sessions", &session).await.expect(200);
    let id = session["session_id"].as_str().unwrap();
    let bound = json!({"session_id": id});
    locks.acquire("sched/a", bound).await.lease();

    let base = &pair.server.base;
    let browser = Browser::start().await;
    browser.show_as(390, 844, "dark").await;
    browser.open(&format!("{base}/ui/")).await;
    browser.until("document.querySelectorAll('.list tbody tr').length === 50").await;
    browser.click("[data-key=next]").await;
    browser.until_text(".list tbody", "jobs/000/50").await;
    browser.type_into("#search", "jobs/156/6").await;
    browser.until("document.querySelectorAll('.list tbody tr').length === 4").await;
    for (view, shown) in [
        ("#/lock/jobs%2F000%2F00", "batch"),
        ("#/sessions", "scheduler-1"),
        (&format!("#/session/{id}"), "sched/a"),
        ("#/guards", "atomic"),
        ("#/service", "a restart forgets every lease"),
        ("#/lock/never%2Fheld", "It is free"),
    ] {
        browser.run(&format!("location.hash = {}", json!(view))).await;
        browser.until_text("main", shown).await;
        let is_narrow = "document.documentElement.scrollWidth <= innerWidth";
        browser.until(is_narrow).await;
    }
    browser.open(&format!("{base}/docs")).await;
    let operations = locks.0.get("/openapi.json").await.json();
    let count: usize = operations["paths"]
        .as_object()
        .unwrap()
        .values()
        .map(|path| path.as_object().unwrap().len())
        .sum();
    browser
        .until(&format!("document.querySelectorAll('section .method').length === {count}"))
        .await;
    browser.until_text("#acquire", "Time to live").await;
    assert_eq!(browser.errors().await, Vec::<String>::new());
}
