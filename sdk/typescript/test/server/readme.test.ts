// The program of the README, as a person pastes it.
import assert from "node:assert/strict";
import { spawn } from "node:child_process";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, symlinkSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { test } from "node:test";
import { RealServer } from "../support/real-server.js";
import { repositoryFile } from "../support/repository.js";

test("the program of the README signs in, sends, and shows what comes", async () => {
  const program = /```js\n(\/\/ chat\.mjs\n[\s\S]+?)```/.exec(readFileSync(repositoryFile("sdk/typescript/README.md"), "utf8"))?.[1] ?? "";
  assert.ok(program.trim().split("\n").length <= 30, "it is thirty lines");
  const server = await new RealServer().start();
  const folder = mkdtempSync(join(tmpdir(), "tidings-readme-"));
  const [ada, ben] = await server.users("ada", "ben");
  mkdirSync(join(folder, "node_modules", "@tidings"), { recursive: true });
  symlinkSync(repositoryFile("sdk/typescript"), join(folder, "node_modules", "@tidings", "client"));
  symlinkSync(repositoryFile("sdk/typescript/node_modules/ws"), join(folder, "node_modules", "ws"));
  writeFileSync(join(folder, "chat.mjs"), program);
  const child = spawn(process.execPath, ["chat.mjs"], {
    cwd: folder,
    env: { ...process.env, TIDINGS_URL: server.url, TOKEN: server.token(ada ?? ""), PEER: ben },
    stdio: ["ignore", "pipe", "pipe"],
  });
  let said = "";
  const says = (wanted: string): Promise<void> =>
    new Promise((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`it does not say ${wanted}, but:\n${said}`)), 60_000);
      const look = (): void => {
        if (!said.includes(wanted)) return;
        clearTimeout(timer);
        child.stdout.off("data", look);
        resolve();
      };
      child.stdout.on("data", look);
      look();
    });
  for (const stream of [child.stdout, child.stderr]) stream.on("data", (data: Buffer) => (said += data.toString()));
  try {
    await says(`signed in as ${ada}`);
    await says(`[sent] ${ada}: hello, you`);
    await server.api("POST", "/v1/messages", { from: ben, to: ada, body: { text: "hello yourself" } });
    await says(`[sent] ${ben}: hello yourself`);
    await says(`${ben} wrote in`);
  } finally {
    child.kill("SIGKILL");
    await server.remove();
    rmSync(folder, { recursive: true, force: true });
  }
});
