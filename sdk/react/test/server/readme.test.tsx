// The components of the README, as a person pastes them.
import { textOf } from "@tidings/client";
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { fileURLToPath, pathToFileURL } from "node:url";
import WebSocket from "ws";
import { assertNoComplaints, Screen } from "../support/screen.js";
import { RealServer } from "../support/server.js";
import { open } from "../support/session.js";

const PACKAGE = fileURLToPath(new URL("../../..", import.meta.url));
const COMPILER_OPTIONS = {
  target: "es2022", lib: ["es2022", "dom", "dom.iterable"], module: "nodenext", jsx: "react-jsx", types: [], strict: true,
  exactOptionalPropertyTypes: true, noUncheckedIndexedAccess: true, skipLibCheck: false,
};

/** A project of its own with the program, compiled. */
function project(program: string): string {
  const folder = mkdtempSync(join(tmpdir(), "tidings-react-"));
  const modules = join(PACKAGE, "node_modules");
  mkdirSync(join(folder, "node_modules", "@tidings"), { recursive: true });
  symlinkSync(PACKAGE, join(folder, "node_modules", "@tidings", "react"));
  symlinkSync(join(modules, "@tidings", "client"), join(folder, "node_modules", "@tidings", "client"));
  for (const name of ["@types", "react", "csstype"]) symlinkSync(join(modules, name), join(folder, "node_modules", name));
  writeFileSync(join(folder, "package.json"), '{"type":"module"}');
  writeFileSync(join(folder, "app.tsx"), program);
  writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions: COMPILER_OPTIONS, include: ["app.tsx"] }));
  const { stdout, status } = spawnSync(process.execPath, [join(modules, "typescript/bin/tsc"), "-p", folder], { encoding: "utf8" });
  assert.equal(status, 0, stdout);
  return folder;
}

test("the components of the README compile, connect, show what comes and send", async () => {
  const program = /```tsx\n([\s\S]+?)```/.exec(readFileSync(join(PACKAGE, "README.md"), "utf8"))?.[1] ?? "";
  assert.ok(program.trim().split("\n").length <= 30, "it is thirty lines");
  const folder = project(program);
  const server = await new RealServer().start();
  const screen = new Screen();
  try {
    const [ada = "", ben = ""] = await server.users("ada", "ben");
    const { App } = (await import(pathToFileURL(join(folder, "app.js")).href)) as { readonly App: React.ComponentType<{ user: string; peer: string; options: object }> };
    screen.render(<App user={ada} peer={ben} options={{ url: server.url, token: async () => server.token(ada), WebSocket }} />);
    await screen.sees("Connecting…");
    const other = await open(server, ben);
    const heard = new Promise<string | undefined>((resolve) => other.on("message", (message) => message.from === ada && resolve(textOf(message))));
    await server.api("POST", "/v1/messages", { from: ben, to: ada, body: { text: "hello" } });
    await screen.sees(`${ben}: hello (sent)`);
    await screen.sees("1 unread");
    other.direct(ada).typing();
    await screen.sees(`${ben} types…`);
    screen.submit({ text: "hello yourself" });
    await screen.sees(`${ada}: hello yourself (sent)`);
    assert.equal(await heard, "hello yourself");
    await other.close();
  } finally {
    screen.unmount();
    await server.remove();
    rmSync(folder, { recursive: true, force: true });
  }
  assertNoComplaints();
});
