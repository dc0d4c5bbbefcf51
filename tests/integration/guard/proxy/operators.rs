//! Operators and the lanes of a guard.

use fence_protocol::wire::lane::{LaneLine, LanePage, QuarantineCause};
use fence_tests::process::{Output, Process, command};
use fence_tests::wait::{soon, until_true};

use super::{LONG, Lane, token};

impl Lane {
    async fn run(&self, args: &[&str]) -> Output {
        let mut command = command(fence_tests::binaries::path("fence"));
        command.args(args).env("FENCE_STORE", &self.server.base);
        Process::spawn("fence", command).ended().await
    }

    async fn fence(&self, args: &[&str]) -> String {
        let output = self.run(args).await;
        assert_eq!(output.code, 0, "{output:?}");
        output.stdout
    }

    /// Returns what a command that fails with this code says.
    async fn fails(&self, args: &[&str], code: i32) -> String {
        let output = self.run(args).await;
        assert_eq!(output.code, code, "{output:?}");
        output.stderr
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
    let quarantine = page.lanes[0].quarantine.clone().unwrap();
    assert_eq!(quarantine.cause, QuarantineCause::Restart);

    hold.release();
    until_true("33 to land", async || lane.upstream.values() == ["33"]).await;
    let resolve = ["object", "resolve", "doc", "--reason", "33 has landed", "--quarantine"];
    let stated = ["--none-can-take-effect", "--output", "json"];
    let wrong = lane.fails(&[&resolve[..], &["5f0c-1"], &stated].concat(), 64).await;
    assert!(wrong.contains(&quarantine.id), "{wrong}");
    let unstated = lane.fails(&[&resolve[..], &[&quarantine.id]].concat(), 64).await;
    assert!(unstated.contains("--none-can-take-effect"), "{unstated}");
    let extend = ["object", "extend", "doc", "--by", "1h", "--reason", "it hangs", "--quarantine"];
    let table = lane.fence(&[&extend[..], &[&quarantine.id]].concat()).await;
    assert!(table.contains("1 unknown, 1 h"), "{table}");
    let line = lane.fence(&[&resolve[..], &[&quarantine.id], &stated].concat()).await;
    let line: LaneLine = serde_json::from_str(&line).unwrap();
    assert_eq!((line.quarantine, line.mark.map(|mark| mark.get())), (None, Some(33)));
    lane.put("/doc", &token(34), "34").await.expect(204);
    assert_eq!(lane.upstream.values(), ["33", "34"]);
}
