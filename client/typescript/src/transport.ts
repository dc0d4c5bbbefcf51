/**
 * HTTP: one request, one reply, and a precise failure when there is no reply.
 *
 * Built on `node:http` and `node:https`, because `fetch` of Node takes neither a CA nor a client
 * certificate without a further package, and does not say whether a request was sent.
 */
import * as http from "node:http";
import * as https from "node:https";
import type { Socket } from "node:net";
import type { TLSSocket } from "node:tls";
import {
  type FencepostError,
  InternalError,
  OutcomeUnknownError,
  type Problem,
  UnavailableError,
} from "./errors.js";
import { errorOf, parseProblem } from "./problem.js";
import { parseServerUrl, type ServerUrl } from "./server-url.js";
import { inWords } from "./words.js";

/** Longest JSON body that is read, in bytes. */
export const JSON_BYTES_MAX = 4 << 20;
/** Time-out of connecting to a server, in milliseconds. */
const CONNECT_MS = 3000;
/**
 * Idle time-out of pooled connections, in milliseconds. Shorter than the servers' (75 s), so that a
 * request does not use a connection that the server is closing.
 */
const POOL_IDLE_MS = 60_000;

/** Member of a problem: the reply states the outcome of an earlier request with the same key. */
export const REPLAYED = "idempotency_replayed";

/** Reason why there is no successful reply. */
export class Failure {
  private constructor(
    /**
     * `not-sent`: no connection could be made. `no-reply`: sent, and no readable reply arrived.
     * `refused`: an error reply. `unusable`: a reply that cannot be used.
     */
    readonly type: "not-sent" | "no-reply" | "refused" | "unusable",
    private readonly why: string,
    /** Of `refused`. */
    readonly problem: Problem | null = null,
    readonly retryAfterMs: number | null = null,
    /** Of `unusable`. */
    readonly error: FencepostError | null = null,
    /** Of `refused`: `true` if the reply has the header of every guard. */
    private readonly isOfGuard = false,
  ) {}

  static notSent(why: string): Failure {
    return new Failure("not-sent", why);
  }

  static noReply(why: string): Failure {
    return new Failure("no-reply", why);
  }

  static refused(problem: Problem, retryAfterMs: number | null, isOfGuard = false): Failure {
    const why = inWords(problem.detail);
    return new Failure("refused", why, problem, retryAfterMs, null, isOfGuard);
  }

  static unusable(error: FencepostError): Failure {
    return new Failure("unusable", error.message, null, null, error);
  }

  /** `true` if the server refused with this code. */
  isRefusal(code: string): boolean {
    return this.problem?.code === code;
  }

  /** `true` if a guard replied that there is no object. */
  get isAbsent(): boolean {
    return this.isOfGuard && this.problem?.status === 404 && this.isRefusal("not-found");
  }

  /** Describes the failure, for logs. */
  get reason(): string {
    return this.type === "not-sent" ? `cannot reach ${this.why}` : this.why;
  }

  /** Converts the failure to the error of a call; `what` names the call. */
  toError(what: string, effect: "reads" | "changes"): FencepostError {
    if (this.problem) return errorOf(this.problem, this.retryAfterMs, what);
    if (this.error) return this.error;
    if (this.type === "not-sent") return new UnavailableError(`${what}: ${this.why}`);
    return effect === "reads"
      ? new UnavailableError(`${what}: no reply: ${this.why}`)
      : new OutcomeUnknownError(`${what}: no reply, so the outcome is unknown: ${this.why}`);
  }
}

/** Successful reply, read to its end. */
export interface Reply {
  readonly headers: http.IncomingHttpHeaders;
  readonly body: Buffer;
}

/** One request. */
export interface Request {
  method: "GET" | "POST" | "PUT" | "DELETE";
  /** Begins with a slash and is percent-encoded. */
  path: string;
  headers?: http.OutgoingHttpHeaders;
  body?: Buffer | string;
  timeoutMs: number;
  bytesMax?: number;
  signal?: AbortSignal | undefined;
  /** `false`: the request does not keep the process alive. */
  keepsAlive?: boolean;
}

/** Settings of the connections to both servers. */
export interface Connections {
  authorization?: string | undefined;
  insecureHttp: boolean;
  tls: { ca?: Buffer; cert?: Buffer; key?: Buffer };
}

/**
 * Address of one server, with the connections to it. Proxies of the environment and redirects are
 * not followed: a token is sent only to the servers that were configured.
 */
export class Endpoint {
  readonly #url: ServerUrl;
  readonly #agent: http.Agent;
  readonly #headers: http.OutgoingHttpHeaders;

  constructor(address: string, connections: Connections) {
    this.#url = parseServerUrl(address, connections.insecureHttp);
    const options = { keepAlive: true, timeout: POOL_IDLE_MS };
    this.#agent = this.#url.isHttps
      ? new https.Agent({ ...options, ...connections.tls })
      : new http.Agent(options);
    const { authorization } = connections;
    this.#headers = {
      "user-agent": "fencepost-typescript",
      ...(authorization && { authorization }),
    };
  }

  get base(): string {
    return this.#url.base;
  }

  /** Closes the idle connections; later requests open new ones. */
  close(): void {
    this.#agent.destroy();
  }

  /** Posts `body` as JSON and reads the reply as JSON, which `check` accepts by returning it. */
  post<T>(
    request: Omit<Request, "method" | "body">,
    body: unknown,
    check: (json: unknown) => T,
  ): Promise<T | Failure> {
    const headers = { ...request.headers, "content-type": "application/json" };
    return this.json({ ...request, method: "POST", headers, body: JSON.stringify(body) }, check);
  }

  /** Reads the reply as JSON, which `check` accepts by returning it and refuses by throwing. */
  async json<T>(request: Request, check: (json: unknown) => T): Promise<T | Failure> {
    const reply = await this.send(request);
    if (reply instanceof Failure) return reply;
    try {
      return check(JSON.parse(reply.body.toString("utf8")));
    } catch (cause) {
      const why = cause instanceof Error ? cause.message : String(cause);
      return this.foreign(request.path, reply.body, why);
    }
  }

  /** Failure of a reply that is not that of a Fencepost server. */
  foreign(path: string, body: Buffer, why: string): Failure {
    const start = JSON.stringify(body.subarray(0, 200).toString("utf8"));
    const url = `${this.base}${path}`;
    const message = `${url} sent no reply of a Fencepost server (${why}): ${start}`;
    return Failure.unusable(new InternalError(`${message}; check the address`));
  }

  /**
   * Sends a request and reads the whole reply. Rejects with the reason of `signal` if that is
   * aborted; every other failure is returned.
   */
  async send(request: Request): Promise<Reply | Failure> {
    const { timeoutMs, bytesMax = JSON_BYTES_MAX } = request;
    const response = await this.#exchange(request, timeoutMs);
    if (response instanceof Failure) return response;
    const body = await response.read(bytesMax);
    if (body instanceof Failure) return body;
    const { headers, statusCode: status = 0 } = response.message;
    if (status >= 200 && status <= 299) return { headers, body };
    return this.#refusal(status, headers, body);
  }

  /** Opens a stream, which may have no end; only opening it is bounded by `timeoutMs`. */
  async open(request: Request, mediaType: string): Promise<http.IncomingMessage | Failure> {
    const response = await this.#exchange(request, request.timeoutMs);
    if (response instanceof Failure) return response;
    const { headers, statusCode: status = 0 } = response.message;
    if (status < 200 || status > 299) {
      const body = await response.read(JSON_BYTES_MAX);
      return body instanceof Failure ? body : this.#refusal(status, headers, body);
    }
    response.detach();
    if (headers["content-type"]?.startsWith(mediaType)) return response.message;
    response.message.destroy();
    const type = headers["content-type"] ?? "nothing";
    return Failure.noReply(`${this.base} replied with content type ${type}, not ${mediaType}`);
  }

  #refusal(status: number, headers: http.IncomingHttpHeaders, body: Buffer): Failure {
    const seconds = headers["retry-after"]?.trim() ?? "";
    const retryAfterMs = /^\d{1,9}$/.test(seconds) ? Number(seconds) * 1000 : null;
    const problem = parseProblem(status, body, this.base);
    const isReplayed = headers["idempotency-replayed"] === "true";
    const isOfGuard = headers["fencing-guarantee"] !== undefined;
    const known = isReplayed ? { ...problem, [REPLAYED]: true } : problem;
    return Failure.refused(known, retryAfterMs, isOfGuard);
  }

  #exchange(request: Request, timeoutMs: number): Promise<Exchange | Failure> {
    const { method, path, headers, body, signal } = request;
    const { isHttps, host, port } = this.#url;
    const options: https.RequestOptions = {
      agent: this.#agent,
      host,
      port,
      method,
      path: `${this.#url.path}${path}`,
      headers: { ...this.#headers, ...headers },
    };
    if (body !== undefined) {
      options.headers = { ...options.headers, "content-length": Buffer.byteLength(body) };
    }
    if (signal?.aborted) return Promise.reject(signal.reason);
    const sent = isHttps ? https.request(options) : http.request(options);
    const exchange = new Exchange(sent, this.#url, timeoutMs, request);
    sent.end(body);
    return exchange.head();
  }
}

/** A request that is under way, with its time-outs. */
class Exchange {
  message!: http.IncomingMessage;
  readonly #sent: http.ClientRequest;
  readonly #url: ServerUrl;
  readonly #signal: AbortSignal | undefined;
  #isConnected = false;
  #timer: NodeJS.Timeout;
  #connectTimer: NodeJS.Timeout | undefined;
  /** Set once; ends the wait for the head or the body. */
  #stop: (failure: Failure) => void = () => {};
  #abort: (reason: unknown) => void = () => {};
  readonly #onAbort = () => {
    const reason: unknown = this.#signal?.reason;
    this.#clear();
    this.#sent.destroy();
    this.#abort(reason);
  };

  constructor(sent: http.ClientRequest, url: ServerUrl, timeoutMs: number, request: Request) {
    this.#sent = sent;
    this.#url = url;
    this.#signal = request.signal;
    const keepsAlive = request.keepsAlive ?? true;
    // Timers of Node hold at most 31 bits; none of ours is longer than a wait of five minutes.
    this.#timer = setTimeout(
      () => this.#fail(new Error(`no reply within ${timeoutMs} ms`)),
      Math.min(timeoutMs, 2 ** 31 - 1),
    );
    if (!keepsAlive) this.#timer.unref();
    this.#signal?.addEventListener("abort", this.#onAbort, { once: true });
    sent.on("error", (error) => this.#fail(error));
    sent.on("socket", (socket) => this.#watch(socket, keepsAlive));
  }

  /** Awaits the head of the reply. */
  head(): Promise<this | Failure> {
    return new Promise((resolve, reject) => {
      this.#stop = resolve;
      this.#abort = reject;
      this.#sent.once("response", (message) => {
        this.message = message;
        resolve(this);
      });
    });
  }

  /** Reads the body; one longer than `bytesMax` is a failure. */
  read(bytesMax: number): Promise<Buffer | Failure> {
    return new Promise((resolve, reject) => {
      this.#stop = resolve;
      this.#abort = reject;
      const chunks: Buffer[] = [];
      let length = 0;
      this.message.on("data", (chunk: Buffer) => {
        length += chunk.length;
        if (length > bytesMax) {
          this.#fail(new Error(`the reply is longer than ${bytesMax} bytes`));
        } else {
          chunks.push(chunk);
        }
      });
      this.message.once("end", () => {
        this.#clear();
        resolve(Buffer.concat(chunks));
      });
      this.message.once("error", (error) => this.#fail(error));
      this.message.once("aborted", () => this.#fail(new Error("the connection broke")));
    });
  }

  /** Leaves the message to its reader, without time-outs. */
  detach(): void {
    this.#clear();
  }

  #watch(socket: Socket, keepsAlive: boolean): void {
    if (!keepsAlive) socket.unref();
    if (this.#sent.reusedSocket || (!socket.connecting && !this.#url.isHttps)) {
      this.#isConnected = true;
      return;
    }
    const isReady = () => {
      this.#isConnected = true;
      clearTimeout(this.#connectTimer);
    };
    const ready = this.#url.isHttps ? "secureConnect" : "connect";
    (socket as TLSSocket).once(ready as "connect", isReady);
    const late = () => this.#fail(new Error(`no connection within ${CONNECT_MS} ms`));
    this.#connectTimer = setTimeout(late, CONNECT_MS).unref();
  }

  #fail(error: Error): void {
    this.#clear();
    this.#sent.destroy();
    const { code, reason } = error as NodeJS.ErrnoException & { reason?: string };
    const why = `${this.#url.base}: ${reason ?? (error.message || code)}`;
    if (isCertificateRefused(this.#sent, error)) {
      const advice = "The server refuses this client's certificate, or requires one";
      this.#stop(Failure.notSent(`${why}. ${advice} (clientCert, clientKey)`));
      return;
    }
    if (!this.#isConnected) {
      const advice = "Check that the server runs and that the address is right";
      this.#stop(Failure.notSent(`${why}. ${advice}`));
      return;
    }
    // A plain request to a port that speaks TLS ends so.
    const mayBeTls = !this.#url.isHttps && /Parse Error|socket hang up/.test(error.message);
    this.#stop(
      Failure.noReply(mayBeTls ? `${why} (if this port speaks TLS, write https://)` : why),
    );
  }

  #clear(): void {
    clearTimeout(this.#timer);
    clearTimeout(this.#connectTimer);
    this.#signal?.removeEventListener("abort", this.#onAbort);
  }
}

/**
 * `true` if the server refused the client's certificate. Its alert precedes requests on a
 * connection's first one alone: on a used connection it may follow what the server did.
 */
function isCertificateRefused(sent: http.ClientRequest, error: Error): boolean {
  const { code = "" } = error as NodeJS.ErrnoException;
  return !sent.reusedSocket && /^ERR_SSL_.*(ALERT|CERTIFICATE)/.test(code);
}
