//! Runs work under a lock, and releases it.
//!
//! Start the services with `cargo run -- serve`, then `cargo run -p fence-client --example
//! quickstart`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use fence_client::{Client, Error};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let token = client
        .lock("examples/quickstart")
        .wait(Duration::from_secs(10))
        .run(async |lease| {
            println!("holding {} with token {}", lease.lock(), lease.token());
            println!("trusted for {:?} unless it is renewed", lease.remaining());
            lease.token()
        })
        .await?;
    println!("released; the next token will be above {token}");
    Ok(())
}
