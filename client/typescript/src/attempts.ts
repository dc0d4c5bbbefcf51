/**
 * Overlapping attempts: one without a reply in time is retried, and its own late reply still
 * counts.
 */
import { firstWithin } from "./abort.js";
import { random } from "./ids.js";
import { pauseMs } from "./timing.js";

/** Most attempts under way at a time; the next one drops the oldest. */
const UNDER_WAY_MAX = 4;

/** WriteOutcome of one attempt. */
export type Attempted<E> = "done" | { readonly final: E } | { readonly failed: string };

/**
 * Starts attempts until one is done or fails for all of them; returns `null` or that final failure.
 *
 * The next attempt starts `patienceMs` after the previous one if that has no reply yet, and after a
 * pause if it failed. `report` receives the number of an attempt that failed, and why. Rejects with
 * the reason of `signal`.
 */
export async function untilSuccess<E>(
  start: (signal: AbortSignal) => Promise<Attempted<E>>,
  patienceMs: () => number,
  signal: AbortSignal,
  report: (attempt: number, why: string) => void,
): Promise<E | null> {
  const underWay: Running<E>[] = [];
  try {
    for (let attempt = 1; ; attempt += 1) {
      if (underWay.length === UNDER_WAY_MAX) underWay.shift()?.drop();
      underWay.push(new Running(start));
      for (const [waitMs, isReplyDue] of [
        [patienceMs(), true],
        [pauseMs(attempt, random()), false],
      ] as const) {
        const outcomes = underWay.map((running) => running.outcome);
        const first = await firstWithin(outcomes, waitMs, signal, false);
        if (first === null) {
          if (isReplyDue) report(attempt, "no reply yet");
          continue;
        }
        const [running, ended] = first;
        underWay.splice(underWay.indexOf(running), 1);
        if (ended === "done") return null;
        if ("final" in ended) return ended.final;
        report(attempt, ended.failed);
      }
    }
  } finally {
    for (const running of underWay) running.drop();
  }
}

class Running<E> {
  readonly outcome: Promise<[Running<E>, Attempted<E>]>;
  readonly #controller = new AbortController();

  constructor(start: (signal: AbortSignal) => Promise<Attempted<E>>) {
    const failed = (error: unknown): Attempted<E> => ({ failed: String(error) });
    this.outcome = start(this.#controller.signal)
      .catch(failed)
      .then((attempted) => [this, attempted]);
  }

  drop(): void {
    this.#controller.abort();
  }
}
