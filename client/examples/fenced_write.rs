//! Two holders, one after the other. The first writes too late, through a client that does not
//! watch its lease, and the guard refuses the write because its token is stale.
//!
//! Start the services with `cargo run -- serve`, then `cargo run -p fence-client --example
//! fenced_write`.
#![expect(clippy::print_stdout, reason = "an example prints")]

use std::time::Duration;

use fence_client::{Client, Error, ErrorKind, HandedToken};

const KEY: &str = "examples/document";

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let objects = client.objects();

    let first = client.lock(KEY).wait(Duration::from_secs(10)).acquire().await?;
    objects.put(&first, KEY, "written by the first").content_type("text/plain").await?;
    println!("token {} wrote", first.token());

    client.locks().revoke(first.lock(), "the example passes the lock on").await?;
    let second = client.lock(KEY).wait(Duration::from_secs(10)).acquire().await?;
    objects.put(&second, KEY, "written by the second").content_type("text/plain").await?;
    println!("token {} wrote", second.token());

    // A client that does not watch its lease, as one in another language may be.
    let careless = HandedToken::new(first.fencing_token())?;
    match objects.put(&careless, KEY, "written too late").await {
        Err(error) if matches!(error.kind(), ErrorKind::Stale { .. }) => {
            println!("refused: {error}")
        }
        Err(error) => return Err(error),
        Ok(_) => println!("a stale write was applied: this must not happen"),
    }

    if let Some(object) = objects.get(&second, KEY).await? {
        println!("the document says: {}", String::from_utf8_lossy(&object.body));
    }
    second.release().await
}
