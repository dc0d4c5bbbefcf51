//! The sqlx crate and its pool at the PostgreSQL port, over a hand-over.
//!
//!     fence-sqlx-judge PORT FIRST SECOND THIRD
//!
//! The last three are credentials of one lock with rising tokens.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPoolOptions};
use sqlx::{AssertSqlSafe, ConnectOptions as _, Connection as _, Executor as _, Row as _};

type SqlxResult = Result<(), sqlx::Error>;

fn options(port: u16, credential: &str) -> PgConnectOptions {
    let options = PgConnectOptions::new_without_pgpass().host("127.0.0.1").port(port);
    options.database("shop").username("app").password(credential)
}

/// SQLSTATE of an error of the server.
fn code(error: &sqlx::Error) -> String {
    let code = error.as_database_error().and_then(|error| error.code());
    code.unwrap_or_else(|| panic!("no SQLSTATE: {error:?}")).into_owned()
}

async fn count(conn: &mut PgConnection, condition: &str) -> Result<i64, sqlx::Error> {
    let sql = format!("SELECT count(*) FROM x WHERE {condition}");
    sqlx::query_scalar(AssertSqlSafe(sql)).fetch_one(conn).await
}

async fn transactions(first: &PgConnectOptions) -> SqlxResult {
    let mut conn = first.connect().await?;
    // The simple protocol, several statements at once.
    conn.execute(sqlx::raw_sql(
        "CREATE TABLE x (id serial PRIMARY KEY, body text NOT NULL UNIQUE); INSERT INTO x (body) VALUES ('a'), ('b')",
    ))
    .await?;
    let mut outer = conn.begin().await?;
    outer.execute("INSERT INTO x (body) VALUES ('c')").await?;
    let mut inner = outer.begin().await?;
    let twice = inner.execute("INSERT INTO x (body) VALUES ('c')").await.unwrap_err();
    assert_eq!(code(&twice), "23505");
    inner.rollback().await?;
    outer.commit().await?;
    // A transaction that is dropped is rolled back before the next statement.
    let mut dropped = conn.begin().await?;
    dropped.execute("INSERT INTO x (body) VALUES ('dropped')").await?;
    drop(dropped);
    assert_eq!(count(&mut conn, "true").await?, 3);
    // Each statement is prepared once and kept by the driver.
    for number in 0..200 {
        let insert = sqlx::query_scalar("INSERT INTO x (body) VALUES ($1) RETURNING id");
        let id: i32 = insert.bind(format!("prepared {number}")).fetch_one(&mut conn).await?;
        assert!(id > number);
    }
    let prepared =
        "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE 'INSERT%RETURNING id'";
    assert_eq!(sqlx::query_scalar::<_, i64>(prepared).fetch_one(&mut conn).await?, 1);
    let once = sqlx::query_scalar("SELECT $1::int + 1").bind(1).persistent(false);
    let two: i32 = once.fetch_one(&mut conn).await?;
    assert_eq!(two, 2);
    // The next statement drains the rows of a stream that was left.
    let mut rows = sqlx::query("SELECT g FROM generate_series(1, 100000) g").fetch(&mut conn);
    assert_eq!(rows.next().await.unwrap()?.get::<i32, _>(0), 1);
    drop(rows);
    let sum = sqlx::query("SELECT g FROM generate_series(1, 5000) g").fetch(&mut conn);
    let sum = sum
        .try_fold(0_i64, |sum, row| async move { Ok(sum + i64::from(row.get::<i32, _>(0))) })
        .await?;
    assert_eq!(sum, 5000 * 5001 / 2);
    let large = vec![1_u8; 16 << 20];
    let back =
        sqlx::query_scalar::<_, Vec<u8>>("SELECT $1").bind(&large).fetch_one(&mut conn).await?;
    assert!(back == large);
    assert_eq!(code(&conn.execute("SELECT 1/0").await.unwrap_err()), "22012");
    println!("transactions, savepoints, prepared statements, streams, large values");
    conn.close().await
}

async fn copies(first: &PgConnectOptions) -> SqlxResult {
    let mut conn = first.connect().await?;
    let mut copy = conn.copy_in_raw("COPY x (body) FROM STDIN").await?;
    for chunk in 0..20 {
        let lines: String =
            (0..1000).map(|line| format!("copied {chunk} {line} {:0100}\n", 0)).collect();
        copy.send(lines.as_bytes()).await?;
    }
    assert_eq!(copy.finish().await?, 20_000);
    let copied = conn.copy_out_raw("COPY x TO STDOUT (FORMAT binary)").await?;
    let size = copied.try_fold(0, |size, piece| async move { Ok(size + piece.len()) }).await?;
    assert!(size > 2_000_000, "{size}");
    let mut copy = conn.copy_in_raw("COPY x (id, body) FROM STDIN").await?;
    copy.send(&b"no number\tx\n"[..]).await?;
    assert_eq!(code(&copy.finish().await.unwrap_err()), "22P02");
    let mut copy = conn.copy_in_raw("COPY x (body) FROM STDIN").await?;
    copy.send(&b"left\n"[..]).await?;
    copy.abort("by the client").await?;
    assert_eq!(count(&mut conn, "body LIKE 'copied%' OR body = 'left'").await?, 20_000);
    println!("COPY both ways");
    conn.close().await
}

async fn notifications(first: &PgConnectOptions) -> SqlxResult {
    let pool = PgPoolOptions::new().connect_with(first.clone()).await?;
    let mut listener = PgListener::connect_with(&pool).await?;
    listener.listen("news").await?;
    sqlx::query("SELECT pg_notify('news', 'hello')").execute(&pool).await?;
    assert_eq!(listener.recv().await?.payload(), "hello");
    println!("LISTEN and NOTIFY");
    drop(listener);
    pool.close().await;
    Ok(())
}

async fn token_by_other_ways(port: u16, credential: &str) -> SqlxResult {
    let by_options = options(port, "").options([("fence.token", credential), ("work_mem", "5MB")]);
    let mut conn = by_options.connect().await?;
    assert_eq!(sqlx::query_scalar::<_, String>("SHOW work_mem").fetch_one(&mut conn).await?, "5MB");
    conn.close().await?;
    println!("options");
    Ok(())
}

async fn hand_over(port: u16, first: &str, second: &str) -> SqlxResult {
    let mut stale = options(port, first).connect().await?;
    let mut open = stale.begin().await?;
    open.execute("INSERT INTO x (body) VALUES ('stale')").await?;
    let mut conn = options(port, second).connect().await?;
    assert_eq!(code(&open.commit().await.unwrap_err()), "FE412");
    assert_eq!(code(&options(port, first).connect().await.unwrap_err()), "FE412");
    assert_eq!(count(&mut conn, "body = 'stale'").await?, 0);
    println!("hand-over");
    conn.close().await
}

async fn pool(port: u16, second: &str, third: &str) -> SqlxResult {
    let made = PgPoolOptions::new().min_connections(4).max_connections(4);
    let made =
        made.acquire_timeout(Duration::from_secs(20)).connect_with(options(port, second)).await?;
    let insert = |number: i32| {
        let query = sqlx::query("INSERT INTO x (body) VALUES ($1)");
        query.bind(format!("pool {number}")).execute(&made)
    };
    futures_util::future::try_join_all((0..20).map(insert)).await?;
    options(port, third).connect().await?.close().await?;
    made.set_connect_options(options(port, third));
    // The pool tests each connection before it lends it.
    futures_util::future::try_join_all((20..40).map(insert)).await?;
    let counted = count(&mut *made.acquire().await?, "body LIKE 'pool%'").await?;
    assert_eq!(counted, 40);
    made.close().await;
    println!("a pool whose credential follows the lease");
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> SqlxResult {
    let words: Vec<String> = std::env::args().collect();
    let [_, port, first, second, third] = &words[..] else { panic!("{words:?}") };
    let port = port.parse().expect("a port");
    let with_first = options(port, first);
    transactions(&with_first).await?;
    copies(&with_first).await?;
    notifications(&with_first).await?;
    token_by_other_ways(port, first).await?;
    hand_over(port, first, second).await?;
    pool(port, second, third).await
}
