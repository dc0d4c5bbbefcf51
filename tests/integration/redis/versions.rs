//! Servers of versions and names that no test runs: a proxy gives a real one another name.

use std::sync::Arc;

use fence_tests::redis_server::Redis;
use fence_tests::servers::Setup;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy};
use tokio::net::{TcpListener, TcpStream};

/// Address of a proxy that puts other words of the same length in what the server replies.
async fn renamed(redis: &Redis, words: &[(&str, &str)]) -> String {
    let words: Arc<[(String, String)]> = words
        .iter()
        .map(|(from, to)| {
            assert_eq!(from.len(), to.len(), "{to}");
            ((*from).to_owned(), (*to).to_owned())
        })
        .collect();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let behind = redis.address();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            let server = TcpStream::connect(&behind).await.unwrap();
            let (mut from_client, mut to_client) = client.into_split();
            let (mut from_server, mut to_server) = server.into_split();
            tokio::spawn(async move { copy(&mut from_client, &mut to_server).await });
            let words = Arc::clone(&words);
            tokio::spawn(async move {
                let mut buf = vec![0; 1 << 16];
                while let Ok(len @ 1..) = from_server.read(&mut buf).await {
                    let mut bytes = buf[..len].to_vec();
                    for (from, to) in words.iter() {
                        let at = bytes.windows(from.len()).position(|seen| seen == from.as_bytes());
                        if let Some(at) = at {
                            bytes[at..at + to.len()].copy_from_slice(to.as_bytes());
                        }
                    }
                    if to_client.write_all(&bytes).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    format!("redis://{address}")
}

/// Newer versions and forks are served under their own name, with a warning.
#[tokio::test]
async fn an_untested_server_is_served_with_a_warning() {
    let redis = Redis::of_debian().await;
    let valkey = Redis::newer("valkey-9.1").await;
    for (url, name, newest) in [
        (
            renamed(&redis, &[("redis_version:7.0.15", "redis_version:9.9.15")]).await,
            "redis 9.9.15",
            "redis 8.2",
        ),
        (
            renamed(&valkey, &[("valkey_version:9.1.2", "valkey_version:9.7.2")]).await,
            "valkey 9.7.2",
            "valkey 9.1",
        ),
        (
            renamed(&redis, &[("redis_git_sha1:00000000", "server_name:otherserver")]).await,
            "otherserver 7.0.15",
            "redis 8.2, valkey 9.1",
        ),
    ] {
        let guard = crate::redis_port::port(&crate::redis_port::setup(&url)).await;
        let server = Setup::lock_server(&url).start().await;
        server.locks().grant(&name.replace(" ", "-"), 60_000).await;
        for server in [&guard.server, &server] {
            let ready = server.api().get("/readyz?verbose").await.expect(200);
            let text = String::from_utf8_lossy(&ready.body).into_owned();
            assert!(text.contains(&format!("the server is {name}, ")), "{text}");
            assert!(text.contains(newest), "{text}");
        }
        let (code, said) = super::acl::doctor(&["--redis", &url]).await;
        assert!(code == 0 && said.contains(&format!("the server is {name}, ")), "{said}");
    }
}

/// One that is too old is not, and the reason names the least version.
#[tokio::test]
async fn an_older_server_is_refused() {
    let redis = Redis::of_debian().await;
    let url = renamed(&redis, &[("redis_version:7.0.15", "redis_version:6.2.15")]).await;
    let said = Setup::lock_server(&url).refused().await;
    let words = "redis 6.2.15 is not supported; use version 7.0.0 or newer";
    assert!(said.code == 1 && said.stderr.contains(words), "{said:?}");
    let said = crate::redis_port::setup(&url).refused().await;
    assert!(said.code == 1 && said.stderr.contains("at least 7.0 is required"), "{said:?}");
    let (_, said) = super::acl::doctor(&["--redis", &url]).await;
    assert!(said.contains(words), "{said}");
}
