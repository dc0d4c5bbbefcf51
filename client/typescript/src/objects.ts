/** Objects behind the guard. Every fenced operation takes a lease. */
import type { IncomingHttpHeaders, OutgoingHttpHeaders } from "node:http";
import { sleep } from "./clock.js";
import { InvalidError } from "./errors.js";
import { random, randomId } from "./ids.js";
import type { Fence } from "./held-grant.js";
import { CALL_MS, CALL_OPTIONS, type CallOptions, unwrap } from "./locks.js";
import { checkKey, checkLockName, checkOpId } from "./names.js";
import { checkOptions, isBody, typeName, type TypesOf } from "./options.js";
import { isOutcomeUnknown, isPassing, SentChange } from "./sent-change.js";
import { pauseMs } from "./timing.js";
import { type Endpoint, Failure, type Reply, type Request } from "./transport.js";
import { anyObject } from "./wire.js";

/** Time-out of one request about an object, in milliseconds. */
const OBJECT_MS = 60_000;
/** Longest object that is read into memory, in bytes. */
const OBJECT_BYTES_MAX = 256 << 20;
/** Most times that one change is sent. */
const ATTEMPTS = 3;

/** The guard's statement about an operation that was applied. */
export interface Applied {
  /** The mark of the lock: the guard applies nothing with a lower token from now on. */
  readonly mark: number | null;
  /** The guard's guarantee for its store: `atomic`, `bounded` or `observe`. */
  readonly guarantee: string | null;
  /** The version of the object after the operation. */
  readonly etag: string | null;
  /** `true` if this is the reply to an earlier attempt with the same `opId`. */
  readonly replayed: boolean;
}

/** An object that was read. */
export interface StoredObject extends Applied {
  readonly body: Buffer;
  readonly contentType: string | null;
  /** The body as UTF-8. */
  text(): string;
}

/** Options of a write. */
export interface PutOptions extends CallOptions {
  contentType?: string;
  /** Writes only if the object still has this version. */
  ifMatch?: string;
  /** Writes only if the object does not exist. */
  ifAbsent?: boolean;
  /**
   * Idempotency key, random by default: for a write with an unknown outcome that is retried later,
   * perhaps by another process.
   */
  opId?: string;
}

const PUT_OPTIONS: TypesOf<PutOptions> = {
  ...CALL_OPTIONS,
  contentType: "string",
  ifMatch: "string",
  ifAbsent: "boolean",
  opId: "value",
};

/**
 * The objects behind the guard.
 *
 * A call with a lease that can no longer be trusted fails without a request. A write or delete
 * without a reply is retried up to twice, while its lease can be trusted, under one idempotency
 * key: the guard applies it once. No other call is retried. Aborting a call does not undo a
 * request that was sent.
 */
export class Objects {
  readonly #endpoint: Endpoint;
  readonly #owner: OutgoingHttpHeaders;

  /** @internal */
  constructor(endpoint: Endpoint, owner: string) {
    this.#endpoint = endpoint;
    // Only for people who inspect refusals; omitted if a header cannot carry it.
    this.#owner = /^[\x20-\x7e]*$/.test(owner) ? { "fence-owner": owner } : {};
  }

  /**
   * Reads an object; `null` if it does not exist. Raises the mark, so that an older holder can no
   * longer change what was read.
   */
  async get(lease: Fence, key: string, options: CallOptions = {}): Promise<StoredObject | null> {
    checkOptions("get", options, CALL_OPTIONS);
    const { signal } = options;
    const path = objectPath(key);
    const headers = this.#fenced(lease);
    const reply = await this.#send({
      method: "GET",
      path,
      headers,
      timeoutMs: OBJECT_MS,
      bytesMax: OBJECT_BYTES_MAX,
      signal,
    });
    if (reply instanceof Failure && reply.isAbsent) return null;
    const { body, headers: replied } = unwrap(reply, `get ${key}`, "reads");
    const contentType = replied["content-type"] ?? null;
    return { ...applied(replied), body, contentType, text: () => body.toString("utf8") };
  }

  /** Writes an object. After a refusal of a retry, the error's `outcome` is that of the first. */
  async put(
    lease: Fence,
    key: string,
    body: string | Uint8Array,
    options: PutOptions = {},
  ): Promise<Applied> {
    checkOptions("put", options, PUT_OPTIONS);
    const { contentType, ifMatch, ifAbsent = false, opId = randomId(), signal } = options;
    if (!isBody(body)) {
      throw new InvalidError(
        `put ${key}: the body must be a string or a Uint8Array, not ${typeName(body)}; ` +
          "JSON.stringify makes one of a value",
      );
    }
    if (ifAbsent && ifMatch !== undefined) {
      throw new InvalidError("ifMatch and ifAbsent exclude each other");
    }
    const headers = {
      ...(contentType !== undefined && {
        "content-type": checkHeader("contentType", contentType),
      }),
      ...(ifMatch !== undefined && { "if-match": checkHeader("ifMatch", ifMatch) }),
      ...(ifAbsent && { "if-none-match": "*" }),
      "idempotency-key": `"${checkOpId(opId)}"`,
    };
    const bytes = typeof body === "string" ? Buffer.from(body) : Buffer.from(body);
    const request = { method: "PUT", path: objectPath(key), body: bytes, signal } as const;
    return applied((await this.#change(lease, `put ${key}`, request, headers)).headers);
  }

  /** Deletes an object and raises the mark. Deleting one that does not exist succeeds. */
  async delete(lease: Fence, key: string, options: CallOptions = {}): Promise<Applied> {
    checkOptions("delete", options, CALL_OPTIONS);
    const { signal } = options;
    const headers = { "idempotency-key": `"${randomId()}"` };
    const request = { method: "DELETE", path: objectPath(key), signal } as const;
    return applied((await this.#change(lease, `delete ${key}`, request, headers)).headers);
  }

  /**
   * Raises the mark of the lease's lock to its token without changing data: the guard applies
   * nothing of an older holder from now on. Not retried.
   */
  async seal(lease: Fence, options: CallOptions = {}): Promise<{ lock: string; mark: number }> {
    checkOptions("seal", options, CALL_OPTIONS);
    const { signal } = options;
    checkLease(lease);
    const path = `/v1/fences/${encodeURIComponent(checkLockName(lease.lock))}/seal`;
    const headers = this.#fenced(lease);
    const request = { method: "POST", path, headers, timeoutMs: CALL_MS, signal } as const;
    const reply = await this.#endpoint.json(request, anyObject<{ lock: string; mark: number }>);
    return unwrap(reply, `seal ${lease.lock}`, "changes");
  }

  /** Sends a change; retries it under the same key while no reply settles its outcome. */
  async #change(
    lease: Fence,
    what: string,
    request: {
      method: "PUT" | "DELETE";
      path: string;
      body?: Buffer;
      signal?: AbortSignal | undefined;
    },
    headers: OutgoingHttpHeaders,
  ): Promise<Reply> {
    const sent = new SentChange();
    for (let attempt = 1; ; attempt += 1) {
      let fenced: OutgoingHttpHeaders;
      try {
        fenced = this.#fenced(lease);
      } catch (error) {
        throw sent.refusedHere(what, error);
      }
      const all = { ...headers, ...fenced };
      const reply = await this.#send({
        ...request,
        headers: all,
        timeoutMs: OBJECT_MS,
      });
      if (!(reply instanceof Failure)) return reply;
      const isRetried = isOutcomeUnknown(reply) || (sent.isUnknown && isPassing(reply));
      if (!isRetried || attempt === ATTEMPTS) throw sent.error(what, reply);
      sent.record(reply);
      await sleep(pauseMs(attempt, random()), request.signal);
    }
  }

  /** Sends a request. A success without the guard's headers is that of another program or path. */
  async #send(request: Request): Promise<Reply | Failure> {
    const reply = await this.#endpoint.send(request);
    if (reply instanceof Failure) return this.#ofGuard(reply);
    const names = ["Fencing-Guarantee", ...(request.method === "GET" ? ["ETag"] : [])];
    const missing = names.find((name) => reply.headers[name.toLowerCase()] === undefined);
    if (missing === undefined) return reply;
    return this.#endpoint.foreign(request.path, reply.body, `no header ${missing}`);
  }

  /** Rewords a `not-found` that says nothing about an object: of a lock server, or a wrong path. */
  #ofGuard(failure: Failure): Failure {
    const { problem, retryAfterMs, isAbsent } = failure;
    if (!problem || isAbsent || !failure.isRefusal("not-found")) return failure;
    const detail = `${this.#endpoint.base} answers, but not as a guard: ${problem.detail}`;
    return Failure.refused({ ...problem, detail, hint: "Check the guard's URL." }, retryAfterMs);
  }

  /** Headers with the lease's token; checks the lease right before the request is sent. */
  #fenced(lease: Fence): OutgoingHttpHeaders {
    checkLease(lease);
    lease.check();
    return { ...this.#owner, "fencing-token": lease.fencingToken };
  }
}

function checkLease(lease: Fence | undefined): void {
  if (typeof lease?.check === "function") return;
  throw new InvalidError(`the first argument must be a lease, not ${typeName(lease)}`);
}

function applied(headers: IncomingHttpHeaders): Applied {
  const mark = Number(headers["fencing-mark"]);
  return {
    mark: Number.isSafeInteger(mark) && mark > 0 ? mark : null,
    guarantee: (headers["fencing-guarantee"] as string | undefined) ?? null,
    etag: headers.etag ?? null,
    replayed: headers["idempotency-replayed"] === "true",
  };
}

function checkHeader(what: string, value: string): string {
  if (/^[\x20-\x7e]{1,1024}$/.test(value)) return value;
  throw new InvalidError(
    `${what} ${JSON.stringify(value)} must have 1 to 1024 printable ASCII characters`,
  );
}

/** Path of an object: its slashes stay. */
function objectPath(key: string): string {
  return `/v1/objects/${checkKey(key).split("/").map(encodeURIComponent).join("/")}`;
}
