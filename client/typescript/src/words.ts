/** Texts of the servers, which speak of headers and fields, in the words of this package. Pure. */

/** A word of HTTP, and what it is here; longer ones come first. */
const WORDS: readonly (readonly [string, string])[] = [
  ["takeover_of", "takeoverOf"],
  ["min_token", "minToken"],
  ["ttl_ms", "ttlMs"],
  ["wait_ms", "waitMs"],
  ["session_id", "session id"],
  ["lease_id", "lease id"],
  ["fencing_token", "fencingToken"],
  ["the Fencing-Token header", "the fencingToken"],
  ["Fencing-Token header", "fencingToken"],
  ["Authorization header", "bearer token"],
  ["Idempotency-Key", "opId"],
  ["after Retry-After", "later"],
  ["at least Retry-After", "then try again"],
];

const ADDRESSES =
  "Check the addresses of server and guard: another program or an older server may run there.";

/** The next step by the code, in place of one that names headers and fields. */
const HINTS: ReadonlyMap<string, string> = new Map([
  ["malformed-token", "Use the fencingToken of the lease, unchanged."],
  [
    "unauthorized",
    "Give a token of the server's access file: token, or authFile (FENCE_AUTH_FILE).",
  ],
  ["bad-signature", "Use a lease of this guard's lock server; both need the same key file."],
  ["not-found", ADDRESSES],
  ["method-not-allowed", ADDRESSES],
  ["unsupported-media-type", ADDRESSES],
  ["misdirected-request", "Name the server by address, localhost, or one of its --host-name."],
  ["lease-id-conflict", "Acquire again."],
  ["lease-lost", "Stop the work that the lease protected, then acquire again."],
  ["op-id-reused", "Use a fresh opId for every operation, and repeat it unchanged."],
  ["lock-held", "Wait in the queue with waitMs."],
  ["token-required", "Acquire the lock that the detail names, and pass its lease."],
  ["guard-unsealed", "Try again; an operator must check the guards that are named."],
  ["outcome-unknown", "It may have been done: read the state before you repeat it."],
]);

/** Hint of a lock that was waited for. */
const LONGER = "Wait for longer with waitMs.";

const OF_HTTP = new RegExp(
  "_(ms|id|of|token)\\b|\\bheader|Retry-After|Authorization|Idempotency-Key|content-type|" +
    "Allow|Host|http-api|\\bGET\\b",
);

/** The text without words of HTTP, and with the number of waiters in words. */
export function inWords(text: string): string {
  const worded = WORDS.reduce((so, [word, ours]) => so.replaceAll(word, ours), text);
  return worded.replace(/; (\d+) wait$/, (_, count: string) => {
    if (count === "0") return "";
    return count === "1" ? "; 1 other request waits" : `; ${count} other requests wait`;
  });
}

/** The next step for the caller; `waitedMs` is above zero if the lock was waited for. */
export function hintInWords(code: string, hint: string, waitedMs = 0): string {
  if (code === "lock-held" && waitedMs > 0) return LONGER;
  return OF_HTTP.test(hint) ? (HINTS.get(code) ?? inWords(hint)) : hint;
}
