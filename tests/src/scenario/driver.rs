//! The driver of one SDK: a process that does what a scenario requests.
//!
//! It reads one JSON object a line on stdin and writes one a line on stdout; stderr is free text.
//! Requests are handled concurrently: a slow one does not hold up others.
//!
//! ```json
//! {"id": 7, "op": "check", "lease": "a"}
//! {"id": 7, "ok": {"remaining_ms": 12000}}
//! {"id": 7, "error": {"kind": "lease-lost", "code": null, "reason": "deadline", "retryable": false, "message": "…"}}
//! {"id": 7, "unsupported": true}
//! {"event": "lost", "lease": "a", "reason": "ended", "end": "revoked"}
//! ```
//!
//! `kind` is a kind of [`fence_client::ErrorKind`] in kebab case, `cancelled`, or `body` if the
//! error is that of the work itself; `code` is that of the problem document. `reason` is
//! `deadline`, `ended`, `no-progress`, `held-too-long` or `forked`, with `end` as the server gave
//! it: `expired`, `superseded`, `released`, `revoked`, `session-ended`. Names of clients, leases,
//! sessions and so on are chosen by the request.
//!
//! | op | request | reply |
//! | --- | --- | --- |
//! | `client` | client, server, guard, owner, incarnation, token, token_file, ca_file, cert, key, insecure_http; or `env`, an object of variables to configure it by | |
//! | `lock` | client, lease, name, ttl_ms, wait_ms, mode, size, metadata, min_token, takeover, session, progress_within_ms, max_hold_ms | token, lease_id, lock, remaining_ms, fencing_token, fencing_credential |
//! | `lock_all` | client, lease, names, ttl_ms, wait_ms; the leases are named `LEASE:NAME` | leases: name, token, lease_id |
//! | `cancel` | target: the id of a request | |
//! | `run` | client, lease, name, ttl_ms, wait_ms, body, body_ms; the block of the language. The body waits (`wait`) or finishes after body_ms (`finish`), fails (`fail`), blocks its thread (`block`) | body: `finished` or `cancelled` |
//! | `check`, `release`, `progress` | lease | `check`: remaining_ms |
//! | `put` | lease, key, value, if_match, if_absent, op_id | etag |
//! | `get`, `delete` | lease, key | `get`: value and etag, null if absent |
//! | `block_loop` | ms: blocks the loop or the main thread | |
//! | `fork_check` | lease; Python | parent: `live`, child: `lost` |
//! | `session` | client, session, ttl_ms | session_id |
//! | `session_check`, `session_end` | session | `session_end`: leases |
//! | `campaign` | client, leadership, name, ttl_ms, wait_ms | token |
//! | `leader` | client, name | owner, token; null if vacant |
//! | `resign` | leadership | |
//! | `events` | client, stream, prefix; then events `{"event": "item", "stream": …, "kind": …, "lock": …}` | |
//! | `events_close` | stream | |
//! | `show` | client, name | state, owner |
//! | `revoke` | client, name, reason | |
//! | `window` | sent_at_ms, ttl_ms | renew_at, deadline, kill_by, expires_at |
//! | `pause` | attempt, random | ms |
//! | `credential` | tokens: header values | credential |
//! | `parse_token` | header | token, lock, lease |
//! | `quit` | | and ends with exit code 0 |
