/** Options of calls, checked for programs that no compiler has checked. Pure. */
import { types } from "node:util";
import { InvalidError } from "./errors.js";

/** Type of an option; a `value` has a rule of its own. */
export type OptionType = "boolean" | "function" | "signal" | "string" | "value";

/** Options of a call and their types. */
export type OptionTypes = Readonly<Record<string, OptionType>>;

/** Types of all options of `O`. */
export type TypesOf<O> = { readonly [Name in keyof Required<O>]: OptionType };

/** Names by which other packages know an option. */
const OTHER_NAMES: ReadonlyMap<string, string> = new Map([
  ["url", "server"],
  ["address", "server"],
]);

const TYPE_TEXTS = {
  boolean: "true or false",
  function: "a function",
  signal: "an AbortSignal",
  string: "a string",
} as const;

/** Refuses what is no object of options, options that `call` lacks, and values of other types. */
export function checkOptions(call: string, options: object, known: OptionTypes): void {
  if (Object.prototype.toString.call(options) !== "[object Object]") {
    const [first] = Object.keys(known);
    const what = `not ${typeName(options)}`;
    throw new InvalidError(
      `${call}: the options must be an object, as in { ${first}: … }, ${what}`,
    );
  }
  for (const [name, value] of Object.entries(options)) {
    const type = Object.hasOwn(known, name) ? known[name] : undefined;
    if (type === undefined) {
      throw new InvalidError(`${call}: there is no option ${name}; ${suggestion(name, known)}`);
    }
    if (value === undefined || type === "value" || isOfType(value, type)) continue;
    // The value itself may be a secret.
    throw new InvalidError(`${name} must be ${TYPE_TEXTS[type]}, not ${typeName(value)}`);
  }
}

/** Checks the work of a block. */
export function checkWork(call: string, work: unknown): void {
  if (typeof work === "function") return;
  throw new InvalidError(`${call}: the work must be a function, not ${typeName(work)}`);
}

/** Names the type of a value in a sentence, without the value. */
export function typeName(value: unknown): string {
  if (value === undefined || value === null) return String(value);
  if (Array.isArray(value)) return "an array";
  if (typeof value !== "object") return `a ${typeof value}`;
  const { name = "" } = (value.constructor ?? {}) as { name?: string };
  const word = name === "Object" || name === "" ? "object" : name;
  return `${/^[aeio]/i.test(word) ? "an" : "a"} ${word}`;
}

/** `true` for what has the bytes of an object. */
export function isBody(body: unknown): body is string | Uint8Array {
  return typeof body === "string" || types.isUint8Array(body);
}

function isOfType(value: unknown, type: Exclude<OptionType, "value">): boolean {
  if (type !== "signal") return typeof value === type;
  return typeof (value as { throwIfAborted?: unknown }).throwIfAborted === "function";
}

function suggestion(name: string, known: OptionTypes): string {
  const names = Object.keys(known);
  const other = OTHER_NAMES.get(name);
  if (other !== undefined && names.includes(other)) return `did you mean ${other}?`;
  const [nearest] = names
    .map((one): [string, number] => [one, distance(plain(name), plain(one))])
    .sort(([, a], [, b]) => a - b);
  if (nearest && nearest[1] <= 2) return `did you mean ${nearest[0]}?`;
  return `the options are ${names.join(", ")}`;
}

function plain(name: string): string {
  return name.toLowerCase().replace(/[_-]/g, "");
}

/** Number of characters to insert, delete or replace. */
function distance(from: string, to: string): number {
  let row = Array.from({ length: to.length + 1 }, (_, at) => at);
  for (let at = 0; at < from.length; at += 1) {
    const next = [at + 1];
    for (let other = 0; other < to.length; other += 1) {
      const replaced = (row[other] ?? 0) + (from[at] === to[other] ? 0 : 1);
      next.push(Math.min(replaced, (row[other + 1] ?? 0) + 1, (next[other] ?? 0) + 1));
    }
    row = next;
  }
  return row[to.length] ?? 0;
}
