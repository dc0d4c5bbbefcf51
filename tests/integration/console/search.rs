//! Sick locks among many, and what happened before the page was opened.

use fence_tests::api::Locks;
use fence_tests::browser::Browser;
use fence_tests::wait::until_true;
use serde_json::json;
use tokio::task::JoinHandle;

use super::{Pair, granted, keep};

const ROWS: &str =
    "[...document.querySelectorAll('.list [data-label=Lock]')].map(c => c.innerText)";

/// Held locks below eleven folders: with two more a thousand.
async fn thousand(locks: &Locks) {
    for part in 0..10 {
        for (half, count) in [("a", 50), ("b", 49)] {
            let names = (0..count).map(|at| format!("jobs/{part}/{half}{at:02}"));
            together(locks, names, &format!("batch-{part}")).await;
        }
    }
    together(locks, (0..8).map(|at| format!("spare/{at}")), "spare").await;
}

async fn together(locks: &Locks, names: impl Iterator<Item = String>, owner: &str) {
    let parts: Vec<_> = names.map(|name| json!({ "lock": name })).collect();
    let body = json!({"locks": parts, "ttl_ms": 600_000, "owner": owner});
    locks.0.post("/v1/acquire", &body).await.expect(200);
}

async fn waits(locks: &Locks, lock: &'static str, owner: &str) -> JoinHandle<()> {
    let body = json!({"wait_ms": 300_000, "owner": owner});
    let before = locks.show(lock).await.queue_length;
    let waiting = locks.clone();
    let task = tokio::spawn(async move { drop(waiting.acquire(lock, body).await) });
    until_true("a waiter", || async { locks.show(lock).await.queue_length > before }).await;
    task
}

/// A thousand held locks, of which two have waiters, and one had a late write refused.
async fn three_sick(pair: &Pair) -> Vec<JoinHandle<()>> {
    let locks = pair.server.locks();
    thousand(&locks).await;
    let late = granted(&locks, "orders/42", "worker-1").await;
    locks.release("orders/42", late.lease_id).await.expect(200);
    let next = granted(&locks, "orders/42", "worker-2").await;
    pair.write(&next, 201).await;
    pair.write(&late, 412).await;
    let permit = json!({"mode": "permit", "size": 5, "ttl_ms": 600_000, "owner": "api-1"});
    for _ in 0..3 {
        locks.acquire("limit", permit.clone()).await.lease();
    }
    until_true("the guard's report", || async {
        let page = locks.0.get("/v1/locks?filter=refused").await.json();
        page["locks"].as_array().is_some_and(|all| all.len() == 1)
    })
    .await;
    vec![
        waits(&locks, "jobs/3/a07", "w1").await,
        waits(&locks, "jobs/7/b48", "w2").await,
        waits(&locks, "jobs/7/b48", "w3").await,
    ]
}

async fn choose(browser: &Browser, id: &str, value: &str) {
    let event = if id == "owner" { "input" } else { "change" };
    let choose = format!(
        "const e = document.getElementById('{id}'); e.value = '{value}'; \
         e.dispatchEvent(new Event('{event}', {{bubbles: true}}))"
    );
    browser.run(&choose).await;
}

async fn listed(browser: &Browser, expected: &[&str]) {
    browser.until(&format!("JSON.stringify({ROWS}) === '{}'", json!(expected))).await;
}

#[tokio::test]
async fn finds_three_sick_locks_among_a_thousand() {
    let pair = Pair::start().await;
    let waiters = three_sick(&pair).await;
    let browser = Browser::start().await;
    browser.show_as(1280, 860, "light").await;
    let ui = format!("{}/ui/", pair.server.base);
    browser.open(&ui).await;
    // What happened before the page was opened.
    browser.until_text(".activity", "refused orders/42").await;
    choose(&browser, "filter", "waiting").await;
    listed(&browser, &["jobs/3/a07", "jobs/7/b48"]).await;
    choose(&browser, "sort", "queue").await;
    listed(&browser, &["jobs/7/b48", "jobs/3/a07"]).await;
    keep(&browser, "waiting-light.png").await;
    choose(&browser, "filter", "refused").await;
    listed(&browser, &["orders/42"]).await;
    browser
        .until("document.querySelector('.list [data-refused] .refused').innerText === '1'")
        .await;
    keep(&browser, "refused-light.png").await;
    choose(&browser, "filter", "").await;
    choose(&browser, "sort", "refusals").await;
    browser.until(&format!("{ROWS}[0] === 'orders/42'")).await;
    choose(&browser, "sort", "").await;
    choose(&browser, "owner", "api").await;
    listed(&browser, &["limit"]).await;
    browser.until_text(".list tbody", "3 of 5 permits").await;

    // A filter is in the address, so that a link or a reload shows the same.
    browser.show_as(1280, 860, "dark").await;
    browser.open(&format!("{ui}?again#/locks?tree=1")).await;
    browser.until_text("[aria-label=Folders]", "jobs/").await;
    browser.until_text("[aria-label=Folders] [data-refused]", "orders/").await;
    keep(&browser, "tree-dark.png").await;
    browser.click("[aria-label=Folders] [data-key='jobs/']").await;
    browser.until_text("[aria-label=Folders]", "jobs/7/").await;
    browser.click("[aria-label=Folders] [data-key='jobs/7/']").await;
    browser.until(&format!("{ROWS}.length === 99")).await;
    browser.click("[aria-label='Folders above'] [data-key='up ']").await;
    browser.until_text("[aria-label=Folders]", "orders/").await;

    browser.show_as(390, 844, "light").await;
    browser.open(&format!("{ui}?phone#/locks?filter=waiting&sort=queue")).await;
    listed(&browser, &["jobs/7/b48", "jobs/3/a07"]).await;
    browser.until("document.documentElement.scrollWidth <= innerWidth").await;
    keep(&browser, "waiting-phone.png").await;
    browser.open(&format!("{ui}?guards#/guards")).await;
    browser.until_text("main", "A restart forgets marks").await;
    browser.until("!document.querySelector('.store .notice.warn')").await;
    keep(&browser, "guards-phone.png").await;
    assert_eq!(browser.errors().await, Vec::<String>::new());
    waiters.iter().for_each(JoinHandle::abort);
}

/// The guarantee of the engine is a link that opens, and every call has a command that works.
#[tokio::test]
async fn opens_the_guarantees_and_has_a_command_for_each_call() {
    let pair = Pair::start().await;
    let base = &pair.server.base;
    let browser = Browser::start().await;
    browser.show_as(1280, 860, "light").await;
    browser.open(&format!("{base}/ui/#/service")).await;
    browser.until_text("main", "The whole table").await;
    browser.click("main a[href*=guarantees]").await;
    browser.until("location.pathname === '/docs/guarantees.html'").await;
    browser.until("document.getElementById('memory')?.getBoundingClientRect().top < 300").await;
    browser.until("document.querySelectorAll('main table').length >= 3").await;
    keep(&browser, "guarantees-light.png").await;

    browser.open(&format!("{base}/docs/")).await;
    browser.until("document.querySelector('.curl')").await;
    keep(&browser, "docs-light.png").await;
    let calls = "return [...document.querySelectorAll('section:has(.method)')].map(s => \
                 [s.id, s.querySelector('.curl')?.innerText])";
    let calls = browser.run(calls).await;
    let calls = calls.as_array().unwrap();
    assert!(calls.len() > 20, "{calls:?}");
    for call in calls {
        let id = call[0].as_str().unwrap();
        let line = call[1].as_str().unwrap();
        let line = format!("{line} -m 2 -o /dev/null -w '%{{http_code}}'");
        let output = tokio::process::Command::new("sh").args(["-c", &line]).output();
        let output = output.await.unwrap();
        let status = String::from_utf8(output.stdout).unwrap();
        // Other examples hold the lock, and the lease and the session have ended. Terraform's
        // locks need --seal.
        let expected = match id.starts_with("terraform") {
            true => &["200", "400", "404", "409"],
            false => &["200", "404", "410", "423"],
        };
        assert!(expected.contains(&status.as_str()), "{id}: {line}: {status}");
        assert!(status == "200" || !NEEDS_NOTHING.contains(&id), "{id}: {status}");
    }
    assert_eq!(browser.errors().await, Vec::<String>::new());
}

/// Calls whose examples need nothing to be there.
const NEEDS_NOTHING: [&str; 10] = [
    "acquireAll",
    "createSession",
    "floor",
    "listGuards",
    "listLocks",
    "listSessions",
    "reportRefusals",
    "showLock",
    "showPrincipal",
    "watchEvents",
];
