// The generated documentation of this package: an export without a word about it fails.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { repositoryFile } from "./support/repository.js";

const PACKAGE = repositoryFile("sdk/typescript");

function typedoc(...options: readonly string[]): { readonly status: number | null; readonly said: string } {
  const { status, stdout, stderr } = spawnSync(process.execPath, ["node_modules/typedoc/bin/typedoc", "--emit", "none", ...options], { cwd: PACKAGE, encoding: "utf8" });
  return { status, said: stdout + stderr };
}

test("every exported item is documented", () => {
  const { status, said } = typedoc();
  assert.equal(status, 0, said);
});

test("an export without documentation is refused", () => {
  const folder = mkdtempSync(join(tmpdir(), "tidings-typedoc-"));
  try {
    const [entry, config] = [join(folder, "index.ts"), join(folder, "tsconfig.json")];
    writeFileSync(entry, "/** Has a word. */\nexport interface Known {\n  readonly unsaid: string;\n}\n");
    writeFileSync(config, JSON.stringify({ compilerOptions: { strict: true, module: "nodenext", types: [] }, include: [entry] }));
    const { status, said } = typedoc("--entryPoints", entry, "--tsconfig", config);
    assert.notEqual(status, 0, said);
    assert.match(said, /Known\.unsaid.*does not have any documentation/u);
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
});
