/** The attempts of one acquire: at most one grant a call, even if requests or replies are lost. */
import { mayBeGranted, Plan } from "./acquire-plan.js";
import { nowMs, sleep } from "./clock.js";
import { LeaseLostError, UnavailableError } from "./errors.js";
import { random, randomId } from "./ids.js";
import type { Spec } from "./lock-spec.js";
import { type AcquireAllRequest, CALL_MS, type Locks } from "./locks.js";
import type { Background, Log } from "./log.js";
import { errorOf } from "./problem.js";
import { reportPosition } from "./queue-position.js";
import { SentChange } from "./sent-change.js";
import { TTL_MS_MAX, Window } from "./timing.js";
import { Failure } from "./transport.js";
import { untilResult } from "./turns.js";
import type { LeaseReply } from "./wire.js";

/** What the attempts use. */
export interface GrantContext {
  readonly locks: Locks;
  readonly background: Background;
  readonly log: Log;
}

/** A grant, and the window in which it is trusted. */
export interface Granted {
  readonly reply: LeaseReply;
  readonly window: Window;
}

/** Acquires the lock of `spec`. Rejects with the reason of its signal if that is aborted. */
export async function obtain(context: GrantContext, spec: Spec): Promise<Granted> {
  const ttlMs = spec.session === undefined ? spec.ttlMs : TTL_MS_MAX;
  const tries = new Tries(context, [spec.lock], ttlMs, spec.times, spec.signal);
  const waiting = new AbortController();
  if (spec.onQueued && spec.times.waitMs > 0) {
    const id = () => tries.leaseId;
    void reportPosition(context.locks, spec.lock, id, spec.onQueued, waiting.signal);
  }
  try {
    return await granted(context, spec, tries);
  } finally {
    waiting.abort();
  }
}

/** The attempts for the lock of `spec`. */
function granted(context: GrantContext, spec: Spec, tries: Tries): Promise<Granted> {
  let unconfirmed: LeaseReply | null = null;
  return tries.until(async (leaseId, isRestarted) => {
    if (isRestarted) unconfirmed = null;
    if (unconfirmed) return confirm(context, spec, unconfirmed);
    // Taken before the send: the time to live in the reply is what remained at the server.
    const sentAtMs = nowMs();
    const reply = await untilResult(
      () => tries.plan.waitLeftMs(nowMs()),
      (waitMs, signal) => {
        const sending = { timeoutMs: tries.plan.timeoutMs(waitMs), signal };
        return context.locks.acquire(spec.lock, body(spec, leaseId, waitMs), sending);
      },
      spec.signal,
    );
    if (reply instanceof Failure) return reply;
    const window = windowOf(sentAtMs, reply, spec);
    // The trust in a lease of a session is the trust in its session.
    if (spec.session !== undefined || !window.isWorn(nowMs())) return { reply, window };
    unconfirmed = reply;
    return confirm(context, spec, reply);
  });
}

/** Acquires several locks, all in one step or none; the grants are in the order of the request. */
export async function obtainAll(
  context: GrantContext,
  request: Omit<AcquireAllRequest, "lease_id" | "wait_ms">,
  times: { waitMs: number; patienceMs: number },
  signal: AbortSignal | undefined,
): Promise<LeaseReply[]> {
  const names = request.locks.map((wish) => wish.lock);
  const tries = new Tries(context, names, TTL_MS_MAX, times, signal);
  return tries.until((leaseId) =>
    untilResult(
      () => tries.plan.waitLeftMs(nowMs()),
      (waitMs, turn) => {
        const sending = { timeoutMs: tries.plan.timeoutMs(waitMs), signal: turn };
        const all = { ...request, lease_id: leaseId, wait_ms: waitMs };
        return context.locks.acquireAll(all, sending);
      },
      signal,
    ),
  );
}

function body(spec: Spec, leaseId: string, waitMs: number) {
  return {
    ttl_ms: spec.ttlMs,
    wait_ms: waitMs,
    owner: spec.owner,
    lease_id: leaseId,
    metadata: spec.metadata,
    min_token: spec.minToken,
    session_id: spec.session,
    // Always sent, so that a later incarnation of this owner can take the lock over.
    incarnation: spec.incarnation,
    takeover: spec.takeover || undefined,
    takeover_of: spec.takeoverOf,
    mode: spec.mode === "exclusive" ? undefined : spec.mode,
    size: spec.size,
  };
}

/** Window of a reply; the server may not extend the requested time to live. */
function windowOf(sentAtMs: number, reply: LeaseReply, spec: Spec): Window {
  return new Window(sentAtMs, Math.min(reply.ttl_ms, spec.ttlMs));
}

/**
 * Renews a grant before it is used, because less than half of its window is left: the acquire
 * waited in the queue, and how much of that time passed before the grant is unknown here.
 */
async function confirm(
  { locks }: GrantContext,
  spec: Spec,
  granted: LeaseReply,
): Promise<Granted | Failure> {
  const sentAtMs = nowMs();
  const timeoutMs = Math.min(CALL_MS, spec.ttlMs * 2);
  const sending = { timeoutMs, signal: spec.signal };
  const renewed = await locks.renewOnce(spec.lock, granted.lease_id, sending);
  if (renewed instanceof Failure) return renewed;
  const window = windowOf(sentAtMs, renewed, spec);
  if (!window.isLive(nowMs())) {
    return Failure.unusable(
      new UnavailableError(
        `acquire ${spec.lock}: replies take too long for a time to live of ${spec.ttlMs} ms: the ` +
          "lease was granted and renewed, and each time 0.8 of that had passed before the reply " +
          "arrived; retry, or ask for a longer time to live",
      ),
    );
  }
  return { reply: { ...renewed, waited_ms: granted.waited_ms }, window };
}

/**
 * The attempts of one call, and the lease id that may have been granted. If the call ends without a
 * grant, that id is released in the background, so that it does not hold the locks until it
 * expires. If a release arrives before its acquire, the server records the id as ended.
 */
class Tries {
  readonly plan: Plan;
  readonly #context: GrantContext;
  readonly #locks: string[];
  /** Life of a grant that is not renewed; a lease of a session lasts as long as that. */
  readonly #ttlMs: number;
  readonly #signal: AbortSignal | undefined;
  /** Id of the request, which may have been granted. */
  leaseId = randomId();
  #mayBeGranted = false;
  #sent = new SentChange();

  constructor(
    context: GrantContext,
    locks: string[],
    ttlMs: number,
    times: { waitMs: number; patienceMs: number },
    signal: AbortSignal | undefined,
  ) {
    this.plan = new Plan(nowMs(), times);
    this.#context = context;
    this.#locks = locks;
    this.#ttlMs = ttlMs;
    this.#signal = signal;
  }

  /** Repeats `attempt` as the plan says until it has a grant. */
  async until<T>(
    attempt: (leaseId: string, isRestarted: boolean) => Promise<T | Failure>,
  ): Promise<T> {
    let isRestarted = false;
    try {
      for (;;) {
        const before = this.#mayBeGranted;
        this.#mayBeGranted = true;
        const result = await attempt(this.leaseId, isRestarted);
        if (!(result instanceof Failure)) {
          this.#mayBeGranted = false;
          return result;
        }
        this.#mayBeGranted = before || mayBeGranted(result);
        isRestarted = await this.#next(result);
      }
    } finally {
      if (this.#mayBeGranted) this.#releaseInBackground();
    }
  }

  /** Prepares the next attempt, after a pause; `true` if it has a fresh lease id. */
  async #next(failure: Failure): Promise<boolean> {
    const step = this.plan.after(failure, nowMs(), random());
    const what = `acquire ${this.#names(failure)}`;
    switch (step.do) {
      case "retry":
        this.#context.log("debug", `retrying to ${what}: ${failure.reason}`);
        this.#sent.record(failure);
        await sleep(step.pauseMs, this.#signal);
        return false;
      case "restart":
        await sleep(step.pauseMs, this.#signal);
        await this.#renewId();
        return true;
      case "fail": {
        const { problem, retryAfterMs } = failure;
        if (problem?.code !== "lock-held") throw this.#sent.error(what, failure);
        // The server replied that this lease id does not hold the lock.
        throw errorOf(problem, retryAfterMs, what, { waitedMs: this.plan.waitedMs(nowMs()) });
      }
    }
  }

  /**
   * Replaces the lease id after it has ended on one of the locks. Leases on the others may be live
   * and would block the next request, which has another id: they are released first.
   */
  async #renewId(): Promise<void> {
    if (this.#mayBeGranted && this.#locks.length > 1) {
      for (const lock of this.#locks) await this.#release(lock);
    }
    this.#sent = new SentChange();
    this.leaseId = randomId();
    this.#mayBeGranted = false;
  }

  async #release(lock: string, signal?: AbortSignal): Promise<void> {
    try {
      await this.#context.locks.release(lock, this.leaseId, { signal });
    } catch (error) {
      if (!(error instanceof LeaseLostError)) throw error;
    }
  }

  #releaseInBackground(): void {
    const { background, log } = this.#context;
    for (const lock of this.#locks) {
      const released = this.#release(lock, AbortSignal.timeout(this.#ttlMs)).catch(
        (error: unknown) => {
          log("debug", `a grant of ${lock} that was given up was not released: ${String(error)}`);
        },
      );
      background.add(released);
    }
  }

  /** Names of the locks for messages: the one that was refused, or at most three. */
  #names({ problem }: Failure): string {
    const few = this.#locks.slice(0, 3).join(", ");
    const rest = this.#locks.length - 3;
    const names = rest > 0 ? `${few} and ${rest} more` : few;
    const refused = problem?.["lock"];
    return this.#locks.length > 1 && typeof refused === "string"
      ? `${refused} (one of ${names})`
      : names;
  }
}
