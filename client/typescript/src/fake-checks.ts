/** Limits of the real lock server, which the fake one checks before its rules. */
import type { FakeAcquire, FakeWish } from "./fake-lease.js";
import { FakeRefusal } from "./fake-reply.js";
import { checkLockName, LOCKS_MAX, TOKEN_MAX } from "./names.js";

const TTL_MS_MIN = 100;
const TTL_MS_MAX = 3_600_000;
const WAIT_MS_MAX = 300_000;
const EPOCH_2025_MS = Date.UTC(2025, 0, 1);
/** Distance above the clock to which a request may lift the tokens: an hour of a token a µs. */
const LIFT_MAX = 3_600_000_000;

function invalid(detail: string): FakeRefusal {
  return new FakeRefusal(400, "invalid-request", detail);
}

/** Checks a time to live that a request gives. */
export function checkFakeTtl(ttlMs: number | undefined): void {
  if (ttlMs === undefined || (ttlMs >= TTL_MS_MIN && ttlMs <= TTL_MS_MAX)) return;
  const range = `this server takes ${TTL_MS_MIN} to ${TTL_MS_MAX}`;
  throw invalid(`ttl_ms ${ttlMs} is out of range: ${range}`);
}

/** Checks an acquire of one lock or several. */
export function checkFakeAcquire(wishes: readonly FakeWish[], request: FakeAcquire): void {
  if (wishes.length < 1 || wishes.length > LOCKS_MAX) {
    throw invalid(`locks has ${wishes.length} entries: one request acquires 1 to ${LOCKS_MAX}`);
  }
  const seen = new Set<string>();
  for (const { lock, min_token: minToken } of wishes) {
    checkLockName(lock);
    if (seen.has(lock)) {
      throw invalid(`lock ${lock} is named twice: one request has one lease of each lock`);
    }
    seen.add(lock);
    if (minToken !== undefined) checkMinToken(minToken);
  }
  const { ttl_ms: ttlMs, wait_ms: waitMs = 0 } = request;
  checkFakeTtl(ttlMs);
  if (!(waitMs >= 0 && waitMs <= WAIT_MS_MAX)) {
    throw invalid(`wait_ms ${waitMs} is out of range: at most ${WAIT_MS_MAX}`);
  }
  checkTakeover(request);
}

function checkMinToken(minToken: number): void {
  const ceiling = Math.min((Date.now() - EPOCH_2025_MS) * 1000 + LIFT_MAX, TOKEN_MAX - 1);
  if (minToken >= 1 && minToken <= ceiling) return;
  const rule = `no guard can have seen more than ${ceiling}`;
  throw invalid(`min_token ${minToken} is out of range: ${rule}`);
}

function checkTakeover(request: FakeAcquire): void {
  const { takeover, takeover_of: of, incarnation, lease_id: id, owner, mode } = request;
  if (!takeover && of === undefined) return;
  if (takeover && of !== undefined) {
    throw invalid("takeover and takeover_of exclude each other: an earlier self, or one lease");
  }
  if (takeover && incarnation === undefined) {
    throw invalid("takeover needs incarnation: a text that every restart of the owner changes");
  }
  if (of !== undefined && of === id) {
    throw invalid(`takeover_of ${of} is the lease_id of this request; the grant needs a new one`);
  }
  if (owner === undefined) throw invalid("a takeover needs owner: it never crosses owners");
  if (mode !== undefined && mode !== "exclusive") {
    throw invalid(`a takeover is exclusive, and mode ${mode} is not`);
  }
}
