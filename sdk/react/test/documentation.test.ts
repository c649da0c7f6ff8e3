// The generated documentation of this package: an export without a word about it fails (the client's own test shows that it does).
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";

test("every exported item is documented", () => {
  const cwd = fileURLToPath(new URL("../..", import.meta.url));
  const { status, stdout, stderr } = spawnSync(process.execPath, ["node_modules/typedoc/bin/typedoc", "--emit", "none"], { cwd, encoding: "utf8" });
  assert.equal(status, 0, stdout + stderr);
});
