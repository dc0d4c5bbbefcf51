//! Pages of other origins.

use std::sync::Arc;

use fence_tests::browser::Browser;
use fence_tests::servers::Setup;
use fence_tests::wait::until;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_util::task::AbortOnDropHandle;

/// A web server with one page, on an origin of its own.
async fn page(html: String) -> (String, AbortOnDropHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}/", listener.local_addr().unwrap());
    let html = Arc::new(html);
    let serve = tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let html = Arc::clone(&html);
            tokio::spawn(async move {
                let _ = stream.read(&mut [0; 4096]).await;
                let length = html.len();
                let head = "HTTP/1.1 200 OK\r\ncontent-type: text/html\r\nconnection: close";
                let reply = format!("{head}\r\ncontent-length: {length}\r\n\r\n{html}");
                let _ = stream.write_all(reply.as_bytes()).await;
            });
        }
    });
    (base, AbortOnDropHandle::new(serve))
}

/// Requests with and without the browser's question first, a form, and the console in a frame.
fn attack(target: &str) -> String {
    format!(
        "<!doctype html><title>elsewhere</title><a id=link href='{target}/ui'>console</a>
        <iframe id=frame src='{target}/ui/'></iframe><iframe name=sink></iframe>
        <form id=form target=sink method=post enctype=text/plain
        action='{target}/v1/locks/a/revoke'><input name='{{\"reason\":\"' value='form\"}}'></form>
        <script>
        const body = JSON.stringify({{reason: 'page'}});
        const send = (options) =>
          fetch('{target}/v1/locks/a/revoke', {{method: 'POST', body, ...options}}).then(
            (reply) => reply.type, () => 'refused');
        document.getElementById('form').submit();
        Promise.all([send({{mode: 'no-cors'}}), send({{}}),
          send({{headers: {{'content-type': 'application/json'}}}}),
          fetch('{target}/v1/locks').then(() => 'read', () => 'refused')])
          .then((all) => {{ window.outcome = all.join(' ') }});
        </script>"
    )
}

#[tokio::test]
async fn a_page_of_another_origin_revokes_nothing_and_may_only_link_the_console() {
    let server = Setup::lock_server("memory:").start().await;
    let held = server.locks().grant("a", 600_000).await;
    let (page, _serving) = page(attack(&server.base)).await;
    let browser = Browser::start().await;
    browser.open(&page).await;
    // The first reply is opaque to the page: the browser sent the request, and the server refused.
    browser.until("window.outcome === 'opaque refused refused refused'").await;
    until("the refusals", || async {
        let metrics = server.locks().0.get("/metrics").await.body;
        let text = String::from_utf8_lossy(&metrics).into_owned();
        let refused = text.lines().filter(|line| {
            line.contains("/v1/locks/{lock}/revoke") && line.contains("status=\"403\"")
        });
        let count: u64 =
            refused.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok()).sum();
        (count >= 3).then_some(())
    })
    .await;
    let holder = server.locks().show("a").await.holder.unwrap();
    assert_eq!((holder.info.token, holder.lease_id), (held.token, held.lease_id));
    // The policy of the console keeps it out of frames.
    browser.until("document.getElementById('frame').contentDocument === null").await;

    browser.click("#link").await;
    browser.until_text(".list", "anonymous").await;
}
