/** Retry rules of an acquire, and of the begin of a session. Pure. */
import { isRetryableCode, knownCode } from "./problem.js";
import { pauseMs } from "./timing.js";
import type { Failure } from "./transport.js";

/** Time that a request may take beyond its wait, in milliseconds. */
const WAIT_MARGIN_MS = 5000;
/** Number of restarts with a fresh lease id without a pause. */
const RESTARTS_AT_ONCE = 5;
/** Default time beyond the wait for which an unreachable server is retried, in milliseconds. */
export const PATIENCE_MS = 5000;

/** Reaction to an attempt without a grant. */
export type AcquireStep =
  /** Send the same request, with the same lease id, after a pause. */
  | { readonly do: "retry"; readonly pauseMs: number }
  /** Send a request with a fresh lease id after a pause: the old id has ended. */
  | { readonly do: "restart"; readonly pauseMs: number }
  | { readonly do: "fail" };

/** Time and attempts of one call. */
export class Plan {
  readonly #began: number;
  readonly #waitUntil: number;
  readonly #retryUntil: number;
  #attempts = 0;
  #restarts = 0;

  constructor(nowMs: number, times: { waitMs: number; patienceMs: number }) {
    this.#began = nowMs;
    this.#waitUntil = nowMs + times.waitMs;
    this.#retryUntil = this.#waitUntil + times.patienceMs;
  }

  /** Time left of the wait in the queue, in milliseconds. */
  waitLeftMs(nowMs: number): number {
    return Math.max(this.#waitUntil - nowMs, 0);
  }

  /** Time waited in the queue, in milliseconds; zero without a wait. */
  waitedMs(nowMs: number): number {
    return this.#waitUntil > this.#began ? nowMs - this.#began : 0;
  }

  /** Time-out of a request that waits for `waitMs`. */
  timeoutMs(waitMs: number): number {
    return waitMs + WAIT_MARGIN_MS;
  }

  /** Decides the next step after a failure; `random` is the jitter of the pause. */
  after(failure: Failure, nowMs: number, random: number): AcquireStep {
    // A reply that arrives too late has taken its time already: the pause does not grow.
    const isLate = failure.type === "unusable" && failure.error?.kind === "unavailable";
    this.#attempts = isLate ? 1 : this.#attempts + 1;
    if (failure.isRefusal("lease-lost")) return this.#restart(nowMs, random);
    let isRetried = isLate || failure.type === "not-sent" || failure.type === "no-reply";
    let limit = this.#retryUntil;
    let pauseMin = 0;
    if (failure.isRefusal("lock-held")) {
      // The server's own limit may be shorter than the wait: the client waits for the rest.
      isRetried = true;
      limit = this.#waitUntil;
    } else if (failure.problem) {
      const { problem } = failure;
      isRetried = isRetryableCode(problem) || [408, 429, 502, 503, 504].includes(problem.status);
      pauseMin = failure.retryAfterMs ?? 0;
    }
    const pause = Math.max(pauseMs(this.#attempts, random), pauseMin);
    return isRetried && nowMs + pause < limit ? { do: "retry", pauseMs: pause } : { do: "fail" };
  }

  #restart(nowMs: number, random: number): AcquireStep {
    this.#restarts += 1;
    const later = this.#restarts - RESTARTS_AT_ONCE;
    const pause = later > 0 ? pauseMs(later, random) : 0;
    return nowMs + pause < this.#retryUntil ? { do: "restart", pauseMs: pause } : { do: "fail" };
  }
}

/** `true` if the attempt may have caused a grant. */
export function mayBeGranted(failure: Failure): boolean {
  if (failure.type === "not-sent") return false;
  if (!failure.problem) return true;
  return ["outcome-unknown", "internal", "unknown"].includes(knownCode(failure.problem));
}
