/** `Symbol.asyncDispose` for Node 18, for `await using` that a compiler has translated. */
if (Symbol.asyncDispose === undefined) {
  Object.defineProperty(Symbol, "asyncDispose", { value: Symbol.for("Symbol.asyncDispose") });
}
export {};
