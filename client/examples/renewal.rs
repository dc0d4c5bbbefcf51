//! Works for three times the time to live: the background renewal keeps the lease live. Then an
//! operator revokes it, and the work is cancelled.
//!
//! Start the services with `cargo run -- serve`, then `cargo run -p fence-client --example
//! renewal`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use fence_client::{Client, Error, ErrorKind};

const TTL: Duration = Duration::from_secs(1);

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let request = client.lock("examples/renewal").ttl(TTL).wait(Duration::from_secs(10));
    let lease = request.acquire().await?;
    let lock = lease.lock().clone();
    let outcome = lease
        .run(async |lease| {
            tokio::time::sleep(3 * TTL).await;
            println!("after {:?} the lease is still live: {}", 3 * TTL, lease.is_live());
            client.locks().revoke(&lock, "shown in an example").await?;
            println!("revoked; waiting for the cancellation");
            std::future::pending::<Result<(), Error>>().await
        })
        .await;
    match outcome {
        Err(error) if matches!(error.kind(), ErrorKind::LeaseLost { .. }) => {
            println!("cancelled: {error}");
            Ok(())
        }
        Err(error) => Err(error),
        Ok(never) => never,
    }
}
