/**
 * Background renewal: at a third of the time to live, retried until it succeeds or the lease is
 * lost. It does not keep the process alive.
 */
import { ChildAbort } from "./abort.js";
import { type Attempted, untilSuccess } from "./attempts.js";
import { nowMs, sleepUntil } from "./clock.js";
import type { LostReason } from "./errors.js";
import type { Locks } from "./locks.js";
import type { Log } from "./log.js";
import { endReason } from "./problem.js";
import { Window } from "./timing.js";
import { Failure } from "./transport.js";
import type { Trust } from "./trust.js";

/** One way to extend a lease or a session. */
export interface Extension {
  readonly trust: Trust;
  readonly log: Log;
  /** Name of the attempts in the log: `a renewal` or `a heartbeat`. */
  readonly name: string;
  /** Sends one attempt; `sent` holds its time-out and its signal. */
  attempt(sent: { timeoutMs: number; signal: AbortSignal }): Promise<Attempted<LostReason>>;
}

/** Extends until the trust is lost or `signal` is aborted. Never rejects. */
export async function keepExtending(extension: Extension, signal: AbortSignal): Promise<void> {
  const { trust, log, name } = extension;
  const end = new ChildAbort(signal, trust.signal);
  try {
    for (;;) {
      await sleepUntil(trust.window.renewAt, end.signal, { keepsAlive: false });
      const lost = await untilSuccess(
        (attempt) =>
          extension.attempt({
            timeoutMs: trust.window.replyTimeoutMs(nowMs()),
            signal: attempt,
          }),
        () => trust.window.renewalTimeoutMs(nowMs()),
        end.signal,
        (attempt, why) => {
          const message = `${name} of ${trust.what} failed, retrying (attempt ${attempt}): ${why}`;
          log(attempt === 1 ? "warn" : "debug", message);
        },
      );
      if (lost !== null) trust.lose(lost);
    }
  } catch {
    // Only the abort rejects: the lease was lost or ended.
  } finally {
    end.unlink();
  }
}

/** Renewal of one lease. */
export class LeaseRenewal implements Extension {
  readonly name = "a renewal";

  constructor(
    readonly trust: Trust,
    readonly log: Log,
    private readonly locks: Locks,
    private readonly lease: { lock: string; leaseId: string; token: number; ttlMs: number },
  ) {}

  async attempt(sent: { timeoutMs: number; signal: AbortSignal }): Promise<Attempted<LostReason>> {
    const { lock, leaseId, token, ttlMs } = this.lease;
    // Taken before the send: the window must end before the server's.
    const sentAtMs = nowMs();
    const reply = await this.locks.renewOnce(lock, leaseId, { ...sent, keepsAlive: false });
    if (reply instanceof Failure) {
      const { problem } = reply;
      if (problem?.code !== "lease-lost") return { failed: reply.reason };
      return { final: { reason: "ended", ended: endReason(problem) } };
    }
    if (reply.token !== token) {
      // A store that lost its memory granted a late retry of the acquire as a new lease. Another
      // client may have held the lock in between.
      return { final: { reason: "ended", ended: "superseded" } };
    }
    // A reply may not extend the lease beyond the requested time to live.
    this.trust.extend(new Window(sentAtMs, Math.min(reply.ttl_ms, ttlMs)));
    return "done";
  }
}
