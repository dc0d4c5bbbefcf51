/**
 * A change that is sent until its outcome is known: an attempt that may have taken effect is never
 * reported as undone because a retry failed.
 */
import { nowMs, sleep } from "./clock.js";
import { type FencepostError, OutcomeUnknownError } from "./errors.js";
import { random } from "./ids.js";
import { errorOf, isRetryableCode, knownCode, UNKNOWN } from "./problem.js";
import { pauseMs } from "./timing.js";
import { Failure, REPLAYED } from "./transport.js";

/** Attempts of one change so far. */
export class SentChange {
  /** Failure of the first attempt that may have taken effect. */
  #unknownCause: string | null = null;
  #arrived = false;

  /** `true` if an attempt may have taken effect. */
  get isUnknown(): boolean {
    return this.#unknownCause !== null;
  }

  /** `true` if a server received an attempt, whatever its reply. */
  get arrived(): boolean {
    return this.#arrived;
  }

  /** Records an attempt that failed. */
  record(failure: Failure): void {
    this.#arrived ||= failure.type !== "not-sent";
    if (isOutcomeUnknown(failure)) this.#unknownCause ??= failure.reason;
  }

  /**
   * Error for the caller if the last attempt failed. An unknown outcome of an earlier attempt stays
   * unknown, unless the server recognised the retry and replied with the outcome of the first.
   */
  error(what: string, last: Failure): FencepostError {
    const isAnswer = last.problem?.[REPLAYED] === true;
    if (this.#unknownCause === null || isAnswer) return last.toError(what, "changes");
    if (isPassing(last)) return this.#unknown(what, last.toError(what, "changes"));
    if (!last.problem) return last.toError(what, "changes");
    return errorOf(last.problem, last.retryAfterMs, what, { outcome: "unknown" });
  }

  /** Error for the caller if the client itself refuses the next attempt by `error`. */
  refusedHere(what: string, error: unknown): unknown {
    return this.isUnknown ? this.#unknown(what, error) : error;
  }

  #unknown(what: string, cause: unknown): FencepostError {
    const last = cause instanceof Error ? cause.message : String(cause);
    const why = `${this.#unknownCause}; the retry failed: ${last}`;
    const message = `${what}: no reply, so the outcome is unknown: ${why}`;
    return new OutcomeUnknownError(message, { cause });
  }
}

/**
 * Sends a change, and retries it for `patienceMs` while the failures say nothing about its outcome.
 * `null` if a server received an earlier attempt of this call and the refusal of a later one
 * `showsDone`. Rejects with the reason of `signal` if that is aborted.
 */
export async function untilSettled<T>(
  what: string,
  patienceMs: number,
  send: () => Promise<T | Failure>,
  showsDone: (failure: Failure) => boolean,
  signal: AbortSignal | undefined,
): Promise<T | null> {
  const untilMs = nowMs() + patienceMs;
  const sent = new SentChange();
  for (let attempt = 1; ; attempt += 1) {
    const reply = await send();
    if (!(reply instanceof Failure)) return reply;
    if (sent.arrived && showsDone(reply)) return null;
    const pause = pauseMs(attempt, random());
    if (!isPassing(reply) || nowMs() + pause >= untilMs) throw sent.error(what, reply);
    sent.record(reply);
    await sleep(pause, signal);
  }
}

/** `true` if a retry can succeed. */
export function isPassing(failure: Failure): boolean {
  return isOutcomeUnknown(failure) || isInconclusive(failure);
}

/** `true` if the attempt may have taken effect. */
export function isOutcomeUnknown(failure: Failure): boolean {
  if (failure.type === "no-reply") return true;
  const { problem } = failure;
  if (!problem) return false;
  const code = knownCode(problem);
  return code === "outcome-unknown" || (code === UNKNOWN && problem.status === 504);
}

/** `true` if the failure concerns this attempt alone, and says nothing about earlier ones. */
function isInconclusive({ type, problem }: Failure): boolean {
  if (type === "not-sent") return true;
  if (!problem) return false;
  return isRetryableCode(problem) || [408, 429, 502, 503, 504].includes(problem.status);
}
