//! Every sign that a PostgreSQL may have lost commits, one at a time, and what a start makes of it.

use fence_tests::conformance::record_store::{batch, group, lock, put};
use fence_tests::postgres_server::Postgres;
use fence_tests::wait::until_true;
use lease::tokens;
use lock_server::engines::contract::{Batch, RecordStore as _, Version};
use lock_server::engines::loss::{AfterLoss, LossOptions};
use lock_server::engines::open::StoreUrl;
use lock_server::engines::options::StoreOptions;
use lock_server::engines::postgres::PostgresRecords;
use lock_server::guards::Guards;
use service_kit::Kit;
use service_kit::clock::{Clock as _, SystemClock};
use service_kit::tasks::Tasks;

/// Damage to a row with the counter 7 and a lease of a minute, and the reason that is noted.
const SIGNS: [(&str, &str); 4] = [
    ("lineage = ''", "nothing is stored: new, or emptied"),
    ("system = '1'", "this is another PostgreSQL"),
    ("timeline = 99", "the timeline changed: a replica was promoted, or a backup restored"),
    ("system = '1', timeline = 99", "this is another PostgreSQL"),
];

async fn server(postgres: &Postgres, after_loss: AfterLoss) -> Result<PostgresRecords, String> {
    server_with(postgres, after_loss, &Kit::new("records")).await
}

async fn server_with(
    postgres: &Postgres,
    after_loss: AfterLoss,
    kit: &Kit,
) -> Result<PostgresRecords, String> {
    let StoreUrl::Postgres(target) = postgres.url().parse().unwrap() else { unreachable!() };
    let options = StoreOptions {
        loss: LossOptions { after_loss, ..LossOptions::default() },
        ..fence_tests::store_options::patient()
    };
    let guards = Guards::new(&Default::default(), &options.namespace, &kit.health).unwrap();
    PostgresRecords::start(&target, &options, guards, kit).await
}

async fn set(postgres: &Postgres, columns: &str) {
    postgres.sql(&format!("UPDATE fence_locks.namespaces SET {columns}")).await;
}

async fn get(postgres: &Postgres, column: &str) -> String {
    postgres.sql(&format!("SELECT {column} FROM fence_locks.namespaces")).await
}

/// Sets the counter low, which a start above the clock floor would hide, and leases for a minute.
async fn used(postgres: &Postgres) -> String {
    let one = server(postgres, AfterLoss::Grant).await.unwrap();
    let groups = vec![group(&[(&lock("a"), Version::ABSENT)], vec![put(&lock("a"), "held")])];
    let outcome = one.commit(Batch { lives_ms: 60_000, ..batch(groups) }).await;
    drop(outcome.unwrap());
    set(postgres, "counter = 7, reason = 'none', paused_until_ms = 0, paused_for_ms = 0").await;
    get(postgres, "lineage").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_sign_of_a_loss_begins_a_lineage() {
    let postgres = Postgres::start().await;
    for (damage, reason) in SIGNS {
        let before = used(&postgres).await;
        set(&postgres, damage).await;
        let floor = tokens::restart_floor(SystemClock::new().wall_ms() - 60_000);
        drop(server(&postgres, AfterLoss::Wait).await.unwrap());
        assert_ne!(get(&postgres, "lineage").await, before, "{damage}");
        assert_eq!(get(&postgres, "reason").await, reason, "{damage}");
        assert_eq!(get(&postgres, &format!("counter > {floor}")).await, "t", "{damage}");
        assert_eq!(get(&postgres, "paused_for_ms > 30000").await, "t", "{damage}");
        assert_eq!(get(&postgres, "paused_until_ms > 30000").await, "t", "{damage}");
        postgres.sql("DELETE FROM fence_locks.records").await;
    }
}

/// A backup of the files shows no sign, so that every start lifts the counter.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_start_lifts_the_counter_and_keeps_the_lineage() {
    let postgres = Postgres::start().await;
    let before = used(&postgres).await;
    let floor = tokens::restart_floor(SystemClock::new().wall_ms() - 60_000);
    drop(server(&postgres, AfterLoss::Wait).await.unwrap());
    assert_eq!(get(&postgres, "lineage").await, before);
    assert_eq!(get(&postgres, "reason").await, "none");
    assert_eq!(get(&postgres, &format!("counter > {floor}")).await, "t");
    assert_eq!(get(&postgres, "paused_until_ms").await, "0");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_counter_that_fell_is_seen_while_a_server_runs() {
    let postgres = Postgres::start().await;
    used(&postgres).await;
    let one = server(&postgres, AfterLoss::Wait).await.unwrap();
    let before = get(&postgres, "lineage").await;
    set(&postgres, "counter = 7").await;
    one.lift(fence_protocol::Token::new(7).unwrap()).await.unwrap();
    assert_eq!(get(&postgres, "reason").await, "the counter fell to 7");
    let begun = get(&postgres, "lineage").await;
    assert_ne!(begun, before);
    assert_eq!(get(&postgres, "paused_for_ms > 30000").await, "t");
    let counter: u64 = get(&postgres, "counter").await.parse().unwrap();
    one.lift(fence_protocol::Token::new(counter).unwrap()).await.unwrap();
    assert_eq!(get(&postgres, "lineage").await, begun);
    let above = counter + 1;
    one.lift(fence_protocol::Token::new(above).unwrap()).await.unwrap();
    let reason = format!("the counter {counter} is below {above}, which a guard has seen");
    assert_eq!(get(&postgres, "reason").await, reason);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_namespace_without_tokens_is_refused_and_left() {
    let postgres = Postgres::start().await;
    let before = used(&postgres).await;
    set(&postgres, "counter = 999999999999999, system = '1'").await;
    let error = server(&postgres, AfterLoss::Wait).await.unwrap_err();
    assert!(error.contains("no token left"), "{error}");
    assert_eq!(get(&postgres, "lineage").await, before);
    assert_eq!(get(&postgres, "system").await, "1");
}

/// All have read before one of them writes; the others find its lineage.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn servers_that_start_together_begin_one_lineage() {
    let postgres = Postgres::start().await;
    used(&postgres).await;
    set(&postgres, "system = '1'").await;
    let target: postgres_link::PostgresTarget = postgres.url().parse().unwrap();
    let holder = target.connect(&Default::default(), &Tasks::new()).await.unwrap();
    let hold = "BEGIN; SELECT FROM fence_locks.namespaces FOR UPDATE";
    holder.client().batch_execute(hold).await.unwrap();
    let kits = [(); 4].map(|()| Kit::new("records"));
    let starts = kits.each_ref().map(|kit| server_with(&postgres, AfterLoss::Wait, kit));
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' \
                   AND query LIKE '%pg_temp.adopt%'";
    let release = async {
        until_true("all to wait", async || postgres.sql(waiting).await == "4").await;
        holder.client().batch_execute("COMMIT").await.unwrap();
    };
    let (started, ()) = tokio::join!(futures_util::future::join_all(starts), release);
    assert!(started.iter().all(Result::is_ok), "{started:?}");
    let metric = "fencepost_lock_lineages_begun_total 1";
    let begun = kits.iter().filter(|kit| kit.metrics.encode().contains(metric)).count();
    assert_eq!(begun, 1);
}
