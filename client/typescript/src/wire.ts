/** Bodies of the lock server, and the checks without which a reply is not used. */
import { checkId, checkLockName, checkToken } from "./names.js";

/** Kinds of lease: alone, with other shared ones, or one of several permits. */
export type LeaseMode = "exclusive" | "shared" | "permit";

/** A grant as the server sends it. */
export interface LeaseReply {
  readonly lock: string;
  readonly lease_id: string;
  readonly token: number;
  /** Time to live that remains, in milliseconds. */
  readonly ttl_ms: number;
  readonly owner: string;
  readonly waited_ms: number;
  readonly fencing_token: string;
  readonly fencing_credential: string;
  readonly mode?: LeaseMode;
}

/** A session as the server sends it. */
export interface SessionReply {
  readonly session_id: string;
  readonly owner: string;
  readonly ttl_ms: number;
  readonly expires_in_ms: number;
  readonly lease_count: number;
}

/** A holder, as the lock server shows it. */
export interface Holder {
  readonly lease_id: string;
  readonly owner: string;
  readonly token: number;
  readonly held_ms: number;
  readonly expires_in_ms: number;
  readonly metadata?: unknown;
}

/** State of a lock. */
export interface LockReply {
  readonly [member: string]: unknown;
  readonly lock: string;
  readonly state: "free" | "held" | "delayed";
  readonly holder?: Holder;
  readonly also_held?: readonly Holder[];
  readonly queue_length: number;
}

/** A page of held locks; `next_after` is absent on the last one. */
export interface LockPage {
  readonly locks: readonly LockReply[];
  readonly next_after?: string;
}

type Fields = Record<string, unknown>;

function fields(json: unknown): Fields {
  if (typeof json !== "object" || json === null) throw new TypeError("the body is no object");
  return json as Fields;
}

function isCount(value: unknown): value is number {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

function need(isThere: boolean, name: string): void {
  if (!isThere) throw new TypeError(`${name} is missing or of another type`);
}

/** Accepts any JSON object. */
export function anyObject<T>(json: unknown): T {
  return fields(json) as T;
}

/** Accepts a grant. */
export function leaseReply(json: unknown): LeaseReply {
  const reply = fields(json);
  checkLockName(reply["lock"] as string);
  checkId("lease_id", String(reply["lease_id"]));
  checkToken("token", reply["token"] as number);
  need(isCount(reply["ttl_ms"]), "ttl_ms");
  need(typeof reply["fencing_token"] === "string", "fencing_token");
  need(typeof reply["fencing_credential"] === "string", "fencing_credential");
  return reply as unknown as LeaseReply;
}

/** Accepts the grants of several locks. */
export function leaseReplies(json: unknown): LeaseReply[] {
  const { leases } = fields(json);
  if (!Array.isArray(leases)) throw new TypeError("leases is missing or of another type");
  return leases.map(leaseReply);
}

/** Accepts a session. */
export function sessionReply(json: unknown): SessionReply {
  const reply = fields(json);
  checkId("session_id", String(reply["session_id"]));
  need(isCount(reply["expires_in_ms"]), "expires_in_ms");
  need(isCount(reply["lease_count"]), "lease_count");
  need(typeof reply["owner"] === "string", "owner");
  return reply as unknown as SessionReply;
}

/** Accepts the state of a lock. */
export function lockReply(json: unknown): LockReply {
  const reply = fields(json);
  checkLockName(reply["lock"] as string);
  need(typeof reply["state"] === "string", "state");
  return reply as unknown as LockReply;
}

/** Accepts a page of locks. */
export function lockPage(json: unknown): LockPage {
  const page = fields(json);
  need(Array.isArray(page["locks"]), "locks");
  return page as unknown as LockPage;
}
