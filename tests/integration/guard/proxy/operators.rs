//! Operators and the lanes of a guard.

use fence_protocol::wire::lane::{LaneLine, LanePage, QuarantineCause};
use fence_tests::process::{Process, command};
use fence_tests::wait::{soon, until_true};
use serde_json::json;

use super::{LONG, Lane, token};

impl Lane {
    async fn fence(&self, args: &[&str]) -> String {
        let mut command = command(fence_tests::binaries::path("fence"));
        command.args(args).env("FENCE_STORE", &self.server.base);
        let output = Process::spawn("fence", command).ended().await;
        assert_eq!(output.code, 0, "{} {}", output.stdout, output.stderr);
        output.stdout
    }
}

/// After a crash the operator sees why nothing passes, and ends the wait for the write whose
/// connection he knows to be gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_ends_the_quarantine_after_a_crash() {
    let mut lane = Lane::new(LONG).await;
    let mut hold = lane.upstream.hold("33");
    let old = lane.put_later(&token(33), "33");
    hold.arrived().await;
    lane.crash().await;
    assert!(soon("the cut connection", old).await.unwrap().is_err());
    let table = lane.fence(&["object", "lanes"]).await;
    assert!(table.contains("QUARANTINE") && table.contains("1 unknown, "), "{table}");
    let page = lane.fence(&["object", "lanes", "--prefix", "do", "--output", "json"]).await;
    let page: LanePage = serde_json::from_str(&page).unwrap();
    let quarantine = page.lanes[0].quarantine.unwrap();
    assert_eq!(quarantine.cause, QuarantineCause::Restart);

    hold.release();
    until_true("33 to land", async || lane.upstream.values() == ["33"]).await;
    let body = json!({
        "action": "resolve",
        "none_can_take_effect": quarantine.unknown_outcomes,
        "reason": "33 has landed",
    });
    let guard = fence_tests::api::Api::new(&lane.server.base);
    let line: LaneLine = guard.post("/v1/lanes/doc/quarantine", &body).await.expect(200).read();
    assert_eq!((line.quarantine, line.mark.map(|mark| mark.get())), (None, Some(33)));
    lane.put("/doc", &token(34), "34").await.expect(204);
    assert_eq!(lane.upstream.values(), ["33", "34"]);
}
