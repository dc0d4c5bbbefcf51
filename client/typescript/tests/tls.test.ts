/** Servers over TLS, with a CA of their own, client certificates and bearer tokens. */
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { dirname } from "node:path";
import { before, test } from "node:test";
import { OutcomeUnknownError, UnavailableError } from "../src/index.js";
import { client, fence, file, guard, lockServer } from "./harness.js";

let server: string;
let storage: string;
let authFile: string;
let ca: string;

/** Makes a certificate in the folder of the tests, signed by the CA. */
function certificate(name: string, extension: string): { cert: string; key: string } {
  const key = file(`${name}.key`, "");
  const folder = dirname(key);
  const run = (...args: string[]) => execFileSync("openssl", args, { cwd: folder, stdio: "pipe" });
  const fresh = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
  const subject = ["-subj", `/CN=${name}`, "-keyout", `${name}.key`];
  if (name === "ca") {
    run("req", "-x509", ...fresh, ...subject, "-out", "ca.pem", "-days", "2");
  } else {
    run("req", ...fresh, ...subject, "-out", `${name}.csr`);
    file(`${name}.ext`, extension);
    const signed = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2"];
    const made = ["-extfile", `${name}.ext`, "-out", `${name}.pem`];
    run("x509", "-req", "-in", `${name}.csr`, ...signed, ...made);
  }
  return { cert: `${folder}/${name}.pem`, key };
}

before(async () => {
  ca = certificate("ca", "").cert;
  const { cert, key } = certificate("server", "subjectAltName=IP:127.0.0.1");
  const tls = ["--tls-cert", cert, "--tls-key", key, "--tls-client-ca", ca];
  authFile = file("token", "");
  const secret = dirname(authFile) + "/secret";
  const allow = ["--allow", "use a/*"];
  const entry = fence("auth", "new", "tests", ...allow, "--secret-file", secret);
  authFile = secret;
  const access = ["--access-file", file("access.toml", entry)];
  [server, storage] = await Promise.all([lockServer(...tls, ...access), guard(...tls, ...access)]);
});

test("a CA, a client certificate and a bearer token reach both servers", async () => {
  const { cert: clientCert, key: clientKey } = certificate("client", "extendedKeyUsage=clientAuth");
  const env = {
    FENCE_SERVER: server,
    FENCE_GUARD: storage,
    FENCE_CA_FILE: ca,
    FENCE_CLIENT_CERT: clientCert,
    FENCE_CLIENT_KEY: clientKey,
    FENCE_AUTH_FILE: authFile,
  };
  const made = client({ env });
  const lease = await made.lock("a/1", { ttlMs: 60_000 });
  await made.objects.put(lease, "a/1", "over TLS");
  assert.equal((await made.objects.get(lease, "a/1"))?.text(), "over TLS");
  await lease.release();
  await assert.rejects(made.lock("b/1"), { kind: "invalid", code: "forbidden", status: 403 });
  const unknown = client({ env: { ...env, FENCE_AUTH_FILE: "" }, token: "wrong" });
  await assert.rejects(unknown.lock("a/1"), { kind: "invalid", code: "unauthorized" });
});

test("a server that cannot be verified, or a missing certificate, is named", async () => {
  const patience = { patienceMs: 100 };
  const unverified = client({ server }).lock("a/1", patience);
  await assert.rejects(unverified, (error) => {
    return error instanceof UnavailableError && /certificate/i.test(error.message);
  });
  const without = client({ server, caFile: ca }).lock("a/1", patience);
  await assert.rejects(without, (error) => {
    const isNamed = /certificate/i.test((error as Error).message);
    return (error instanceof UnavailableError || error instanceof OutcomeUnknownError) && isNamed;
  });
  const plain = client({ server: server.replace("https", "http") }).lock("a/1", patience);
  await assert.rejects(plain, /https:/);
});
