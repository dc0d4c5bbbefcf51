//! One Redis.

use async_trait::async_trait;

use crate::campaign::{Engine, Row, Starting};
use crate::checks::failover::Scope;
use crate::redis_server::Redis;
use crate::seed::Seed;

/// One Redis.
#[derive(Debug)]
struct Single(Redis);

const GRANT: &[&str] = &["--after-loss", "grant"];

/// Its rows.
pub fn rows() -> Vec<Row> {
    let row = |engine, fault, flags, start| Row {
        engine,
        fault,
        flags,
        promise: Some(Scope::Namespace),
        start,
    };
    vec![
        row("redis", "restart", &[], durable),
        row("redis", "flushall", &[], durable),
        row("redis", "flushall", GRANT, durable),
        row("redis-no-aof", "restart", &[], forgetful),
        row("redis-no-aof", "restart", GRANT, forgetful),
    ]
}

/// `appendonly yes`, `appendfsync always`.
fn durable() -> Starting {
    Box::pin(async { Box::new(Single(Redis::start().await)) as Box<dyn Engine> })
}

fn forgetful() -> Starting {
    Box::pin(async {
        Box::new(Single(Redis::with(&[("appendonly", "no")]).await)) as Box<dyn Engine>
    })
}

#[async_trait]
impl Engine for Single {
    fn store(&self, _server: usize) -> String {
        self.0.url()
    }

    async fn hurt(&mut self, fault: &str, seed: &mut Seed) {
        match fault {
            "restart" => {
                self.0.kill();
                tokio::time::sleep(seed.time_ms(0, 300)).await;
                self.0.start_again().await;
            }
            "flushall" => self.0.run(&["FLUSHALL"]).await,
            other => panic!("{other} is no fault of redis"),
        }
    }
}
