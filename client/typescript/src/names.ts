/** Rules of names and numbers, checked before anything is sent. Pure. */
import { inspect } from "node:util";
import { InvalidError } from "./errors.js";
import { typeName } from "./options.js";
import { TTL_MS_MAX } from "./timing.js";

/** Highest token. */
export const TOKEN_MAX = 999_999_999_999_999;
/** Most locks of one request. */
export const LOCKS_MAX = 64;
const NAME_BYTES_MAX = 256;
const PERMITS_MAX = 1024;
const METADATA_BYTES_MAX = 4096;
/** Longest wait: a year. */
const WAIT_MS_MAX = 366 * 86_400_000;

function refuse(what: string, value: unknown, rule: string): never {
  const text = typeof value === "string" ? JSON.stringify(value) : inspect(value, { depth: 0 });
  const shown = text.length > 80 ? `${text.slice(0, 80)}…` : text;
  throw new InvalidError(`${what} ${shown} ${rule}`);
}

/** Checks the name of a lock: 1 to 256 bytes of `A-Z a-z 0-9 . _ : / -`, no odd segments. */
export function checkLockName(name: string): string {
  checkSegments("lock name", name);
  return name;
}

/** Checks the key of an object; the same rule as for names of locks. */
export function checkKey(key: string): string {
  checkSegments("key", key);
  return key;
}

function checkSegments(what: string, name: string): void {
  checkString(what, name);
  if (name.length === 0) refuse(what, name, "must not be empty");
  if (/[^A-Za-z0-9._:/-]/.test(name)) {
    refuse(what, name, "contains other characters than A-Z a-z 0-9 . _ : / -");
  }
  if (name.length > NAME_BYTES_MAX) refuse(what, name, `is longer than ${NAME_BYTES_MAX} bytes`);
  if (name.split("/").some((segment) => ["", ".", ".."].includes(segment))) {
    refuse(what, name, "has an empty, . or .. segment");
  }
}

function checkString(what: string, value: unknown): void {
  if (typeof value === "string") return;
  throw new InvalidError(`${what} must be a string, not ${typeName(value)}`);
}

/** Checks an owner, an incarnation or a reason: 1 to 256 bytes without control characters. */
export function checkText(what: string, text: string): string {
  checkString(what, text);
  const bytes = Buffer.byteLength(text);
  if (bytes < 1 || bytes > NAME_BYTES_MAX || /\p{Cc}/u.test(text)) {
    refuse(what, text, "must be 1 to 256 bytes without control characters");
  }
  return text;
}

/** Checks a time to live: 1 ms to a day. */
export function checkTtl(ttlMs: number): number {
  return checkInteger("ttlMs", ttlMs, 1, TTL_MS_MAX, "milliseconds");
}

/** Checks a wait: 0 to a year. */
export function checkWait(what: string, waitMs: number): number {
  return checkInteger(what, waitMs, 0, WAIT_MS_MAX, "milliseconds");
}

/** Checks the number of permits of a semaphore. */
export function checkPermits(size: number): number {
  return checkInteger("size", size, 1, PERMITS_MAX, "permits");
}

/** Checks a token: an integer of at most 15 digits. */
export function checkToken(what: string, token: number): number {
  return checkInteger(what, token, 1, TOKEN_MAX, "");
}

function checkInteger(what: string, value: number, min: number, max: number, unit: string): number {
  if (!Number.isSafeInteger(value) || value < min || value > max) {
    refuse(what, value, `must be a whole number from ${min} to ${max} ${unit}`.trimEnd());
  }
  return value;
}

/** Checks metadata: JSON of at most 4096 bytes. */
export function checkMetadata(metadata: unknown): unknown {
  let json: string | undefined;
  try {
    json = JSON.stringify(metadata);
  } catch (cause) {
    throw new InvalidError("metadata cannot be written as JSON", { cause });
  }
  if (json === undefined || Buffer.byteLength(json) > METADATA_BYTES_MAX) {
    refuse("metadata", metadata, `must be JSON of at most ${METADATA_BYTES_MAX} bytes`);
  }
  return metadata;
}

/** Checks the id of an operation: 1 to 128 bytes of `A-Z a-z 0-9 . _ : -`. */
export function checkOpId(opId: string): string {
  if (!/^[A-Za-z0-9._:-]{1,128}$/.test(opId)) {
    refuse("opId", opId, "must have 1 to 128 bytes of A-Z a-z 0-9 . _ : -");
  }
  return opId;
}

/** Checks the id of a lease or of a session: a UUID that is not nil. */
export function checkId(what: string, id: string): string {
  const isUuid = /^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$/i.test(id);
  if (!isUuid || /^[0-]*$/.test(id)) refuse(what, id, "must be a UUID, not nil");
  return id.toLowerCase();
}
