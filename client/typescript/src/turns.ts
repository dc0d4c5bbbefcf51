/** A wait longer than one request may wait: the next request takes over its queue entry. */
import { ChildAbort, firstWithin } from "./abort.js";
import { Failure } from "./transport.js";

/** Times of the requests, in milliseconds. */
export interface TurnTimes {
  /** Longest wait of one request; the server's. */
  readonly waitMaxMs: number;
  /**
   * Age of a request at which the next one is sent. It must arrive before the first one times out,
   * because the server then removes the queue entry.
   */
  readonly nextAfterMs: number;
  /** Time for the next request to arrive, after which the first one is dropped. */
  readonly overlapMs: number;
  /** Pause before the next request is sent again, after one that failed. */
  readonly againMs: number;
}

const TIMES: TurnTimes = {
  waitMaxMs: 300_000,
  nextAfterMs: 280_000,
  overlapMs: 10_000,
  againMs: 3000,
};

type Send<T> = (waitMs: number, signal: AbortSignal) => Promise<T | Failure>;

/**
 * Sends requests with one lease id in turns until one has its result; `send` gets its wait.
 *
 * The server lets a request with the lease id of a waiting one wait at the same queue entry. A next
 * request that fails ends nothing: the one before it still has the entry. Rejects with the reason
 * of `signal`.
 */
export async function untilResult<T>(
  waitLeftMs: () => number,
  send: Send<T>,
  signal?: AbortSignal,
  times: TurnTimes = TIMES,
): Promise<T | Failure> {
  const turns: Turn<T>[] = [];
  const start = () => {
    const turn = new Turn(send, Math.min(waitLeftMs(), times.waitMaxMs), signal);
    turns.push(turn);
    return turn;
  };
  try {
    let current = start();
    while (waitLeftMs() > times.waitMaxMs) {
      const early = await current.within(times.nextAfterMs, signal);
      if (early !== null) return early;
      for (;;) {
        const next = start();
        const ended = await current.orNext(next, times.overlapMs, signal);
        if (ended !== null && (!(ended.result instanceof Failure) || ended.turn === current)) {
          return ended.result;
        }
        if (ended === null) {
          current.drop();
          current = next;
          break;
        }
        const late = await current.within(times.againMs, signal);
        if (late !== null) return late;
      }
    }
    return await current.result;
  } finally {
    for (const turn of turns) turn.drop();
  }
}

class Turn<T> {
  readonly result: Promise<T | Failure>;
  readonly #abort: ChildAbort;

  constructor(send: Send<T>, waitMs: number, outer: AbortSignal | undefined) {
    this.#abort = new ChildAbort(outer);
    this.result = send(waitMs, this.#abort.signal);
    // A turn that is dropped rejects, and nothing awaits it.
    this.result.catch(() => {});
  }

  /** The result within `ms`; `null` if there is none yet. */
  within(ms: number, signal: AbortSignal | undefined): Promise<T | Failure | null> {
    return firstWithin([this.result], ms, signal);
  }

  /** The first result of this turn and the next one; `null` if there is none within `ms`. */
  orNext(
    next: Turn<T>,
    ms: number,
    signal: AbortSignal | undefined,
  ): Promise<{ turn: Turn<T>; result: T | Failure } | null> {
    const ofTurn = (turn: Turn<T>) => turn.result.then((result) => ({ turn, result }));
    return firstWithin([ofTurn(this), ofTurn(next)], ms, signal);
  }

  drop(): void {
    this.#abort.drop();
  }
}
