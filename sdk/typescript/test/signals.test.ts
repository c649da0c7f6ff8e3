// Signals: to who is there, and kept nowhere.
import assert from "node:assert/strict";
import { test } from "node:test";
import type { SignalEvent } from "../src/tidings.js";
import { start } from "./support/start.js";

test("a signal leaves at once, and another's is an event", async () => {
  const { clock, server, client } = await start();
  const heard: SignalEvent[] = [];
  client.on("signal", (signal) => heard.push(signal));
  server.script = (frame, link) => {
    if (frame.t !== "signal") return false;
    assert.deepEqual(frame, { t: "signal", conversation: "g", type: "stop", body: { seq: 7 } });
    link.tell({ t: "signal", conversation: "g", user: "ben", type: "ack", body: { seq: 7 } });
    link.tell({ t: "signal", conversation: "g", type: "ring", body: null });
    return true;
  };
  client.conversation("g").signal("stop", { seq: 7 });
  await clock.pass(20);
  assert.deepEqual(heard, [
    { conversation: "g", user: "ben", type: "ack", body: { seq: 7 } },
    { conversation: "g", type: "ring", body: null },
  ]);
});
