/**
 * The fake server in the place of a real one, for the conformance scenarios: its arguments are the
 * name of the program and those of the program, of which it reads `--listen` alone.
 */
import { FakeServer } from "../src/testing.js";

const [program = "", ...args] = process.argv.slice(2);
const listen = args[args.indexOf("--listen") + 1] ?? "";

void FakeServer.start(Number(listen.split(":")[1] ?? 0)).then(({ url }) => {
  process.stdout.write(`${program} listening on ${url}\n`);
});
