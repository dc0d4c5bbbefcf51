/**
 * Limits of a lease: longest hold, progress and warnings. Pure: no clock and no I/O.
 *
 * Renewal keeps a lease for as long as its process lives, even if the work in it hangs. These
 * limits tie the lease to the work.
 */
import type { Reading } from "./clock.js";
import { InvalidError, type LostReason } from "./errors.js";
import type { Window } from "./timing.js";

/** Limits that the caller set, in milliseconds; all optional. */
export interface Limits {
  /** Longest time between two calls of `lease.progress()`. Time in suspend does not count. */
  progressWithinMs?: number | undefined;
  /** Longest time for which the lock may be held, renewals included. */
  maxHoldMs?: number | undefined;
  /** Time before a loss at which `onWarning` is called; less than the other limits. */
  warnBeforeMs?: number | undefined;
}

/** A loss that is near unless a renewal succeeds or the work reports progress. */
export interface Warning {
  /** Moment of the loss on the holder's clock, in milliseconds. */
  readonly endsAtMs: number;
  readonly why: LostReason;
}

/** Checks that each limit is at least 1 ms and that the warning comes after the start. */
export function checkLimits(limits: Limits): void {
  const { progressWithinMs, maxHoldMs, warnBeforeMs } = limits;
  for (const [name, limit] of Object.entries({ progressWithinMs, maxHoldMs, warnBeforeMs })) {
    if (limit !== undefined && !(Number.isSafeInteger(limit) && limit >= 1)) {
      throw new InvalidError(`${name} ${limit} must be a whole number of at least 1 ms`);
    }
  }
  for (const [name, limit] of Object.entries({ progressWithinMs, maxHoldMs })) {
    if (limit !== undefined && warnBeforeMs !== undefined && warnBeforeMs >= limit) {
      throw new InvalidError(
        `warnBeforeMs ${warnBeforeMs} must be less than ${name}, which is ${limit}: the warning ` +
          "would come at the start",
      );
    }
  }
}

/** State of a held lease with respect to its limits. */
export class Hold {
  readonly #limits: Limits;
  readonly #began: number;
  #progressed: Reading;

  /** Starts a hold, which counts as progress. */
  constructor(limits: Limits, now: Reading) {
    this.#limits = limits;
    this.#began = now.atMs;
    this.#progressed = now;
  }

  /** Records that the work makes progress. */
  progress(now: Reading): void {
    this.#progressed = now;
  }

  /** The loss that comes next if nothing is renewed or reported. */
  nextEnd(window: Window, now: Reading): Warning {
    return this.#ends(window, now).reduce((first, end) =>
      end.endsAtMs < first.endsAtMs ? end : first,
    );
  }

  /**
   * Moment of the next warning, and the warning; `null` if none is asked for. Of failing renewals
   * it comes no earlier than when half of the trusted time is gone: every renewal moves that end.
   */
  warnAt(window: Window, now: Reading, warned: WarnedEnds): [number, Warning] | null {
    const beforeMs = this.#limits.warnBeforeMs;
    if (beforeMs === undefined) return null;
    const due = this.#ends(window, now)
      .filter((end) => warned.isNew(end))
      .map((end): [number, Warning] => {
        const at = end.endsAtMs - beforeMs;
        return [end.why.reason === "deadline" ? Math.max(at, window.wornAt) : at, end];
      });
    return due.reduce<[number, Warning] | null>(
      (first, next) => (first === null || next[0] < first[0] ? next : first),
      null,
    );
  }

  #ends(window: Window, now: Reading): Warning[] {
    const { progressWithinMs, maxHoldMs } = this.#limits;
    const ends: Warning[] = [{ endsAtMs: window.deadline, why: { reason: "deadline" } }];
    if (maxHoldMs !== undefined) {
      const why: LostReason = { reason: "held-too-long", maxMs: maxHoldMs };
      ends.push({ endsAtMs: this.#began + maxHoldMs, why });
    }
    if (progressWithinMs !== undefined) {
      // The work could not report in suspend, which stops neither deadline nor longest hold.
      const sleptMs = now.suspendedMs - this.#progressed.suspendedMs;
      const why: LostReason = { reason: "no-progress", withinMs: progressWithinMs };
      ends.push({ endsAtMs: this.#progressed.atMs + progressWithinMs + sleptMs, why });
    }
    return ends;
  }
}

/** Ends that were warned of: each gets one warning, and another one only when it has moved. */
export class WarnedEnds {
  readonly #ends = new Map<string, number>();

  record(warning: Warning): void {
    this.#ends.set(warning.why.reason, warning.endsAtMs);
  }

  isNew(end: Warning): boolean {
    return this.#ends.get(end.why.reason) !== end.endsAtMs;
  }
}
