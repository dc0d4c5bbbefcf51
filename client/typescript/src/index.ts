/** Fencepost: leases with fencing tokens. Start with {@link Client}. */
import "./dispose.js";

export { Client, type HeldSet, type SessionOptions, type Work } from "./client.js";
export { type Driver, type LeaseCredential, LeaseConnections } from "./connections.js";
export {
  type FencingToken,
  formatFencingToken,
  joinCredentials,
  parseCredential,
  parseFencingToken,
} from "./credential.js";
export { type CampaignOptions, Election, type Leader, type Observed } from "./election.js";
export {
  ContendedError,
  type EndReason,
  type ErrorKind,
  FencepostError,
  InternalError,
  InvalidError,
  LeaseLostError,
  type LostReason,
  type WriteOutcome,
  OutcomeUnknownError,
  PreconditionError,
  type Problem,
  StaleError,
  TakeoverRefusedError,
  UnavailableError,
} from "./errors.js";
export type { LockEvent } from "./event-parser.js";
export { type EventOptions, EventStream, type StreamItem } from "./events.js";
export type { Fence, ShownLease } from "./held-grant.js";
export { Lease } from "./lease.js";
export type { Limits, Warning } from "./limits.js";
export type {
  LeaseOptions,
  LockOptions,
  SessionLockOptions,
  TryLockOptions,
  WaitOptions,
} from "./lock-spec.js";
export { type CallOptions, Locks } from "./locks.js";
export type { Log } from "./log.js";
export { type Applied, Objects, type PutOptions, type StoredObject } from "./objects.js";
export type { QueuePosition } from "./queue-position.js";
export { ReentrantLock } from "./reentrant.js";
export { type LockAllOptions, Session, type Wish } from "./session.js";
export { LeaseSet, SessionLease } from "./session-lease.js";
export { Sessions } from "./sessions.js";
export type { ClientOptions } from "./settings.js";
export { pauseMs, Window } from "./timing.js";
export type { Holder, LeaseMode, LeaseReply, LockPage, LockReply, SessionReply } from "./wire.js";
