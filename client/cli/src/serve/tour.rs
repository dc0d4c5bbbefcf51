//! What `fence serve` prints: where things are, and a tour to paste.

use std::net::SocketAddr;

use super::folder::Folder;

/// The addresses come first, a line each, for programs that wait for them.
pub(super) fn text(locks: &str, guard: &str, folder: &Folder) -> String {
    let fate = if folder.is_temporary() { " (deleted at the end; --dir DIR keeps it)" } else { "" };
    format!(
        r#"lock-server listening on {locks}
fenced-store listening on {guard}
everything is kept in {dir}{fate}

Paste this into another terminal, line by line:

  header() {{ sed 's/.*"fencing_token":"//; s/".$//; s/\\//g'; }}

  # A worker takes the lock for two seconds, and then stalls.
  OLD=$(curl -s {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":2000}}' | header)
  sleep 3

  # The lease is over, so the next one gets the lock, with a higher token, and writes.
  NEW=$(curl -s {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":60000}}' | header)
  curl -si -X PUT {guard}/v1/objects/orders/42 -H "Fencing-Token: $NEW" -d 'new'

  # The first one wakes up and writes, too late: 412, and nothing is changed.
  curl -si -X PUT {guard}/v1/objects/orders/42 -H "Fencing-Token: $OLD" -d 'old'; echo
  curl -s {guard}/v1/objects/orders/42 -H "Fencing-Token: $NEW"; echo

  # The lock is held: 423. A write without a token: 428.
  curl -si {locks}/v1/locks/orders/42/acquire -d '{{}}'; echo
  curl -si -X PUT {guard}/v1/objects/orders/42 -d 'whoever'; echo

Ctrl-C ends it.
"#,
        dir = folder.path().display(),
    )
}

/// The same before a Redis, for redis-cli.
pub(super) fn redis(
    locks: &str,
    guard: &str,
    port: SocketAddr,
    redis: &str,
    folder: &Folder,
) -> String {
    format!(
        r#"lock-server listening on {locks}
fenced-store listening on {guard}
fenced-store redis port listening on redis://{port}
leases and marks are kept in {redis}, the keys that sign tokens in {dir}

Paste this into another terminal, line by line:

  credential() {{ sed 's/.*"fencing_credential":"//; s/".*//'; }}

  # A worker takes the lock for two seconds, writes, and then stalls. Its token is its password.
  OLD=$(curl -s {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":2000}}' | credential)
  redis-cli --no-auth-warning -u redis://fence:$OLD@{port} SET orders/42 first
  sleep 3

  # The lease is over, so the next one gets the lock, with a higher token, and writes.
  NEW=$(curl -s {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":60000}}' | credential)
  redis-cli --no-auth-warning -u redis://fence:$NEW@{port} SET orders/42 new

  # The first one wakes up and writes, too late: its login is FENCED, and without a token it may not.
  redis-cli --no-auth-warning -u redis://fence:$OLD@{port} SET orders/42 old
  redis-cli --no-auth-warning -u redis://fence:$NEW@{port} GET orders/42

Ctrl-C ends it. Which lock protects which key: --rule.
"#,
        dir = folder.path().display(),
    )
}
