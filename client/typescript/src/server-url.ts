/** Address of an HTTP server. Pure. */
import { isIP } from "node:net";
import { InvalidError } from "./errors.js";

/** `http://` or `https://`, a host, and perhaps a port and a path before the API's. */
export interface ServerUrl {
  /** The whole address, without a slash at its end. */
  readonly base: string;
  readonly isHttps: boolean;
  /** The host; an IPv6 address has no brackets. */
  readonly host: string;
  readonly port: number;
  /** The path before the API's, empty or with a leading slash. */
  readonly path: string;
}

/**
 * Parses an address. Refuses plain HTTP to another machine unless `insecureHttp`: bearer and
 * fencing tokens could be read on the way.
 */
export function parseServerUrl(text: string, insecureHttp: boolean): ServerUrl {
  const refuse = (rule: string): never => {
    // The part before the host may be a password.
    const shown = text.replace(/^.*@/, "***@");
    const example = "for example https://fence.example:7420";
    throw new InvalidError(`server address ${JSON.stringify(shown)} ${rule}, ${example}`);
  };
  if (!/^https?:\/\//.test(text)) refuse("must begin with http:// or https://");
  let url: URL;
  try {
    url = new URL(text);
  } catch {
    return refuse("is not a URL");
  }
  if (url.username || url.password || /[@?#]/.test(text)) {
    refuse("must have neither credentials nor a query");
  }
  const isHttps = url.protocol === "https:";
  const host = url.hostname.replace(/^\[(.*)\]$/, "$1");
  const base = text.replace(/\/+$/, "");
  if (!isHttps && !insecureHttp && !isLoopback(host)) {
    throw new InvalidError(
      `${base} is plain HTTP to another machine, so bearer and fencing tokens could be read on ` +
        "the way; write https://, or accept that with insecureHttp (FENCE_INSECURE_HTTP=true)",
    );
  }
  const port = Number(url.port || (isHttps ? 443 : 80));
  return { base, isHttps, host, port, path: url.pathname.replace(/\/+$/, "") };
}

/** `true` for `localhost` and loopback addresses. Other names may resolve to any machine. */
function isLoopback(host: string): boolean {
  if (host.toLowerCase() === "localhost") return true;
  if (isIP(host) === 4) return host.startsWith("127.");
  return isIP(host) === 6 && host === "::1";
}
