/**
 * The holder's clock, which must never run slow: it counts time in suspend as well.
 *
 * `process.hrtime` stops while a Linux machine is suspended, so a holder that trusted it alone
 * would resume and believe that no time has passed. The difference to a second clock shows the
 * suspend: on Linux `os.uptime()`, elsewhere the wall clock, whose forward steps count as suspend
 * too. A movement below the bound of the second clock (50 ms on Linux, else 1.1 s) is not seen;
 * fencing covers the rest.
 */
import { existsSync } from "node:fs";
import { uptime } from "node:os";

/** A reading of the holder's clock. */
export interface Reading {
  /** Whole milliseconds since an arbitrary moment; comparable in this process alone. */
  readonly atMs: number;
  /** Total time in suspend seen by this clock until then, in milliseconds. */
  readonly suspendedMs: number;
}

/** Most reads of the two clocks, which are repeated if the process was stopped between them. */
const READS_MAX = 8;
/** Longest time between two reads that counts as none, in milliseconds. */
const READ_MS_MAX = 5;
/** Longest sleep without a look at the clock: timers of the runtime may stop in a suspend. */
const SLICE_MS = 1000;

/** A clock that runs in suspend, from one that may stop (`awakeMs`) and one that never does. */
export class HolderClock {
  readonly #awakeMs: () => number;
  readonly #alwaysMs: () => number;
  readonly #boundMs: number;
  #suspendedMs = 0;
  #offsetMs: number | undefined;

  constructor(awakeMs: () => number, alwaysMs: () => number, boundMs: number) {
    this.#awakeMs = awakeMs;
    this.#alwaysMs = alwaysMs;
    this.#boundMs = boundMs;
  }

  /** Reads the time; never goes back. */
  reading(): Reading {
    let awakeMs = this.#awakeMs();
    let offsetMs = 0;
    for (let read = 0; read < READS_MAX; read += 1) {
      offsetMs = this.#alwaysMs() - awakeMs;
      const afterMs = this.#awakeMs();
      const isWhole = afterMs - awakeMs <= READ_MS_MAX;
      awakeMs = afterMs;
      if (isWhole) break;
    }
    this.#offsetMs ??= offsetMs;
    const movedMs = offsetMs - this.#offsetMs;
    if (Math.abs(movedMs) > this.#boundMs) {
      this.#suspendedMs += Math.max(movedMs, 0);
      this.#offsetMs = offsetMs;
    }
    const suspendedMs = Math.floor(this.#suspendedMs);
    return { atMs: Math.floor(awakeMs + this.#suspendedMs), suspendedMs };
  }
}

function clockOfThisSystem(): HolderClock {
  const awakeMs = () => Number(process.hrtime.bigint() / 1000n) / 1000;
  // Without that file `os.uptime` has whole seconds.
  return existsSync("/proc/uptime")
    ? new HolderClock(awakeMs, () => uptime() * 1000, 50)
    : new HolderClock(awakeMs, Date.now, 1100);
}

const clock = clockOfThisSystem();

/** Reads the holder's clock. */
export function reading(): Reading {
  return clock.reading();
}

/** Current time of the holder's clock, in milliseconds. */
export function nowMs(): number {
  return clock.reading().atMs;
}

/**
 * Waits until the holder's clock has reached `atMs`. Rejects with the reason of `signal` if that is
 * aborted first. With `keepsAlive: false` the wait does not keep the process alive.
 */
export async function sleepUntil(
  atMs: number,
  signal?: AbortSignal,
  { keepsAlive = true } = {},
): Promise<void> {
  for (;;) {
    signal?.throwIfAborted();
    const leftMs = atMs - nowMs();
    if (leftMs <= 0) return;
    await timer(Math.min(leftMs, SLICE_MS), signal, keepsAlive);
  }
}

/** Waits for `ms` milliseconds; as {@link sleepUntil}. */
export function sleep(ms: number, signal?: AbortSignal): Promise<void> {
  return sleepUntil(nowMs() + ms, signal);
}

function timer(ms: number, signal: AbortSignal | undefined, keepsAlive: boolean): Promise<void> {
  return new Promise((resolve) => {
    const end = () => {
      clearTimeout(handle);
      signal?.removeEventListener("abort", end);
      resolve();
    };
    const handle = setTimeout(end, ms);
    if (!keepsAlive) handle.unref();
    signal?.addEventListener("abort", end, { once: true });
  });
}
