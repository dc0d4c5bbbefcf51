//! The failover campaign in short: the command of the same name runs every row, many times.

use fence_tests::campaign::{self, CampaignRecord, Row};
use fence_tests::checks::failover::Scope;
use fence_tests::seed::{Seed, rounds};

async fn run_row(engine: &str, fault: &str, flags: &str) -> (Row, CampaignRecord) {
    let rows = campaign::rows();
    let named =
        |row: &&Row| (row.engine, row.fault) == (engine, fault) && row.flags_text() == flags;
    let row = *rows.iter().find(named).expect("such a row");
    let seed = Seed::of_run("campaign").next_u64();
    let record = campaign::run(&row, rounds(2, 20), seed, drop).await;
    (row, record.expect("a run to its end"))
}

/// A Redis that forgets everything breaks L2, which is why leases have tokens: those still rise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_emptied_redis_lowers_no_token() {
    let (row, record) = run_row("redis", "flushall", "-").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
    assert_eq!(counts.rounds, record.faults_ns.len());
    the_judge_finds_what_is_planted(&row, &record);
}

/// The control: in the very history of a run, one grant with another token.
fn the_judge_finds_what_is_planted(row: &Row, record: &CampaignRecord) {
    assert_eq!(row.promise, Some(Scope::Namespace));
    let last = record.grants.len() - 1;
    for token in [record.grants[0].token, record.grants[last / 2].token - 1] {
        let mut planted = record.clone();
        planted.grants[last].token = token;
        let counts = campaign::judge(row, &planted);
        assert!(counts.breaks_promise(row), "token {token} was not found");
        assert_eq!(counts.token_breaks.len(), 1, "{:?}", counts.token_breaks);
    }
}

/// With `appendfsync always` a Redis that is killed loses no acknowledged grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_a_durable_redis_loses_nothing() {
    let (row, record) = run_row("redis", "restart", "-").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
    assert_eq!(counts.overlaps, Vec::<String>::new());
    assert_eq!(counts.lost_leases, Vec::<String>::new());
}

/// A master that is killed, in a group of which two of three have each grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_master_lowers_no_token() {
    let (row, record) = run_row("sentinel", "kill-master", "--wait-replicas 1").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
    assert_eq!(counts.lost_leases, Vec::<String>::new());
}

/// A master and one lock server that are cut off from the rest: those two continue together as long
/// as they are not notified, and the other server continues with another master.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_split_network_lowers_no_token_where_replicas_are_waited_for() {
    let (row, record) = run_row("sentinel", "split-network", "--wait-replicas 1").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
}

/// Any node of three is killed, and keeps what it had written. One that forgets is unreachable for
/// ten seconds: that is for the command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_node_of_a_quorum_lowers_no_token() {
    let (row, record) = run_row("quorum-3", "kill-node", "-").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
    assert_eq!(counts.overlaps, Vec::<String>::new());
}

/// Two of five nodes are killed at once, and keep what they had written.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_dead_nodes_of_five_lower_no_token() {
    let (row, record) = run_row("quorum-5", "kill-two", "-").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
    assert_eq!(counts.overlaps, Vec::<String>::new());
}

/// An etcd that is killed loses no acknowledged grant.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_of_one_etcd_lowers_no_token() {
    let (row, record) = run_row("etcd-1", "restart", "-").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
    assert_eq!(counts.overlaps, Vec::<String>::new());
}

/// The others of a leader that is killed know all that it has acknowledged.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_leader_of_etcd_lowers_no_token() {
    let (row, record) = run_row("etcd-3", "kill-leader", "-").await;
    let counts = campaign::judge(&row, &record);
    assert_eq!(counts.token_breaks, Vec::<String>::new());
    assert_eq!(counts.overlaps, Vec::<String>::new());
}
