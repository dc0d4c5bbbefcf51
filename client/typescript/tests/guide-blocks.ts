/**
 * Writes the programs of Markdown pages to a folder: the code blocks whose first line is a comment
 * with a file name. Arguments: the folder, the pages.
 */
import { readFileSync, writeFileSync } from "node:fs";
import { join } from "node:path";

const [folder = "", ...pages] = process.argv.slice(2);
for (const page of pages) {
  const blocks = readFileSync(page, "utf8").matchAll(/^```js\n\/\/ (\S+\.mjs)\n([^]*?)^```$/gm);
  for (const [, name = "", code = ""] of blocks) writeFileSync(join(folder, name), code);
}
