/** Signals that follow others, and waits that end with them. */
import { nowMs, sleepUntil } from "./clock.js";

/** An abort controller that is also aborted with each of its parents, for their reason. */
export class ChildAbort {
  readonly #controller = new AbortController();
  readonly #parents: [AbortSignal, () => void][] = [];

  constructor(...parents: (AbortSignal | undefined)[]) {
    for (const parent of parents) {
      if (parent === undefined) continue;
      const follow = () => this.#controller.abort(parent.reason);
      if (parent.aborted) follow();
      parent.addEventListener("abort", follow, { once: true });
      this.#parents.push([parent, follow]);
    }
  }

  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  /** Follows its parents no longer. */
  unlink(): void {
    for (const [parent, follow] of this.#parents) parent.removeEventListener("abort", follow);
  }

  /** Follows its parents no longer, and aborts what is left under the signal. */
  drop(): void {
    this.unlink();
    this.#controller.abort();
  }
}

/**
 * The first of `results` within `ms`; `null` if there is none by then. Rejects with the reason of
 * `signal`.
 */
export async function firstWithin<R>(
  results: Promise<R>[],
  ms: number,
  signal: AbortSignal | undefined,
  keepsAlive = true,
): Promise<R | null> {
  const child = new ChildAbort(signal);
  const timeOut = sleepUntil(nowMs() + ms, child.signal, { keepsAlive }).then(() => null);
  // The sleep that lost the race rejects when it is dropped.
  timeOut.catch(() => {});
  try {
    return await Promise.race([...results, timeOut]);
  } finally {
    child.drop();
  }
}
