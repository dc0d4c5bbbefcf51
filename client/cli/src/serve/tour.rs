//! Output of `fence serve`: addresses, and a tour to paste.

use std::net::SocketAddr;
use std::path::Path;

use super::folder::Folder;

/// The addresses come first, a line each, for programs that wait for them.
pub(super) fn text(locks: &str, guard: &str, folder: &Folder, who: Option<&Path>) -> String {
    let (known, auth) = bearer(who);
    let fate = if folder.is_temporary() { " (deleted at the end; --dir DIR keeps it)" } else { "" };
    format!(
        r#"lock-server listening on {locks}
fenced-store listening on {guard}
everything is kept in {dir}{fate}

Paste this into another terminal, line by line:

{known}  header() {{ sed 's/.*"fencing_token":"//; s/".$//; s/\\//g'; }}

  # A worker takes the lock for two seconds, and then stalls.
  OLD=$(curl -s{auth} {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":2000}}' | header)
  sleep 3

  # The lease is over, so the next one gets the lock, with a higher token, and writes.
  NEW=$(curl -s{auth} {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":60000}}' | header)
  curl -si{auth} -X PUT {guard}/v1/objects/orders/42 -H "Fencing-Token: $NEW" -d 'new'

  # The first one wakes up and writes, too late: 412, and nothing is changed.
  curl -si{auth} -X PUT {guard}/v1/objects/orders/42 -H "Fencing-Token: $OLD" -d 'old'; echo
  curl -s{auth} {guard}/v1/objects/orders/42 -H "Fencing-Token: $NEW"; echo

  # The lock is held: 423. A write without a token: 428.
  curl -si{auth} {locks}/v1/locks/orders/42/acquire -d '{{}}'; echo
  curl -si{auth} -X PUT {guard}/v1/objects/orders/42 -d 'no token'; echo

Ctrl-C ends it.
"#,
        dir = folder.path().display(),
    )
}

/// Commands that make a bearer token, and the curl option for it; both empty without access
/// control.
fn bearer(access_file: Option<&Path>) -> (String, &'static str) {
    let Some(file) = access_file else { return Default::default() };
    let known = format!(
        r#"  # Callers must be in {file}; this adds one:
  #   fence auth new me --allow 'use orders/*' --secret-file me.secret >> {file}
  BEARER=$(cat me.secret)

"#,
        file = file.display(),
    );
    (known, r#" -H "Authorization: Bearer $BEARER""#)
}

/// The tour before a Redis, for redis-cli.
pub(super) fn redis(
    locks: &str,
    guard: &str,
    port: SocketAddr,
    redis: &str,
    folder: &Folder,
    who: Option<&Path>,
) -> String {
    let (known, auth) = bearer(who);
    format!(
        r#"lock-server listening on {locks}
fenced-store listening on {guard}
fenced-store redis port listening on redis://{port}
leases and marks are kept in {redis}, the keys that sign tokens in {dir}

Paste this into another terminal, line by line:

{known}  credential() {{ sed 's/.*"fencing_credential":"//; s/".*//'; }}

  # A worker takes the lock for two seconds, writes, and then stalls. Its token is its password.
  OLD=$(curl -s{auth} {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":2000}}' | credential)
  redis-cli --no-auth-warning -u redis://fence:$OLD@{port} SET orders/42 first
  sleep 3

  # The lease is over, so the next one gets the lock, with a higher token, and writes.
  NEW=$(curl -s{auth} {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":60000}}' | credential)
  redis-cli --no-auth-warning -u redis://fence:$NEW@{port} SET orders/42 new

  # The first one wakes up and writes, too late: its login is FENCED; without one it may not.
  redis-cli --no-auth-warning -u redis://fence:$OLD@{port} SET orders/42 old
  redis-cli --no-auth-warning -u redis://fence:$NEW@{port} GET orders/42

Ctrl-C ends it. Which lock protects which key: --rule.
"#,
        dir = folder.path().display(),
    )
}
