/** Rules of the fake guard: objects, and the mark of each lock. */
import { parseFencingToken } from "./credential.js";
import { FakeRefusal, type FakeReply } from "./fake-reply.js";

interface FakeMark {
  readonly token: number;
  readonly lease: string;
}

interface FakeObject {
  readonly body: Buffer;
  readonly contentType: string | undefined;
  readonly etag: string;
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
  /** Operations by their idempotency key: what was asked, and the reply. */
  readonly #done = new Map<string, { operation: string; reply: FakeReply }>();
  #versions = 0;

  /** The highest token seen of a lock; 0 for none. */
  mark(lock: string): number {
    return this.#marks.get(lock)?.token ?? 0;
  }

  /** Raises the mark to the token without changing data. */
  seal(lock: string, header: string | undefined): FakeReply {
    this.#admit(lock, header);
    return { body: { lock, mark: this.mark(lock) }, headers: this.#guarantee(lock) };
  }

  /** Reads, writes or deletes an object after its token was checked. */
  handle(request: FakeObjectRequest): FakeReply {
    const { method, key, headers, body } = request;
    this.#admit(key, text(headers["fencing-token"]));
    if (method === "GET") return this.#read(key);
    const id = text(headers["idempotency-key"]);
    const conditions = [headers["if-match"], headers["if-none-match"]].join();
    const operation = `${method} ${key} ${conditions} ${body.toString("base64")}`;
    const earlier = id === undefined ? undefined : this.#done.get(id);
    if (earlier && earlier.operation !== operation) {
      throw new FakeRefusal(422, "op-id-reused", "the id belongs to another operation");
    }
    if (earlier) {
      const replayed = { ...earlier.reply.headers, "idempotency-replayed": "true" };
      return { ...earlier.reply, headers: replayed };
    }
    this.#checkConditions(key, headers);
    const reply = method === "PUT" ? this.#write(request) : this.#delete(key);
    if (id !== undefined) this.#done.set(id, { operation, reply });
    return reply;
  }

  /** Refuses a stale token, one of another lock, and none; otherwise the mark rises to it. */
  #admit(lock: string, header: string | undefined): void {
    if (header === undefined) {
      throw new FakeRefusal(428, "token-required", `${lock} needs a token of its lock`, { lock });
    }
    let presented: ReturnType<typeof parseFencingToken>;
    try {
      presented = parseFencingToken(header);
    } catch (error) {
      throw new FakeRefusal(400, "malformed-token", (error as Error).message);
    }
    const { token, lock: presentedLock, lease } = presented;
    if (presentedLock !== lock) {
      const members = { lock, presented_lock: presentedLock };
      throw new FakeRefusal(403, "wrong-lock", `the token is of lock ${presentedLock}`, members);
    }
    const mark = this.#marks.get(lock) ?? { token: 0, lease };
    const min_token = mark.token;
    const members = { lock, presented: token, mark: min_token, min_token, outcome: "not-applied" };
    if (token < mark.token) {
      const detail = `token ${token} of lock ${lock} is below the mark ${mark.token}`;
      throw new FakeRefusal(412, "stale-token", detail, members);
    }
    if (token === mark.token && lease !== mark.lease) {
      const detail = `token ${token} of lock ${lock} was presented by another lease`;
      throw new FakeRefusal(409, "token-collision", detail, members);
    }
    this.#marks.set(lock, { token, lease });
  }

  #checkConditions(key: string, headers: FakeObjectRequest["headers"]): void {
    const etag = this.#objects.get(key)?.etag ?? null;
    const match = headers["if-match"];
    const isMet =
      (match === undefined || match === etag) &&
      (headers["if-none-match"] === undefined || etag === null);
    if (isMet) return;
    const members = { etag, outcome: "not-applied" };
    throw new FakeRefusal(412, "precondition-failed", `${key} has version ${etag}`, members);
  }

  #read(key: string): FakeReply {
    const found = this.#objects.get(key);
    if (!found) throw new FakeRefusal(404, "not-found", `there is no object ${key}`);
    const { body, contentType = "application/octet-stream", etag } = found;
    return { body, headers: { ...this.#guarantee(key), etag, "content-type": contentType } };
  }

  #write({ key, headers, body }: FakeObjectRequest): FakeReply {
    this.#versions += 1;
    const etag = `"${this.#versions}"`;
    const status = this.#objects.has(key) ? 204 : 201;
    this.#objects.set(key, { body, contentType: text(headers["content-type"]), etag });
    return { status, headers: { ...this.#guarantee(key), etag } };
  }

  #delete(key: string): FakeReply {
    this.#objects.delete(key);
    return { status: 204, headers: this.#guarantee(key) };
  }

  #guarantee(lock: string): Record<string, string> {
    return { "fencing-mark": String(this.mark(lock)), "fencing-guarantee": "atomic" };
  }
}

function text(header: string | string[] | undefined): string | undefined {
  return Array.isArray(header) ? header.join() : header;
}
