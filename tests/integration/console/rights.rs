//! Sign-in, and acts that take something away.

use fence_protocol::wire::session::SessionReply;
use fence_tests::browser::Browser;
use fence_tests::servers::Setup;
use serde_json::json;

use crate::access::{As, Site};

/// Longer than a slow browser takes.
const LONG_MS: u64 = 600_000;

async fn sign_in(browser: &Browser, secret: &str) {
    browser.until("document.getElementById('token')").await;
    browser.type_into("#token", secret).await;
    browser.click(".sign-in button").await;
}

async fn give_reason(browser: &Browser, reason: &str) {
    browser.until("document.querySelector('dialog[open] #reason')").await;
    browser.type_into("#reason", reason).await;
    browser.click("dialog button[type=submit]").await;
}

/// The button is hidden for a principal without the right, and the server refuses all the same.
#[tokio::test]
async fn revokes_and_blocks_for_principals_that_may() {
    let site = Site::new();
    let server = site.arm(Setup::lock_server("memory:")).start().await;
    let team = As::new(&server, "team");
    let ops = As::new(&server, "ops");
    let first = team.lock("team/a", "acquire", &json!({"ttl_ms": LONG_MS})).await.lease();
    let session: SessionReply = team.begin(LONG_MS).await;
    let browser = Browser::start().await;
    browser.open(&format!("{}/ui/#/lock/team%2Fa", server.base)).await;
    sign_in(&browser, "wrong").await;
    browser.until_text(".sign-in", "is not in the access file").await;

    sign_in(&browser, "secret-of-eye").await;
    browser.until_text("#principal", "eye").await;
    browser.until_text(".holder", "anonymous").await;
    browser.until("document.querySelector('.head .danger').hidden").await;
    browser.run("document.querySelector('.head .danger').click()").await;
    give_reason(&browser, "let me").await;
    browser.until_text("dialog .bad", "eye has no right to revoke team/a").await;
    assert_eq!(ops.get("/v1/locks/team%2Fa").await.json()["holder"]["token"], first.token.get());
    browser.click("dialog button[type=button]").await;
    browser.click("#sign-out").await;

    sign_in(&browser, "secret-of-ops").await;
    browser.until("!document.querySelector('.head .danger').hidden").await;
    browser.click(".head .danger").await;
    give_reason(&browser, "host is replaced").await;
    browser.until_text("dialog .good", &format!("Token {} has ended", first.token)).await;
    browser.click("dialog button[type=button]").await;
    browser.until_text("[aria-label='Last leases']", "host is replaced").await;
    let other = As::new(&server, "other");
    other.lock("other/x", "acquire", &json!({"ttl_ms": LONG_MS})).await.lease();
    browser.run("location.hash = '#/locks'").await;
    browser.until_text("[aria-label=Activity]", "granted other/x").await;
    browser.run("location.hash = '#/lock/team%2Fa'").await;
    browser.until_text(".story", "an operator ended it (host is replaced)").await;

    let path = format!("{}/ui/#/session/{}", server.base, session.session_id);
    browser.run(&format!("location = {}", json!(path))).await;
    browser.until("document.querySelector('.head .danger')?.innerText === 'Block…'").await;
    browser.click(".head .danger").await;
    give_reason(&browser, "it hangs").await;
    browser.until_text("dialog .good", "Blocked").await;
    assert_eq!(team.beat(session.session_id).await.status, 403);

    let who: Vec<_> = site.audit().iter().map(|line| line["principal"].clone()).collect();
    assert!(who.contains(&json!("ops")) && who.contains(&json!("eye")), "{who:?}");
    let kept = browser.run("return document.cookie + location.href + localStorage.length").await;
    assert_eq!(kept, format!("{path}0"));

    // The next principal of the tab sees nothing of what the last one saw.
    browser.click("dialog button[type=button]").await;
    browser.click("#sign-out").await;
    sign_in(&browser, "secret-of-team").await;
    browser.run("location.hash = '#/locks'").await;
    browser.until_text("[aria-label=Activity]", "revoked team/a").await;
    let page = browser.run("return document.body.innerText").await;
    assert!(!page.as_str().unwrap().contains("other/x"), "{page}");
}

/// A tenant sees its own part.
#[tokio::test]
async fn a_tenant_lists_the_names_that_it_may_read() {
    let site = Site::new();
    let server = site.arm(Setup::lock_server("memory:")).start().await;
    let take = async |who: &str, lock: &str| {
        let long = json!({"ttl_ms": LONG_MS});
        As::new(&server, who).lock(lock, "acquire", &long).await.lease();
    };
    take("team", "team/a").await;
    take("other", "other/b").await;
    let browser = Browser::start().await;
    browser.open(&format!("{}/ui/", server.base)).await;
    sign_in(&browser, "secret-of-team").await;
    browser.until_text(".list", "team/a").await;
    browser.until_text("#live", "Live").await;
    let views = browser.run("return document.getElementById('nav').innerText").await;
    assert!(!views.as_str().unwrap().contains("Sessions"), "{views}");
    take("team", "team/c").await;
    browser.until_text(".list", "team/c").await;
    let page = browser.run("return document.body.innerText").await;
    assert!(!page.as_str().unwrap().contains("other/b"), "{page}");

    // Names that every object has are no views.
    for name in ["constructor", "toString", "__proto__"] {
        browser.run("location.hash = '#/service'").await;
        browser.until("!document.querySelector('.list')").await;
        browser.run(&format!("location.hash = '#/{name}'")).await;
        browser.until_text(".list", "team/a").await;
    }
}
