// What this user sends: shown at once, sent in order, each once.
import assert from "node:assert/strict";
import { test } from "node:test";
import { TidingsError } from "../src/errors.js";
import { textOf } from "../src/message.js";
import { start } from "./support/start.js";

test("a message is pending at once and sent when the server has it, as the same item of the list", async () => {
  const { client, clock } = await start();
  const chat = client.direct("ben");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  const sent = chat.send({ text: "hello" });
  const [pending] = chat.messages.get().items;
  assert.ok(pending?.is === "message" && pending.state === "pending" && pending.from === "ada");
  await clock.pass(10);
  const receipt = await sent;
  const { items } = chat.messages.get();
  assert.equal(items.length, 1);
  assert.ok(items[0]?.is === "message" && items[0].state === "sent" && items[0].seq === receipt.seq);
  assert.equal(items[0].key, pending.key);
});

test("what is written without a connection is sent later, in order", async () => {
  const { client, clock, server } = await start();
  server.isReachable = false;
  server.closeAll(1006);
  await clock.pass(10);
  const sends = ["one", "two", "three"].map((text) => client.conversation("g").send({ text }));
  server.isReachable = true;
  await clock.pass(60_000);
  assert.deepEqual((await Promise.all(sends)).map(({ seq }) => seq), [1, 2, 3]);
  assert.deepEqual(server.truth.timeline("g").map((entry) => textOf(entry)), ["one", "two", "three"]);
});

test("a connection that breaks after the commit and before the answer doubles nothing", async () => {
  const { client, clock, server } = await start();
  let cuts = 3;
  server.faults = { ...server.faults, cutBeforeAnswer: ({ t }) => t === "send" && cuts-- > 0 };
  const sends = ["one", "two", "three", "four"].map((text) => client.conversation("g").send({ text }));
  await clock.pass(120_000);
  assert.deepEqual((await Promise.all(sends)).map(({ seq }) => seq), [1, 2, 3, 4]);
  assert.equal(server.truth.timeline("g").length, 4);
  const chat = client.conversation("g");
  void chat.messages.load();
  await clock.pass(10);
  assert.equal(chat.messages.get().items.length, 4);
});

test("an answer that never comes is asked for again", async () => {
  const { client, clock, server } = await start();
  let lost = 2;
  server.faults = { ...server.faults, toClient: ({ t }) => ((t === "sent" || t === "messages") && lost-- > 0 ? "drop" : "pass") };
  const sent = client.conversation("g").send({ text: "hello" });
  await clock.pass(120_000);
  assert.equal((await sent).seq, 1);
  assert.equal(server.truth.timeline("g").length, 1);
});

test("a refusal is shown with its reason, and the message can be retried or discarded", async () => {
  const { client, clock, server } = await start();
  const chat = client.conversation("g");
  server.refuse = ({ t }) => (t === "send" ? { code: "refused_by_hook", retry: false, reason: "spam" } : undefined);
  const refused = chat.send({ text: "no" }, { clientMsgId: "m1" });
  const other = chat.send({ text: "neither" }, { clientMsgId: "m2" });
  await clock.pass(20);
  await assert.rejects(refused, (error) => error instanceof TidingsError && error.code === "refused_by_hook" && error.reason === "spam");
  await assert.rejects(other, { code: "refused_by_hook", reason: "spam" });
  assert.deepEqual(chat.messages.get().items.map((item) => item.is === "message" && item.state), ["refused", "refused"]);
  assert.equal(chat.discard("m2"), true);
  assert.equal(chat.discard("m2"), false);
  server.refuse = () => undefined;
  chat.retry("m1");
  await clock.pass(20);
  assert.equal(server.truth.timeline("g").length, 1);
  assert.equal(server.truth.timeline("g")[0]?.client_msg_id, "m1");
});

test("a refusal for the moment waits as long as the server asks, and keeps the order", async () => {
  const { client, clock, server } = await start();
  let refusals = 2;
  const times: number[] = [];
  server.refuse = ({ t }) => {
    if (t !== "send") return undefined;
    times.push(clock.now());
    return refusals-- > 0 ? { code: "rate_limited", retry: true, retry_after_ms: 4_000 } : undefined;
  };
  const sends = ["one", "two", "three"].map((text) => client.conversation("g").send({ text }));
  await clock.pass(20_000);
  await Promise.all(sends);
  assert.deepEqual(server.truth.timeline("g").map((entry) => textOf(entry)), ["one", "two", "three"]);
  assert.ok((times[1] ?? 0) - (times[0] ?? 0) >= 4_000 && (times[2] ?? 0) - (times[1] ?? 0) >= 4_000);
});

test("what is too large is refused here, since the server would end the session", async () => {
  const { client, clock, server } = await start();
  await assert.rejects(client.conversation("g").send({ text: "x".repeat(65_536) }), { code: "limit_exceeded" });
  await assert.rejects(client.popups.report([{ id: "x".repeat(200_000), decision: "d", type: "click" }]), { code: "limit_exceeded" });
  await clock.pass(10);
  assert.equal(server.binds.length, 1);
});

test("the queue is bounded", async () => {
  const { client, clock, server } = await start();
  server.isReachable = false;
  server.closeAll(1006);
  await clock.pass(10);
  const sends = Array.from({ length: 1_001 }, (_, n) => client.conversation(`g${n % 7}`).send(n));
  await assert.rejects(sends[1_000] ?? Promise.resolve(), { code: "outbox_full" });
});

test("a promise that nobody looks at is no unhandled rejection", async () => {
  const { client, clock, server } = await start();
  const unhandled: unknown[] = [];
  const listener = (reason: unknown): void => void unhandled.push(reason);
  process.on("unhandledRejection", listener);
  server.refuse = () => ({ code: "forbidden", retry: false });
  void client.conversation("g").send("x");
  await clock.pass(50);
  process.off("unhandledRejection", listener);
  assert.deepEqual(unhandled, []);
});
