/** Rules of the fake lock server: leases, waiters in arrival order, and sessions. */
import { checkFakeAcquire, checkFakeTtl } from "./fake-checks.js";
import {
  type FakeAcquire,
  type FakeLease,
  type FakeLock,
  type FakeSession,
  type FakeTurn,
  type FakeWaiter,
  type FakeWish,
  holderOf,
  idConflict,
  leftMs,
  lost,
  partOf,
  replyOf,
  sessionEnded,
  sinceMs,
} from "./fake-lease.js";
import { FakeRefusal } from "./fake-reply.js";
import { randomId } from "./ids.js";

/** Ended leases that a lock remembers. */
const HISTORY_MAX = 8;
const RETRY = "Try again after Retry-After, or wait in the queue with wait_ms.";

/** The locks of one server. */
export class FakeLocks {
  readonly #now: () => number;
  readonly #locks = new Map<string, FakeLock>();
  readonly #sessions = new Map<string, FakeSession>();
  /** In arrival order, of all locks. */
  #waiters: FakeWaiter[] = [];
  #lastToken = 0;
  #timer: NodeJS.Timeout | undefined;

  constructor(now: () => number) {
    this.#now = now;
  }

  /** Acquires one lock or several; `signal` is aborted when the client disconnects. */
  acquire(
    wishes: readonly FakeWish[],
    request: FakeAcquire,
    signal: AbortSignal,
  ): Promise<object[]> {
    checkFakeAcquire(wishes, request);
    this.elapse();
    const { lease_id: id = randomId(), session_id: sessionId, wait_ms: waitMs = 0 } = request;
    const owner = request.owner ?? (sessionId ? this.#session(sessionId).owner : "anonymous");
    const known = this.#repeated(wishes, request, id, owner);
    if (known) return Promise.resolve(known);
    const [first] = wishes as [FakeWish];
    let waiter = this.#waiting(wishes, request, id, owner);
    if (!waiter) for (const wish of wishes) this.#checkKind(wish, request);
    const session = sessionId
      ? this.#session(sessionId, owner, partOf(request, first.lock))
      : undefined;
    const isTaken = this.#takeOver(first.lock, request, owner);
    const turns = waiter?.turns ?? new Set<FakeTurn>();
    if (waiter && isTaken) this.#leave(waiter);
    if (!waiter || isTaken) {
      waiter ??= { id, wishes, request, owner, session, since: this.#now(), turns };
      // A takeover is granted before all waiters.
      this.#waiters = isTaken ? [waiter, ...this.#waiters] : [...this.#waiters, waiter];
    }
    return new Promise((resolve, reject) => {
      const turn: FakeTurn = {
        until: this.#now() + waitMs,
        settle: (outcome) => (outcome instanceof FakeRefusal ? reject(outcome) : resolve(outcome)),
      };
      turns.add(turn);
      const leave = () => {
        turns.delete(turn);
        this.elapse();
      };
      signal.addEventListener("abort", leave, { once: true });
      this.elapse();
    });
  }

  renew(name: string, id: string, ttlMs?: number): object {
    checkFakeTtl(ttlMs);
    this.elapse();
    const lease = this.#live(name, id);
    if (lease.session && ttlMs !== undefined) {
      throw new FakeRefusal(409, "session-conflict", "a session's heartbeat renews its leases");
    }
    lease.ttlMs = ttlMs ?? lease.ttlMs;
    lease.expiresAt = this.#now() + lease.ttlMs;
    lease.renewals += 1;
    return { ...replyOf(name, lease, this.#now()), waited_ms: 0 };
  }

  release(name: string, id: string): object {
    this.elapse();
    const waiter = this.#waitersOf(name).find((one) => one.id === id);
    if (waiter) this.#refuse(waiter, lost(name, "released"));
    let lease: FakeLease;
    try {
      lease = this.#live(name, id);
    } catch (error) {
      // An acquire that arrives later is not granted.
      const { ended } = this.#lock(name);
      if (!ended.some((one) => one.id === id)) this.#remember(name, id, undefined, "released");
      throw error;
    }
    this.#end(name, lease, "released");
    this.elapse();
    return { lock: name, lease_id: id, token: lease.token, reason: "released" };
  }

  /** Ends every live lease of a lock, or one, as an operator does. */
  revoke(name: string, why: string, id?: string): object {
    this.elapse();
    const leases = id ? [this.#live(name, id)] : [...this.#lock(name).live];
    const [first] = leases;
    if (!first) throw new FakeRefusal(404, "not-found", `lock ${name} is not held`);
    for (const lease of leases) this.#end(name, lease, "revoked", why);
    this.elapse();
    return { lock: name, lease_id: first.id, token: first.token, reason: "revoked" };
  }

  show(name: string): object {
    this.elapse();
    const now = this.#now();
    const { live, ended } = this.#lock(name);
    const queue = this.#waitersOf(name);
    const [holder, ...others] = live.map((lease) => holderOf(lease, now));
    const size = live[0]?.size;
    return {
      lock: name,
      state: holder ? "held" : "free",
      ...(holder && { holder }),
      ...(others.length > 0 && { also_held: others }),
      ...(size !== undefined && { size }),
      lease_count: live.length,
      queue_length: queue.length,
      queue: queue.slice(0, 100).map(({ id, owner, since }) => {
        return { lease_id: id, owner, waiting_ms: sinceMs(since, now) };
      }),
      history: ended.map(({ id, lease, reason, why, at }) => ({
        lease_id: id,
        token: lease?.token ?? null,
        owner: lease?.owner ?? null,
        reason,
        why,
        held_ms: lease ? sinceMs(lease.grantedAt, at) : 0,
        ended_ms_ago: sinceMs(at, now),
      })),
      events: [],
      refusals: [],
    };
  }

  /** A page of the held locks in the order of their names. */
  list(prefix: string, after: string, limit: number): object {
    this.elapse();
    const names = [...this.#locks.keys()].sort().filter((name) => {
      return name.startsWith(prefix) && name > after && this.#lock(name).live.length > 0;
    });
    const now = this.#now();
    const locks = names.slice(0, limit).map((name) => {
      const [lease] = this.#lock(name).live as [FakeLease];
      const queue_length = this.#waitersOf(name).length;
      return { lock: name, ...holderOf(lease, now), queue_length };
    });
    return { locks, ...(names.length > limit && { next_after: names[limit - 1] }) };
  }

  beginSession(body: { session_id?: string; ttl_ms?: number; owner: string }): object {
    const { session_id: id = randomId(), ttl_ms: ttlMs = 15_000, owner } = body;
    checkFakeTtl(ttlMs);
    this.elapse();
    if (this.#sessions.has(id)) this.#session(id, owner);
    else {
      const now = this.#now();
      const expiresAt = now + ttlMs;
      const begun = { id, owner, ttlMs, beganAt: now, expiresAt, heartbeats: 0, ended: null };
      this.#sessions.set(id, begun);
      this.elapse();
    }
    return this.showSession(id);
  }

  heartbeat(id: string): object {
    this.elapse();
    const session = this.#session(id);
    session.expiresAt = this.#now() + session.ttlMs;
    session.heartbeats += 1;
    return this.showSession(id);
  }

  showSession(id: string): object {
    this.elapse();
    const session = this.#session(id);
    return {
      session_id: id,
      owner: session.owner,
      ttl_ms: session.ttlMs,
      expires_in_ms: Math.max(Math.floor(session.expiresAt - this.#now()), 0),
      age_ms: sinceMs(session.beganAt, this.#now()),
      heartbeats: session.heartbeats,
      lease_count: this.#countOf(session),
    };
  }

  endSession(id: string): object {
    this.elapse();
    const session = this.#session(id);
    const lease_count = this.#countOf(session);
    this.#closeSession(session, "ended");
    this.elapse();
    return { session_id: id, reason: "ended", lease_count };
  }

  /** Lets expire what has, grants what is free, and comes back when something is due. */
  elapse(): void {
    const now = this.#now();
    for (const session of this.#sessions.values()) {
      if (session.ended === null && session.expiresAt <= now)
        this.#closeSession(session, "expired");
    }
    for (const [name, { live }] of this.#locks) {
      for (const lease of [...live]) {
        if (!lease.session && lease.expiresAt <= now) this.#end(name, lease, "expired");
      }
    }
    this.#grant();
    for (const waiter of [...this.#waiters]) {
      for (const turn of waiter.turns) {
        if (turn.until > now) continue;
        waiter.turns.delete(turn);
        turn.settle(this.#heldBy(waiter));
      }
      if (waiter.turns.size === 0) this.#leave(waiter);
    }
    this.#schedule(now);
  }

  /** Ends all waits without a reply. */
  close(): void {
    clearTimeout(this.#timer);
    this.#waiters = [];
  }

  #schedule(now: number): void {
    clearTimeout(this.#timer);
    const sessions = [...this.#sessions.values()].filter(({ ended }) => ended === null);
    const leases = [...this.#locks.values()].flatMap(({ live }) => live);
    const due = [
      ...sessions.map(({ expiresAt }) => expiresAt),
      ...leases.filter(({ session }) => !session).map(({ expiresAt }) => expiresAt),
      ...this.#waiters.flatMap(({ turns }) => [...turns].map(({ until }) => until)),
    ];
    if (due.length === 0) return;
    const pause = Math.min(Math.max(Math.ceil(Math.min(...due) - now), 1), 60_000);
    this.#timer = setTimeout(() => this.elapse(), pause).unref();
  }

  /** Grants in arrival order; a waiter that cannot be granted holds up later ones of its locks. */
  #grant(): void {
    const now = this.#now();
    const blocked = new Set<string>();
    for (const waiter of [...this.#waiters]) {
      const { wishes } = waiter;
      const isFree = wishes.every((wish) => !blocked.has(wish.lock) && this.#isFree(wish));
      if (!isFree) {
        for (const { lock } of wishes) blocked.add(lock);
        continue;
      }
      this.#leave(waiter);
      const grants = wishes.map((wish) => replyOf(wish.lock, this.#granted(wish, waiter), now));
      for (const turn of waiter.turns) turn.settle(grants);
    }
  }

  #granted(wish: FakeWish, { id, request, owner, session, since }: FakeWaiter): FakeLease {
    const { mode = "exclusive", size, min_token: minToken = 0 } = wish;
    this.#lastToken = Math.max(this.#lastToken, minToken) + 1;
    const now = this.#now();
    const ttlMs = session?.ttlMs ?? request.ttl_ms ?? 15_000;
    const waitedMs = sinceMs(since, now);
    const token = this.#lastToken;
    const times = { ttlMs, expiresAt: now + ttlMs, grantedAt: now, waitedMs, renewals: 0 };
    const lease = { id, token, owner, mode, size, session, request, ...times };
    this.#lock(wish.lock).live.push(lease);
    return lease;
  }

  #isFree({ lock, mode = "exclusive", size = 1 }: FakeWish): boolean {
    const { live } = this.#lock(lock);
    if (mode === "permit") return live.length < size;
    return live.length === 0 || (mode === "shared" && live.every((one) => one.mode === "shared"));
  }

  /** The grants or the end of a request that was sent before. */
  #repeated(
    wishes: readonly FakeWish[],
    request: FakeAcquire,
    id: string,
    owner: string,
  ): object[] | null {
    const grants: object[] = [];
    let missing: string | undefined;
    for (const { lock } of wishes) {
      const { live, ended } = this.#lock(lock);
      const lease = live.find((one) => one.id === id);
      const end = ended.find((one) => one.id === id);
      if (end && !lease) throw lost(lock, end.reason, end.why, partOf(request, lock));
      if (lease && lease.owner !== owner) throw idConflict(request, lock, lease.owner);
      if (lease) grants.push(replyOf(lock, lease, this.#now()));
      else missing ??= lock;
    }
    if (missing === undefined) return grants;
    if (grants.length === 0) return null;
    throw lost(missing, "superseded", undefined, partOf(request, missing));
  }

  /** The waiter of this id, if it is the same request. */
  #waiting(
    wishes: readonly FakeWish[],
    request: FakeAcquire,
    id: string,
    owner: string,
  ): FakeWaiter | undefined {
    const locksOf = (of: readonly FakeWish[]) => of.map((wish) => wish.lock).join();
    for (const { lock } of wishes) {
      const found = this.#waitersOf(lock).find((one) => one.id === id);
      if (!found) continue;
      if (found.owner === owner && locksOf(found.wishes) === locksOf(wishes)) return found;
      throw idConflict(request, lock, found.owner);
    }
    return undefined;
  }

  #checkKind({ lock, mode, size }: FakeWish, request: FakeAcquire): void {
    const used = [
      ...this.#lock(lock).live,
      ...this.#waitersOf(lock).flatMap(({ wishes }) => wishes.filter((one) => one.lock === lock)),
    ];
    const isOther = used.some((one) => {
      return (one.mode === "permit") !== (mode === "permit") || one.size !== size;
    });
    if (!isOther) return;
    const detail = `lock ${lock} is in use as another kind`;
    throw new FakeRefusal(409, "lock-kind-conflict", detail, partOf(request, lock));
  }

  /** Ends the lease that a request takes over; `false` if it is granted or waits like others. */
  #takeOver(name: string, request: FakeAcquire, owner: string): boolean {
    const { takeover = false, takeover_of: of, incarnation, wait_ms: waitMs = 0 } = request;
    const lock = this.#lock(name);
    const [holder] = lock.live;
    if (!(takeover || of) || holder?.mode !== "exclusive") return false;
    if (of !== undefined && of !== holder.id) return false;
    const refuse = (why: string): never => {
      const detail = `lock ${name} is held by ${holder.owner} and was not taken over: ${why}`;
      const members = { why, holder: holderOf(holder, this.#now()) };
      throw new FakeRefusal(409, "takeover-refused", detail, members);
    };
    const waits = takeover && waitMs > 0;
    const theirs = holder.request.incarnation;
    if (holder.owner !== owner) return waits ? false : refuse("other-owner");
    if (takeover && lock.former.has(`${owner} ${incarnation}`)) return refuse("was-taken-over");
    if (takeover && theirs === undefined) return waits ? false : refuse("no-incarnation");
    if (takeover && theirs === incarnation) return false;
    if (theirs !== undefined) lock.former.add(`${owner} ${theirs}`);
    this.#end(name, holder, "superseded");
    return true;
  }

  /** The first lock that a request waits for: it is held, or has earlier waiters. */
  #awaited(waiter: FakeWaiter): string | undefined {
    const isAwaited = (wish: FakeWish) =>
      !this.#isFree(wish) || this.#waitersOf(wish.lock)[0] !== waiter;
    return waiter.wishes.find(isAwaited)?.lock;
  }

  /** The lease of a lock that ends first. */
  #firstToEnd(lock: string): FakeLease | undefined {
    const now = this.#now();
    return [...this.#lock(lock).live].sort((a, b) => leftMs(a, now) - leftMs(b, now))[0];
  }

  #heldBy(waiter: FakeWaiter): FakeRefusal {
    const { wishes, request } = waiter;
    const lock = this.#awaited(waiter) ?? (wishes[0] as FakeWish).lock;
    const holder = this.#firstToEnd(lock);
    const queue_length = this.#waitersOf(lock).filter((one) => one !== waiter).length;
    const members = {
      ...partOf(request, lock),
      ...(holder && { holder: holderOf(holder, this.#now()) }),
      queue_length,
      hint: RETRY,
      retryable: true,
    };
    const state = holder
      ? `held by ${holder.owner} with token ${holder.token} for another ` +
        `${leftMs(holder, this.#now())} ms unless it is renewed`
      : "free, and kept for a request that waits for other locks too";
    const detail = `lock ${lock} is ${state}; ${queue_length} wait`;
    return new FakeRefusal(423, "lock-held", detail, members);
  }

  #live(name: string, id: string): FakeLease {
    const { live, ended } = this.#lock(name);
    const lease = live.find((one) => one.id === id);
    if (lease) return lease;
    const end = ended.find((one) => one.id === id);
    throw lost(name, end?.reason ?? (live.length > 0 ? "superseded" : "expired"), end?.why);
  }

  #end(name: string, lease: FakeLease, reason: string, why?: string): void {
    const lock = this.#lock(name);
    lock.live = lock.live.filter((one) => one !== lease);
    this.#remember(name, lease.id, lease, reason, why);
  }

  #remember(
    name: string,
    id: string,
    lease: FakeLease | undefined,
    reason: string,
    why?: string,
  ): void {
    const lock = this.#lock(name);
    const end = { id, lease, reason, why, at: this.#now() };
    lock.ended = [end, ...lock.ended].slice(0, HISTORY_MAX);
  }

  #closeSession(session: FakeSession, reason: string): void {
    session.ended = reason;
    for (const [name, { live }] of this.#locks) {
      for (const lease of [...live]) {
        if (lease.session === session) this.#end(name, lease, "session-ended");
      }
    }
    for (const waiter of [...this.#waiters]) {
      if (waiter.session === session) this.#refuse(waiter, sessionEnded(session));
    }
  }

  /** A live session, of this owner if one is given. */
  #session(id: string, owner?: string, part: object = {}): FakeSession {
    const session = this.#sessions.get(id);
    const members = { ...part, session_id: id };
    if (!session) throw new FakeRefusal(404, "session-unknown", `no session ${id}`, members);
    if (session.ended !== null) throw sessionEnded(session);
    if (owner === undefined || session.owner === owner) return session;
    const detail = `session ${id}: it belongs to ${session.owner}`;
    const conflict = { ...members, owner: session.owner };
    throw new FakeRefusal(409, "session-conflict", detail, conflict);
  }

  #countOf(session: FakeSession): number {
    const leases = [...this.#locks.values()].flatMap(({ live }) => live);
    const waiting = this.#waiters.filter((one) => one.session === session);
    return (
      leases.filter((lease) => lease.session === session).length +
      waiting.reduce((sum, { wishes }) => sum + wishes.length, 0)
    );
  }

  #refuse(waiter: FakeWaiter, refusal: FakeRefusal): void {
    this.#leave(waiter);
    for (const turn of waiter.turns) turn.settle(refusal);
  }

  #leave(waiter: FakeWaiter): void {
    this.#waiters = this.#waiters.filter((one) => one !== waiter);
  }

  #waitersOf(name: string): FakeWaiter[] {
    return this.#waiters.filter(({ wishes }) => wishes.some(({ lock }) => lock === name));
  }

  #lock(name: string): FakeLock {
    const found = this.#locks.get(name) ?? { live: [], ended: [], former: new Set() };
    this.#locks.set(name, found);
    return found;
  }
}
