//! Versions of the protocol, and keys of cancel requests.

use fence_tests::postgres_client::{PostgresClient, cancel, credential_of, frame, startup};
use fence_tests::postgres_server::Postgres;
use fence_tests::wait::until_true;

use super::{Port, port, prepare, setup, shop};

const ASLEEP: &str = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";

/// Logs in by a version; returns the body of a NegotiateProtocolVersion, if there is one.
async fn log_in(port: &Port, minor: u32, pairs: &[(&str, &str)]) -> (PostgresClient, Vec<u8>) {
    let mut client = PostgresClient::connect(&port.address).await;
    let credential = credential_of("shop", 1, 1);
    let own = [("user", "a"), ("database", "shop"), ("fence.token", &*credential)];
    client.send(&startup((3 << 16) | minor, &[&own[..], pairs].concat())).await;
    let first = client.frame().await.unwrap();
    let negotiated = match first.tag {
        b'v' => first.body,
        tag => {
            assert_eq!(tag, b'R');
            Vec::new()
        }
    };
    client.finish_login("").await.unwrap();
    (client, negotiated)
}

/// Servers before 18 have 3.0 alone, and are asked for 3.2.
#[tokio::test]
async fn clients_of_each_version_are_served_before_each_server() {
    for postgres in [Postgres::start().await, Postgres::newer("postgres-18", &[]).await] {
        prepare(&postgres).await;
        let port = port(&setup(&postgres)).await;
        let grease = [("_pq_.x", "1")];
        let unknown = b"\0\0\0\x01_pq_.x\0";
        for (minor, pairs, negotiated, key_len) in [
            (0, &[][..], vec![], 4),
            (0, &grease, [b"\0\x03\0\0", &unknown[..]].concat(), 4),
            (2, &[], vec![], 32),
            (2, &grease, [b"\0\x03\0\x02", &unknown[..]].concat(), 32),
            (9999, &[], b"\0\x03\0\x02\0\0\0\0".to_vec(), 32),
        ] {
            let (mut client, got) = log_in(&port, minor, pairs).await;
            assert_eq!(got, negotiated, "3.{minor}");
            assert_eq!(client.key.1.len(), key_len, "3.{minor}");
            client.send(&frame(b'Q', b"SELECT pg_sleep(600)\0")).await;
            until_true("the statement", || async {
                shop(&postgres, "postgres", ASLEEP).await == "1"
            })
            .await;
            let (pid, key) = client.key.clone();
            let mut other = key.clone();
            other[3] ^= 1;
            let longer = [&key[..], b"x"].concat();
            for wrong in [&other[..], &key[1..], &longer, &[7; 256], &[7; 257], &[]] {
                cancel(&port.address, (pid, wrong)).await;
            }
            cancel(&port.address, (pid + 1, &key)).await;
            assert_eq!(shop(&postgres, "postgres", ASLEEP).await, "1");
            cancel(&port.address, (pid, &key)).await;
            assert_eq!(client.rows().await.unwrap_err().code(), "57014", "3.{minor}");
            assert_eq!(client.query("SELECT 1").await.unwrap(), ["1"]);
        }
    }
}
