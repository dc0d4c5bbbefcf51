/** Leader election: an election is a lock, and its leader is the holder. */
import { firstWithin } from "./abort.js";
import { nowMs, sleep } from "./clock.js";
import { type ErrorKind, FencepostError } from "./errors.js";
import type { LockEvent } from "./event-parser.js";
import { EventStream, isPassing, type StreamItem } from "./events.js";
import { random } from "./ids.js";
import type { Lease } from "./lease.js";
import { CAMPAIGN_OPTIONS, type LeaseOptions, type LockOptions } from "./lock-spec.js";
import { CALL_OPTIONS, type CallOptions, type Locks } from "./locks.js";
import { checkLockName } from "./names.js";
import { checkOptions, checkWork } from "./options.js";
import { type RunContext, runUnder } from "./run.js";
import { pauseMs } from "./timing.js";
import type { Endpoint } from "./transport.js";
import type { Holder } from "./wire.js";

/**
 * Time of one round of a campaign, in milliseconds. Shorter than the longest wait of the protocol,
 * because a candidate whose server vanished without closing the connection notices at its end.
 */
const ROUND_MS = 60_000;
const ROUND_MS_MIN = 1000;
/** Period of an observer's queries without an event, in milliseconds. */
const REFRESH_MS = 60_000;

/** Options of a candidate. */
export interface CampaignOptions extends LeaseOptions {
  /** Approximate time for which an unreachable server is retried; unlimited by default. */
  patienceMs?: number;
  /** Ends the campaign: the candidate leaves the queue. */
  signal?: AbortSignal;
}

/** Leader of an election, as an observer sees it. */
export interface Leader {
  readonly owner: string;
  /** The token of this term: higher than that of every earlier term. */
  readonly token: number;
  readonly leaseId: string;
  /** The JSON of the candidate's `metadata`. */
  readonly metadata: unknown;
}

/** State of an election: its leader, a vacant office, or a server that is unreachable. */
export type Observed =
  | { readonly state: "leader"; readonly leader: Leader }
  | { readonly state: "vacant" }
  | { readonly state: "unknown"; readonly error: FencepostError };

/** What an election uses. */
export interface ElectionContext extends RunContext {
  readonly locks: Locks;
  readonly endpoint: Endpoint;
  lock(name: string, options: LockOptions): Promise<Lease>;
}

/** Election to campaign in or to observe; see `client.election`. */
export class Election {
  readonly name: string;
  readonly #context: ElectionContext;

  /** @internal */
  constructor(context: ElectionContext, name: string) {
    this.#context = context;
    this.name = checkLockName(name);
  }

  /**
   * Waits until this client is the leader, and returns the leader's lease: its `token` numbers the
   * term, its `signal` is aborted at the end of the term, and `release` resigns. Candidates are
   * elected in the order of the queue, and each queues anew every minute.
   */
  async campaign(options: CampaignOptions = {}): Promise<Lease> {
    checkOptions("campaign", options, CAMPAIGN_OPTIONS);
    const { patienceMs, ...rest } = options;
    const roundMs = Math.min(Math.max(patienceMs ?? ROUND_MS, ROUND_MS_MIN), ROUND_MS);
    const patience = new Patience(patienceMs);
    for (;;) {
      try {
        return await this.#context.lock(this.name, {
          ...rest,
          waitMs: roundMs,
          patienceMs: 0,
        });
      } catch (error) {
        if (!(error instanceof FencepostError)) throw error;
        const pause = patience.pauseAfter(error.kind, nowMs(), random());
        if (pause === null) throw error;
        await sleep(pause, options.signal);
      }
    }
  }

  /** Campaigns, runs `work` as the leader, then resigns; otherwise as `client.withLock`. */
  async lead<T>(
    options: CampaignOptions,
    work: (lease: Lease, signal: AbortSignal) => T | Promise<T>,
  ): Promise<T> {
    checkWork("lead", work);
    const lease = await this.campaign(options);
    return runUnder(lease, work, options.signal, this.#context);
  }

  /**
   * Returns the leader, or `null` if the office is vacant. This was true when the server replied:
   * base no decision on it that needs the leader to be still in office; use its token for that.
   */
  async leader(options: CallOptions = {}): Promise<Leader | null> {
    const { state, holder } = await this.#context.locks.show(this.name, options);
    return state === "held" && holder ? asLeader(holder) : null;
  }

  /**
   * Watches the leader: yields the current state first, then each change. An unreachable server is
   * reported once, and the state again when it is reachable.
   */
  async *observe(given: { signal?: AbortSignal } = {}): AsyncGenerator<Observed, never> {
    checkOptions("observe", given, CALL_OPTIONS);
    const { signal } = given;
    // Opened before the first query, so that no change is missed in between.
    const options = { lock: this.name, ...(signal && { signal }) };
    const stream = await EventStream.open(this.#context.endpoint, options);
    const office = new Office(this.name);
    try {
      let pending: Promise<IteratorResult<StreamItem>> | null = null;
      for (let isRefreshDue = true; ;) {
        if (isRefreshDue) {
          const observed = await this.#refresh(office, signal);
          if (observed) yield observed;
          if (observed?.state === "unknown") await sleep(pauseMs(5, random()), signal);
          isRefreshDue = observed?.state === "unknown";
          if (isRefreshDue) continue;
        }
        pending ??= stream.next();
        const item = await firstItem(pending, signal);
        if (item === null) {
          isRefreshDue = true;
          continue;
        }
        pending = null;
        if (item.type === "resumed") isRefreshDue = true;
        if (item.type === "broken" && office.isKnown) {
          office.isKnown = false;
          yield { state: "unknown", error: item.error };
        }
        if (item.type === "event") {
          const change = office.apply(item.event);
          if (change === "incomplete") isRefreshDue = true;
          if (change === "vacant") yield { state: "vacant" };
          if (change === "elected") {
            yield {
              state: "leader",
              leader: await this.#introduced(item.event, signal),
            };
          }
        }
      }
    } finally {
      stream.close();
    }
  }

  /** Queries the leader; returns it if that is a change. */
  async #refresh(office: Office, signal: AbortSignal | undefined): Promise<Observed | null> {
    try {
      const leader = await this.leader({ signal });
      if (!office.update(leader?.token ?? null)) return null;
      return leader ? { state: "leader", leader } : { state: "vacant" };
    } catch (error) {
      if (!isPassing(error)) throw error;
      office.isKnown = false;
      return { state: "unknown", error: error as FencepostError };
    }
  }

  /** The elected leader, with the metadata of its lock if it is still in office. */
  async #introduced(event: LockEvent, signal: AbortSignal | undefined): Promise<Leader> {
    const { owner = "", token = 0, lease_id: leaseId = "" } = event;
    const elected = { owner, token, leaseId, metadata: undefined };
    try {
      const shown = await this.leader({ signal });
      return shown?.token === token ? shown : elected;
    } catch (error) {
      if (!isPassing(error)) throw error;
      return elected;
    }
  }
}

async function firstItem(
  pending: Promise<IteratorResult<StreamItem>>,
  signal: AbortSignal | undefined,
): Promise<StreamItem | null> {
  const result = await firstWithin([pending], REFRESH_MS, signal);
  return result === null ? null : result.value;
}

function asLeader({ owner, token, lease_id: leaseId, metadata }: Holder): Leader {
  return { owner, token, leaseId, metadata };
}

/** The candidate's patience with servers that do not reply. Pure. */
export class Patience {
  readonly #limitMs: number | undefined;
  #failingSince: number | null = null;
  #failures = 0;

  constructor(limitMs: number | undefined) {
    this.#limitMs = limitMs;
  }

  /** Pause before the candidate queues again; `null` if it must fail. */
  pauseAfter(kind: ErrorKind, nowMs: number, random: number): number | null {
    if (kind === "contended") {
      // The server is well, and the office is taken. The pause avoids a tight loop.
      this.#failingSince = null;
      this.#failures = 0;
      return pauseMs(1, random);
    }
    if (kind !== "unavailable" && kind !== "outcome-unknown" && kind !== "lease-lost") return null;
    this.#failingSince ??= nowMs;
    if (this.#limitMs !== undefined && nowMs - this.#failingSince >= this.#limitMs) return null;
    this.#failures += 1;
    return pauseMs(this.#failures, random);
  }
}

/** The known state of the office. Pure. */
export class Office {
  readonly #lock: string;
  #leader: number | null = null;
  /** The latest known term. */
  #latest = 0;
  isKnown = false;

  constructor(lock: string) {
    this.#lock = lock;
  }

  /** Applies the reply to a query; `true` if it is a change. */
  update(leader: number | null): boolean {
    const isNews = !this.isKnown || leader !== this.#leader;
    this.#leader = leader;
    this.#latest = Math.max(leader ?? 0, this.#latest);
    this.isKnown = true;
    return isNews;
  }

  /**
   * Applies an event. Events may arrive in another order than their tokens: the end of a term may
   * follow the start of the next one, and belong to a term that a query has returned already.
   */
  apply(event: LockEvent): "nothing" | "elected" | "vacant" | "incomplete" {
    const { kind, lock, token } = event;
    if (kind === "gap" && (lock === undefined || lock === this.#lock)) return "incomplete";
    if (lock !== this.#lock || token === undefined) return "nothing";
    if (kind === "granted" && token > this.#latest) {
      if (event.owner === undefined || event.lease_id === undefined) return "incomplete";
      this.#leader = token;
      this.#latest = token;
      return "elected";
    }
    const isEnd = ["released", "expired", "revoked", "superseded", "session-ended"].includes(kind);
    if (!isEnd || token !== this.#leader) return "nothing";
    this.#leader = null;
    return "vacant";
  }
}
