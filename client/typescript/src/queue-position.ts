/** Position of a waiting acquire in the queue of its lock, for people to see. */
import { nowMs, sleepUntil } from "./clock.js";
import type { Locks } from "./locks.js";

/** Position in the queue. */
export interface QueuePosition {
  /** 1 is granted next. */
  readonly position: number;
  readonly queueLength: number;
}

/** Period of the queries, in milliseconds. */
const EVERY_MS = 1000;

/**
 * Reports the position of the request with this lease id, first after a second, and again when it
 * has changed, until `signal` is aborted. Only the first 100 waiters have one. Never rejects.
 */
export async function reportPosition(
  locks: Locks,
  lock: string,
  leaseId: () => string,
  report: (position: QueuePosition) => void,
  signal: AbortSignal,
): Promise<void> {
  let last = 0;
  for (;;) {
    try {
      await sleepUntil(nowMs() + EVERY_MS, signal, { keepsAlive: false });
      const { queue, queue_length: queueLength } = await locks.show(lock, { signal });
      if (!Array.isArray(queue)) return;
      const waiters = queue as { lease_id?: string }[];
      const position = waiters.findIndex((waiter) => waiter.lease_id === leaseId()) + 1;
      if (position === 0 || position === last) continue;
      last = position;
      report({ position, queueLength });
    } catch {
      // A query that fails says nothing about the acquire.
      if (signal.aborted) return;
    }
  }
}
