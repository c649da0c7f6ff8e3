// A project that uses the client compiles under the strictest settings, with the browser's types and with Node's alone.
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { mkdirSync, mkdtempSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { repositoryFile } from "./support/repository.js";

const PROGRAM = `
import { connect, indexedDbStorage, textOf, type Tidings } from "@tidings/client";
import WebSocket from "ws";
const tidings: Tidings = await connect({ url: "https://chat", token: async () => null, WebSocket, storage: indexedDbStorage("x") });
for (const item of tidings.direct("bob").messages.get().items) {
  if (item.is === "message" && item.state === "refused") console.log(item.error.code, textOf(item));
  if (item.is === "message" && item.state === "sent") console.log(item.seq.toFixed());
  // @ts-expect-error a message that is not known to be sent has no number
  if (item.is === "message") console.log(item.seq);
}
`;

// The browser's own objects fit what the client uses of them.
const BROWSER_PROGRAM = `
const registration: ServiceWorkerRegistration = await navigator.serviceWorker.ready;
await tidings.offlinePush.subscribe({ publicKey: "x", registration });
await tidings.offlinePush.forget({ registration });
`;

for (const lib of [["es2022"], ["es2022", "dom"]]) {
  test(`a project with the types of ${lib.join(" and ")} compiles`, () => {
    const folder = mkdtempSync(join(tmpdir(), "tidings-consumer-"));
    try {
      const modules = repositoryFile("sdk/typescript/node_modules");
      mkdirSync(join(folder, "node_modules", "@tidings"), { recursive: true });
      symlinkSync(repositoryFile("sdk/typescript"), join(folder, "node_modules", "@tidings", "client"));
      for (const name of ["@types", "ws"]) symlinkSync(join(modules, name), join(folder, "node_modules", name));
      writeFileSync(join(folder, "package.json"), '{"type":"module"}');
      writeFileSync(join(folder, "program.ts"), lib.includes("dom") ? PROGRAM + BROWSER_PROGRAM : PROGRAM);
      const compilerOptions = { target: "es2022", lib, types: ["node"], module: "nodenext", strict: true, exactOptionalPropertyTypes: true, noEmit: true };
      writeFileSync(join(folder, "tsconfig.json"), JSON.stringify({ compilerOptions, include: ["program.ts"] }));
      const { stdout, status } = spawnSync(process.execPath, [join(modules, "typescript/bin/tsc"), "-p", folder], { encoding: "utf8" });
      assert.equal(status, 0, stdout);
    } finally {
      rmSync(folder, { recursive: true, force: true });
    }
  });
}
