//! Operators before two guards.

use fence_protocol::Code;
use fence_protocol::wire::lane::{LaneLine, LanePage, Quarantine, QuarantineCause};
use fence_tests::api::{Api, Reply};
use fence_tests::wait::until;
use serde_json::{Value, json};

use super::{LASTING_TTL, Member, Pair};

async fn quarantine(member: &Member) -> Option<Quarantine> {
    let reply = Api::new(&member.server.base).get("/v1/lanes").await;
    let page: LanePage = (reply.status == 200).then(|| reply.read())?;
    page.lanes.into_iter().next()?.quarantine
}

async fn change(member: &Member, body: Value) -> Reply {
    Api::new(&member.server.base).post("/v1/lanes/doc/quarantine", &body).await
}

fn resolve(id: &str) -> Value {
    json!({
        "action": "resolve", "quarantine": id, "none_can_take_effect": true, "reason": "it is gone",
    })
}

/// The upstream does not show what the guard before may still send. After that, the operator knows
/// all that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operator_ends_the_wait_for_the_guard_before() {
    let mut pair = Pair::with_ttl(LASTING_TTL).await;
    let leader = pair.leader().await;
    pair.written_through(leader, "doc", 33, "one").await;
    pair.members[leader].server.process.kill();
    let next = &pair.members[1 - leader];
    let found = until("the lane to be taken over", || quarantine(next)).await;
    assert_eq!(found.cause, QuarantineCause::TakeOver);
    assert!(found.unresolvable_ms > 0, "{found:?}");
    let id = found.id;
    let problem = change(next, resolve(&id)).await.problem(Code::QuarantineConflict);
    assert_eq!(problem.extension::<Quarantine>("quarantine").map(|now| now.id), Some(id.clone()));
    let extend =
        json!({"action": "extend", "quarantine": id, "extend_ms": 3_600_000, "reason": "it hangs"});
    change(next, extend).await.expect(200);
    until("the guard before to be over", || async {
        quarantine(next).await.filter(|found| found.unresolvable_ms == 0)
    })
    .await;
    next.put("doc", 34, "two").await.unwrap().problem(Code::Quarantined);
    let line: LaneLine = change(next, resolve(&id)).await.expect(200).read();
    assert_eq!(line.quarantine, None);
    next.put("doc", 34, "two").await.unwrap().expect(204);
    pair.tokens_never_fell("doc");
}
