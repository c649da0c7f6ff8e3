// The client against the real server, in random histories: what it shows in the end is what the documents say. HISTORIES is how many, SEED the
// first one's seed.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import type { TransportName } from "../../src/index.js";
import { RandomHistory } from "../support/random-history.js";
import { RealServer } from "../support/real-server.js";

const HISTORIES = Number(process.env["HISTORIES"] ?? 12);
const SEED = Number(process.env["SEED"] ?? 1);
const AT_ONCE = 6;
let server: RealServer;

before(async () => {
  server = await new RealServer().start();
});

after(async () => {
  await server.remove();
});

test(`in ${HISTORIES} random histories the client shows what the documents say`, { timeout: 3_600_000 }, async () => {
  const seeds = Array.from({ length: HISTORIES }, (_, n) => SEED + n);
  const failed: string[] = [];
  const work = async (): Promise<void> => {
    for (let seed = seeds.shift(); seed !== undefined; seed = seeds.shift()) {
      const history = new RandomHistory(server, seed);
      // Every third one over an event stream.
      const transport: TransportName = seed % 3 === 0 ? "event-stream" : "websocket";
      const wrong = await history.run(transport);
      if (wrong.length === 0) continue;
      failed.push(`seed ${seed}: ${wrong.join("\n")}`);
      if (process.env["LOG"] !== undefined) console.log([`seed ${seed}`, ...history.log].join("\n"));
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  assert.deepEqual(failed, [], `${failed.length} of ${HISTORIES} histories\n${failed.join("\n\n")}`);
});
