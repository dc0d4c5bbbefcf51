/** Rules of the fake guard: objects, and the mark of each lock. */
import { parseFencingToken } from "./credential.js";
import { FakeRefusal, type FakeReply } from "./fake-reply.js";
import { checkKey, checkLockName } from "./names.js";

/** Outcomes of named operations that a lock remembers. */
const OPERATIONS_MAX = 64;
const GUARANTEE = { "fencing-guarantee": "atomic" };
const REPLAYED = { "idempotency-replayed": "true" };

interface FakeMark {
  readonly token: number;
  readonly lease: string;
}

interface FakeObject {
  readonly body: Buffer;
  readonly contentType: string;
  readonly etag: string;
}

/** A named operation: what was asked, and its outcome. */
interface FakeOperation {
  readonly text: string;
  readonly outcome: FakeReply | FakeRefusal;
}

/** A request about an object; its key is the lock that protects it. */
export interface FakeObjectRequest {
  readonly method: string;
  readonly key: string;
  readonly headers: Readonly<Record<string, string | string[] | undefined>>;
  readonly body: Buffer;
}

/** The objects behind one guard. */
export class FakeObjects {
  readonly #objects = new Map<string, FakeObject>();
  readonly #marks = new Map<string, FakeMark>();
  /** Operations of each lock by their idempotency key, the oldest first. */
  readonly #done = new Map<string, Map<string, FakeOperation>>();
  #versions = 0;

  /** The highest token seen of a lock; 0 for none. */
  mark(lock: string): number {
    return this.#marks.get(lock)?.token ?? 0;
  }

  /** Raises the mark to the token without changing data. */
  seal(lock: string, header: string | undefined): FakeReply {
    this.#admit(valid(checkLockName, lock), header);
    return { body: { lock, mark: this.mark(lock) }, headers: this.#guarantee(lock) };
  }

  /** Reads, writes or deletes an object after its token was checked. */
  handle(request: FakeObjectRequest): FakeReply {
    const { method, headers } = request;
    const key = valid(checkKey, request.key);
    const id = text(headers["idempotency-key"])?.replace(/^"(.*)"$/, "$1");
    const done = this.#done.get(key) ?? new Map<string, FakeOperation>();
    const asked = textOf(request);
    const earlier = method === "GET" || id === undefined ? undefined : done.get(id);
    const isRepeat = earlier?.text === asked;
    this.#admit(key, text(headers["fencing-token"]), isRepeat ? earlier.outcome : undefined);
    if (method === "GET") return this.#read(key);
    if (earlier && !isRepeat) {
      const detail = "the id belongs to another operation";
      throw this.#refusal(key, 422, "op-id-reused", detail, { outcome: "not-applied" });
    }
    const outcome = earlier?.outcome ?? this.#change(request);
    if (id !== undefined && !earlier) {
      this.#done.set(key, done.set(id, { text: asked, outcome }));
      for (const oldest of [...done.keys()].slice(0, -OPERATIONS_MAX)) done.delete(oldest);
    }
    const sent = { ...outcome.headers, ...this.#guarantee(key), ...(earlier && REPLAYED) };
    if (!(outcome instanceof FakeRefusal)) return { ...outcome, headers: sent };
    const { status, code, message, members } = outcome;
    throw new FakeRefusal(status, code, message, members, sent);
  }

  /**
   * Refuses a stale token, one of another lock, and none; otherwise the mark rises to it. `first`
   * is the outcome of the operation if this is its repeat.
   */
  #admit(lock: string, header: string | undefined, first?: FakeReply | FakeRefusal): void {
    const refuse = (status: number, code: string, detail: string, members = {}): never => {
      throw new FakeRefusal(status, code, detail, members, GUARANTEE);
    };
    if (header === undefined) {
      return refuse(428, "token-required", `${lock} needs a token of its lock`, { lock });
    }
    let presented: ReturnType<typeof parseFencingToken>;
    try {
      presented = parseFencingToken(header);
    } catch (error) {
      return refuse(400, "malformed-token", (error as Error).message);
    }
    const { token, lock: presentedLock, lease } = presented;
    if (presentedLock !== lock) {
      const members = { lock, presented_lock: presentedLock };
      return refuse(403, "wrong-lock", `the token is of lock ${presentedLock}`, members);
    }
    const mark = this.#marks.get(lock) ?? { token: 0, lease };
    const min_token = mark.token;
    const members = { lock, presented: token, mark: min_token, min_token, outcome: "not-applied" };
    if (token < mark.token) {
      const detail = `token ${token} of lock ${lock} is below the mark ${mark.token}`;
      const isApplied = first !== undefined && !(first instanceof FakeRefusal);
      const applied = { outcome: "applied", etag: first?.headers?.["etag"] ?? null };
      const all = { ...members, ...(isApplied && applied) };
      throw this.#refusal(lock, 412, "stale-token", detail, all, first && REPLAYED);
    }
    if (token === mark.token && lease !== mark.lease) {
      const detail = `token ${token} of lock ${lock} was presented by another lease`;
      throw this.#refusal(lock, 409, "token-collision", detail, members);
    }
    this.#marks.set(lock, { token, lease });
  }

  #change(request: FakeObjectRequest): FakeReply | FakeRefusal {
    const { method, key, headers } = request;
    const etag = this.#objects.get(key)?.etag ?? null;
    const match = headers["if-match"];
    const isMet =
      (match === undefined || match === etag) &&
      (headers["if-none-match"] === undefined || etag === null);
    if (isMet) return method === "PUT" ? this.#write(request) : this.#delete(key);
    const members = { etag, outcome: "not-applied" };
    const shown: Record<string, string> = etag === null ? {} : { etag };
    const detail = `${key} has version ${etag}`;
    return new FakeRefusal(412, "precondition-failed", detail, members, shown);
  }

  #read(key: string): FakeReply {
    const found = this.#objects.get(key);
    if (!found) throw this.#refusal(key, 404, "not-found", `there is no object ${key}`);
    const { body, contentType, etag } = found;
    return { body, headers: { ...this.#guarantee(key), etag, "content-type": contentType } };
  }

  #write({ key, headers, body }: FakeObjectRequest): FakeReply {
    this.#versions += 1;
    const etag = `"${this.#versions}"`;
    const status = this.#objects.has(key) ? 204 : 201;
    this.#objects.set(key, { body, contentType: typeOf(headers), etag });
    return { status, headers: { etag } };
  }

  #delete(key: string): FakeReply {
    this.#objects.delete(key);
    return { status: 204 };
  }

  /** A refusal with the headers that every reply about the lock has. */
  #refusal(
    lock: string,
    status: number,
    code: string,
    detail: string,
    members = {},
    headers?: Readonly<Record<string, string>>,
  ): FakeRefusal {
    const sent = { ...this.#guarantee(lock), ...headers };
    return new FakeRefusal(status, code, detail, members, sent);
  }

  #guarantee(lock: string): Record<string, string> {
    return { ...GUARANTEE, "fencing-mark": String(this.mark(lock)) };
  }
}

function valid(check: (name: string) => string, name: string): string {
  try {
    return check(name);
  } catch (error) {
    throw new FakeRefusal(400, "invalid-request", (error as Error).message, {}, GUARANTEE);
  }
}

/** Text of an operation, in which every other one differs. */
function textOf({ method, key, headers, body }: FakeObjectRequest): string {
  const conditions = [headers["if-match"], headers["if-none-match"]].join();
  return `${method} ${key} ${conditions} ${typeOf(headers)} ${body.toString("base64")}`;
}

function typeOf(headers: FakeObjectRequest["headers"]): string {
  return text(headers["content-type"]) ?? "application/octet-stream";
}

function text(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header.join() : header;
}
