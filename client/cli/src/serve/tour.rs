//! Output of `fence serve`: addresses, and a tour to paste.

use std::net::SocketAddr;
use std::path::Path;

use super::folder::Folder;

/// A tour of both services.
pub(super) struct Tour<'a> {
    /// URL of the lock server on this machine.
    pub(super) locks: String,
    /// URL of the guard on this machine.
    pub(super) guard: String,
    pub(super) folder: &'a Folder,
    pub(super) access_file: Option<&'a Path>,
    /// The CA that was made.
    pub(super) ca: Option<&'a Path>,
    /// Name of this machine, where others reach it.
    pub(super) host: Option<&'a String>,
}

impl Tour<'_> {
    /// The addresses come first, a line each, for programs that wait for them.
    pub(super) fn text(&self) -> String {
        let Self { locks, guard, folder, .. } = self;
        let (known, auth) = self.bearer();
        let other = self.other_machine();
        let fate = match folder.is_temporary() {
            true => " (deleted at the end; --dir DIR keeps it)",
            false => "",
        };
        format!(
            r#"lock-server listening on {locks}
fenced-store listening on {guard}
console in a browser: {locks}/ui
everything is kept in {dir}{fate}
{other}
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

    /// The tour before a Redis, for redis-cli.
    pub(super) fn redis(&self, port: SocketAddr, redis: &str) -> String {
        let Self { locks, guard, folder, ca, .. } = self;
        let (known, auth) = self.bearer();
        let other = self.other_machine();
        let scheme = if ca.is_some() { "rediss" } else { "redis" };
        let ca = ca.map_or_else(String::new, |ca| format!(" --cacert {}", ca.display()));
        let cli = format!("redis-cli --no-auth-warning{ca} -u {scheme}");
        format!(
            r#"lock-server listening on {locks}
fenced-store listening on {guard}
fenced-store redis port listening on {scheme}://{port}
console in a browser: {locks}/ui
leases and marks are kept in {redis}, the keys that sign tokens in {dir}
{other}
Paste this into another terminal, line by line:

{known}  credential() {{ sed 's/.*"fencing_credential":"//; s/".*//'; }}

  # A worker takes the lock for two seconds, writes, and then stalls. Its token is its password.
  OLD=$(curl -s{auth} {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":2000}}' | credential)
  {cli}://fence:$OLD@{port} SET orders/42 first
  sleep 3

  # The lease is over, so the next one gets the lock, with a higher token, and writes.
  NEW=$(curl -s{auth} {locks}/v1/locks/orders/42/acquire -d '{{"ttl_ms":60000}}' | credential)
  {cli}://fence:$NEW@{port} SET orders/42 new

  # The first one wakes up and writes, too late: its login is FENCED; without one it may not.
  {cli}://fence:$OLD@{port} SET orders/42 old
  {cli}://fence:$NEW@{port} GET orders/42

Ctrl-C ends it. Which lock protects which key: --rule.
"#,
            dir = folder.path().display(),
        )
    }

    /// Commands that make a bearer token, and the options of curl.
    fn bearer(&self) -> (String, String) {
        let mut options = String::new();
        if let Some(ca) = self.ca {
            options = format!(" --cacert {}", ca.display());
        }
        let Some(file) = self.access_file else { return (String::new(), options) };
        let known = format!(
            r#"  # Callers must be in {file}; this adds one:
  #   fence auth new me --allow 'use orders/*' --secret-file me.secret >> {file}
  BEARER=$(cat me.secret)

"#,
            file = file.display(),
        );
        (known, options + r#" -H "Authorization: Bearer $BEARER""#)
    }

    /// Lines by which `fence` and the SDK of another machine, or of this one, reach the services.
    fn other_machine(&self) -> String {
        let Self { locks, guard, host, .. } = self;
        let Some(ca) = self.ca else { return String::new() };
        let ca = ca.display();
        let Some(host) = host else {
            return format!(
                r#"
Programs of this machine need two lines; for others see --listen and --access-file:

  export FENCE_CA_FILE={ca}
  export FENCE_SERVER={locks} FENCE_GUARD={guard}
"#
            );
        };
        let port = |url: &str| url.rsplit_once(':').map_or("", |(_, port)| port).to_owned();
        let locks = port(locks);
        let guard = port(guard);
        format!(
            r#"
Another machine needs two lines:

  scp {host}:{ca} fence-ca.pem && export FENCE_CA_FILE=$PWD/fence-ca.pem
  export FENCE_SERVER=https://{host}:{locks} FENCE_GUARD=https://{host}:{guard}
"#
        )
    }
}
