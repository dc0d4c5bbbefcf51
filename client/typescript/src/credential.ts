/** Fencing tokens as text: the header value and the credential. Pure. */
import { InvalidError } from "./errors.js";
import { checkId, checkLockName, checkToken } from "./names.js";

const PREFIX = "fc1_";
const TOKENS_MAX = 16;
const HEADER_BYTES_MAX = 1024;
const CREDENTIAL_BYTES_MAX = 64 << 10;

/** Parts of a `Fencing-Token` header value. */
export interface FencingToken {
  readonly token: number;
  readonly lock: string;
  /** The id of the lease. */
  readonly lease: string;
  readonly namespace: string;
  /** The key and the signature in base64, which logs leave out; `null` if it is unsigned. */
  readonly signature: { readonly kid: string; readonly mac: string } | null;
}

const PARAMETER = /; *([a-z*][a-z0-9_.*-]*)=("(?:[ !#-[\]-~]|\\["\\])*"|:[A-Za-z0-9+/]*={0,2}:)/y;

/** Parses a header value. Throws `InvalidError` for one that a guard would refuse as malformed. */
export function parseFencingToken(header: string): FencingToken {
  const refuse = (rule: string): never => {
    throw new InvalidError(`a Fencing-Token header value ${rule}`);
  };
  if (header.length > HEADER_BYTES_MAX) refuse(`has at most ${HEADER_BYTES_MAX} bytes`);
  const text = header.replace(/^ +| +$/g, "");
  const [number] = /^\d{1,15}(?=;|$)/.exec(text) ?? refuse("begins with a token");
  const fields = new Map<string, string>();
  PARAMETER.lastIndex = number.length;
  for (let at = number.length; at < text.length; at = PARAMETER.lastIndex) {
    const [, name = "", value = ""] = PARAMETER.exec(text) ?? refuse("is malformed");
    if (!["lock", "lease", "ns", "kid", "sig"].includes(name)) {
      refuse(`has no parameter ${name}`);
    }
    if (fields.has(name)) refuse(`has the parameter ${name} once`);
    if ((name === "sig") !== value.startsWith(":")) refuse(`has another type of ${name}`);
    const bare = value.slice(1, -1);
    fields.set(name, name === "sig" ? bare : bare.replace(/\\(.)/g, "$1"));
  }
  const field = (name: string) => fields.get(name) ?? refuse(`has the parameter ${name}`);
  const [kid, mac, namespace = "default"] = ["kid", "sig", "ns"].map((name) => fields.get(name));
  if ((kid === undefined) !== (mac === undefined)) refuse("has both of kid and sig, or none");
  if (!/^[A-Za-z0-9._-]{1,64}$/.test(namespace)) refuse("has a namespace of 1 to 64 characters");
  if (kid !== undefined && !/^[A-Za-z0-9._-]{1,32}$/.test(kid)) refuse("has a kid of 1 to 32");
  if (mac !== undefined && !/^[A-Za-z0-9+/]{43}=$/.test(mac)) refuse("has a sig of 32 bytes");
  return {
    token: checkToken("token", Number(number)),
    lock: checkLockName(field("lock")),
    lease: checkId("lease", field("lease")),
    namespace,
    signature: kid !== undefined && mac !== undefined ? signatureOf(kid, mac) : null,
  };
}

/** A signature whose secret part is not among what logs enumerate. */
function signatureOf(kid: string, mac: string): { kid: string; mac: string } {
  return Object.defineProperty({ kid, mac }, "mac", { enumerable: false });
}

/** Formats a token as a header value, in the one form that writers use. */
export function formatFencingToken(parts: FencingToken): string {
  const { token, lock, lease, namespace, signature } = parts;
  const signed = signature ? `;kid="${signature.kid}";sig=:${signature.mac}:` : "";
  return `${token};lock="${lock}";lease="${lease}";ns="${namespace}"${signed}`;
}

/**
 * Joins tokens to one password for the guard's Redis port: at most 16 header values or
 * credentials, each of another lock.
 */
export function joinCredentials(tokens: readonly string[]): string {
  const all = tokens.flatMap(parseCredential);
  checkTogether(all);
  return all.map(encode).join(".");
}

/** Parses a credential, or one plain header value. Never repeats the text: it may be a password. */
export function parseCredential(text: string): FencingToken[] {
  if (text.length > CREDENTIAL_BYTES_MAX) {
    throw new InvalidError(`a credential has at most ${CREDENTIAL_BYTES_MAX} bytes`);
  }
  if (!text.startsWith(PREFIX)) {
    if (text.includes("lock=")) return [parseFencingToken(text)];
    throw new InvalidError(`the credential is no token: it does not begin with ${PREFIX}`);
  }
  const tokens = text.split(".").map(decode);
  checkTogether(tokens);
  return tokens;
}

function encode(token: FencingToken): string {
  return PREFIX + Buffer.from(formatFencingToken(token)).toString("base64url");
}

function decode(part: string, index: number): FencingToken {
  const refuse = (rule: string): never => {
    throw new InvalidError(`the credential cannot be read: token ${index + 1} of it ${rule}`);
  };
  if (!part.startsWith(PREFIX)) refuse(`does not begin with ${PREFIX}`);
  const encoded = part.slice(PREFIX.length);
  const header = Buffer.from(encoded, "base64url");
  // Node skips what is no base64url; a token has one credential.
  if (header.toString("base64url") !== encoded) refuse("is not base64url");
  let token: FencingToken;
  try {
    token = parseFencingToken(header.toString("utf8"));
  } catch {
    return refuse("holds no token");
  }
  if (encode(token) !== part) refuse("holds a header value that is not in its canonical form");
  return token;
}

function checkTogether(tokens: readonly FencingToken[]): void {
  if (tokens.length < 1 || tokens.length > TOKENS_MAX) {
    throw new InvalidError(`a credential has 1 to ${TOKENS_MAX} tokens, not ${tokens.length}`);
  }
  const seen = new Set<string>();
  for (const { lock } of tokens) {
    if (seen.has(lock)) throw new InvalidError(`the credential has two tokens of lock ${lock}`);
    seen.add(lock);
  }
}
