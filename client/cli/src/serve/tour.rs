//! What `fence serve` prints: where things are, and a tour to paste.

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
