/**
 * Settings: options of the program, variables `FENCE_…`, the file of `FENCE_CONFIG`, in this order.
 * No other module reads the environment.
 */
import { readFileSync, statSync } from "node:fs";
import { hostname, userInfo } from "node:os";
import { InvalidError } from "./errors.js";
import { incarnationOfThisProcess } from "./ids.js";
import type { Identity } from "./lock-spec.js";
import { checkText } from "./names.js";
import { checkOptions, type TypesOf } from "./options.js";
import type { Connections } from "./transport.js";

/** Longest file of settings or certificates that is read, in bytes. */
const FILE_BYTES_MAX = 1 << 20;
const SECRET_BYTES_MAX = 256;

/** Options of a client; each replaces the variable in parentheses. */
export interface ClientOptions {
  /** Address of the lock server (`FENCE_SERVER`): `http://127.0.0.1:7420`. */
  server?: string | undefined;
  /** Address of the guard (`FENCE_GUARD`): `http://127.0.0.1:7421`. */
  guard?: string | undefined;
  /** Owner of the leases, for people to read (`FENCE_OWNER`): `user@host:pid`. */
  owner?: string | undefined;
  /** A text that every restart of the owner changes (`FENCE_INCARNATION`): a random id. */
  incarnation?: string | undefined;
  /** The bearer token. */
  token?: string | undefined;
  /** The file with the bearer token (`FENCE_AUTH_FILE`). */
  authFile?: string | undefined;
  /** The CA (PEM) that signs the servers' certificates (`FENCE_CA_FILE`): Node's own. */
  caFile?: string | undefined;
  /** The certificate (PEM) for servers that require one (`FENCE_CLIENT_CERT`). */
  clientCert?: string | undefined;
  /** The certificate's private key (PEM) (`FENCE_CLIENT_KEY`). */
  clientKey?: string | undefined;
  /** Accepts `http://` to other machines, for networks that encrypt (`FENCE_INSECURE_HTTP`). */
  insecureHttp?: boolean | undefined;
  /** The environment: `process.env`; `{}` for none. */
  env?: Readonly<Record<string, string | undefined>> | undefined;
}

const CLIENT_OPTIONS: TypesOf<ClientOptions> = {
  server: "string",
  guard: "string",
  owner: "string",
  incarnation: "string",
  token: "string",
  authFile: "string",
  caFile: "string",
  clientCert: "string",
  clientKey: "string",
  insecureHttp: "boolean",
  env: "value",
};

/** Settings, read and checked. */
export interface Settings {
  readonly server: string;
  readonly guard: string;
  readonly identity: Identity;
  readonly connections: Connections;
}

const KEYS = {
  server: "FENCE_SERVER",
  guard: "FENCE_GUARD",
  owner: "FENCE_OWNER",
  incarnation: "FENCE_INCARNATION",
  "auth-file": "FENCE_AUTH_FILE",
  "ca-file": "FENCE_CA_FILE",
  "client-cert": "FENCE_CLIENT_CERT",
  "client-key": "FENCE_CLIENT_KEY",
  "insecure-http": "FENCE_INSECURE_HTTP",
} as const;

type Key = keyof typeof KEYS;

/** Keys of the file that all commands of `fence` have, without an effect here. */
const OF_COMMANDS: readonly string[] = ["log", "color", "output"];

/** Reads the settings. Throws `InvalidError` with the name of the setting that cannot be used. */
export function readSettings(options: ClientOptions): Settings {
  checkOptions("new Client", options, { ...CLIENT_OPTIONS, log: "function" });
  const env = options.env ?? process.env;
  const file = env["FENCE_CONFIG"] ? parseFile(env["FENCE_CONFIG"]) : new Map<Key, string>();
  const setting = (key: Key, given?: string) =>
    given ?? (variable(env, KEYS[key]) || file.get(key) || undefined);
  const owner = setting("owner", options.owner);
  const incarnation = setting("incarnation", options.incarnation) ?? incarnationOfThisProcess();
  const token = options.token ?? fromFile(setting("auth-file", options.authFile));
  return {
    server: setting("server", options.server) ?? "http://127.0.0.1:7420",
    guard: setting("guard", options.guard) ?? "http://127.0.0.1:7421",
    identity: {
      owner: checkText("owner", owner ?? defaultOwner()),
      isOwnerGiven: owner !== undefined,
      incarnation: checkText("incarnation", incarnation),
    },
    connections: {
      authorization: token === undefined ? undefined : `Bearer ${checkSecret(token)}`,
      insecureHttp: options.insecureHttp ?? switchOf(setting("insecure-http")),
      tls: certificates({
        ca: setting("ca-file", options.caFile),
        cert: setting("client-cert", options.clientCert),
        key: setting("client-key", options.clientKey),
      }),
    },
  };
}

/** A variable, or the content of the file that its `_FILE` twin names; empty counts as not set. */
function variable(env: NonNullable<ClientOptions["env"]>, name: string): string | undefined {
  const value = env[name] || undefined;
  const twin = env[`${name}_FILE`] || undefined;
  if (value !== undefined && twin !== undefined) {
    throw new InvalidError(`${name} and ${name}_FILE are both set; unset one of them`);
  }
  return twin === undefined ? value : readText(`${name}_FILE`, twin).trim();
}

function switchOf(value: string | undefined): boolean {
  if (value === undefined || value === "false") return false;
  if (value === "true") return true;
  throw new InvalidError(`FENCE_INSECURE_HTTP ${JSON.stringify(value)} must be true or false`);
}

function fromFile(path: string | undefined): string | undefined {
  return path === undefined ? undefined : readText("auth-file", path).trim();
}

/** The error does not contain the token. */
function checkSecret(token: string): string {
  if (new RegExp(`^[!-~]{1,${SECRET_BYTES_MAX}}$`).test(token)) return token;
  throw new InvalidError("a bearer token is one word of 1 to 256 printable characters");
}

function certificates(files: Record<"ca" | "cert" | "key", string | undefined>) {
  if ((files.cert === undefined) !== (files.key === undefined)) {
    throw new InvalidError(
      "FENCE_CLIENT_CERT and FENCE_CLIENT_KEY (clientCert, clientKey) belong together; one of " +
        "them is missing",
    );
  }
  const tls: Connections["tls"] = {};
  for (const [name, path] of Object.entries(files) as ["ca" | "cert" | "key", string?][]) {
    if (path === undefined) continue;
    const pem = readText(`${name === "ca" ? "ca-file" : `client-${name}`}`, path);
    if (!pem.includes("-----BEGIN ")) throw new InvalidError(`${path} holds no PEM`);
    tls[name] = Buffer.from(pem);
  }
  return tls;
}

function readText(setting: string, path: string): string {
  try {
    const { size } = statSync(path);
    if (size > FILE_BYTES_MAX) throw new Error(`it has more than ${FILE_BYTES_MAX} bytes`);
    return readFileSync(path, "utf8");
  } catch (cause) {
    const why = cause instanceof Error ? cause.message : String(cause);
    throw new InvalidError(`${setting}: the file ${path} cannot be read: ${why}`, { cause });
  }
}

/** Parses the flat part of TOML that these settings need: `key = "value"`, `true` or `false`. */
function parseFile(path: string): Map<Key, string> {
  const settings = new Map<Key, string>();
  for (const [index, line] of readText("FENCE_CONFIG", path).split(/\r?\n/).entries()) {
    if (/^\s*(#.*)?$/.test(line)) continue;
    const refuse = (rule: string): never => {
      throw new InvalidError(`${path}, line ${index + 1}: ${rule}`);
    };
    const [, name = "", value = ""] =
      /^\s*([A-Za-z0-9_-]+)\s*=\s*("(?:[^"\\]|\\["\\])*"|'[^']*'|true|false)\s*(?:#.*)?$/.exec(
        line,
      ) ?? refuse('is not of the form key = "value"');
    const key = name.replaceAll("_", "-") as Key;
    if (OF_COMMANDS.includes(key)) continue;
    if (!Object.hasOwn(KEYS, key)) {
      refuse(`unknown key ${name}; this package reads ${Object.keys(KEYS).join(", ")}`);
    }
    if (settings.has(key)) refuse(`${name} is there twice`);
    const bare = /^["']/.test(value) ? value.slice(1, -1) : value;
    settings.set(key, value.startsWith('"') ? bare.replace(/\\(["\\])/g, "$1") : bare);
  }
  return settings;
}

/** Owner of this process, for people to read: `user@host:pid`. */
function defaultOwner(): string {
  const short = (text: string) => text.replace(/\p{Cc}/gu, "").slice(0, 24);
  let user: string;
  try {
    user = userInfo().username;
  } catch {
    user = `uid${process.getuid?.() ?? ""}`;
  }
  return `${short(user)}@${short(hostname())}:${process.pid}`;
}
