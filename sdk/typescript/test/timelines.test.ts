// What an app sees of conversations: pages, live entries, gaps, resumes, resets.
import assert from "node:assert/strict";
import { test } from "node:test";
import { Timeline } from "../src/chat/timeline.js";
import type { Conversation } from "../src/conversation.js";
import { textOf, type SentMessage } from "../src/message.js";
import type { FakeServer } from "./support/fake-server.js";
import { start } from "./support/start.js";

const texts = (conversation: Conversation): readonly (string | undefined)[] =>
  conversation.messages.get().items.map((item) => (item.is === "message" ? textOf(item) : item.kind));
const numbers = (from: number, to: number): readonly string[] => Array.from({ length: to - from + 1 }, (_, n) => String(from + n));

function say(server: FakeServer, conversation: string, from: number, to: number, user = "ben"): void {
  for (let n = from; n <= to; n++) server.commit(conversation, { from: user, body: { text: String(n) } });
}

test("a window opens at the newest page, grows at its end, and loads older pages until the beginning", async () => {
  const { client, clock, server } = await start();
  say(server, "g", 1, 120);
  await clock.pass(10);
  const chat = client.conversation("g");
  assert.equal(chat.messages.get().state, "idle");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  assert.deepEqual(texts(chat), numbers(71, 120));
  say(server, "g", 121, 121);
  await clock.pass(10);
  assert.deepEqual(texts(chat), numbers(71, 121));
  const older = chat.messages.loadOlder();
  await clock.pass(10);
  await older;
  assert.deepEqual(texts(chat), numbers(21, 121));
  assert.equal(chat.messages.get().hasOlder, true);
  void chat.messages.loadOlder();
  await clock.pass(10);
  assert.deepEqual(texts(chat), numbers(1, 121));
  assert.equal(chat.messages.get().hasOlder, false);
});

test("a snapshot keeps its identity until something changes, and unchanged items keep theirs", async () => {
  const { client, clock, server } = await start();
  say(server, "g", 1, 3);
  const chat = client.conversation("g");
  let calls = 0;
  chat.messages.subscribe(() => (calls += 1));
  await clock.pass(10);
  const before = chat.messages.get();
  await clock.pass(60_000);
  assert.equal(chat.messages.get(), before);
  calls = 0;
  say(server, "g", 4, 6);
  await clock.pass(10);
  assert.ok(calls >= 1 && calls <= 3, `${calls} calls`);
  assert.equal(chat.messages.get().items[0], before.items[0]);
});

test("entries that come out of order, twice, or not at all are put right", async () => {
  const { client, clock, server } = await start();
  const heard: number[] = [];
  client.on("message", ({ seq }) => heard.push(seq));
  say(server, "g", 1, 2);
  await clock.pass(10);
  const faults = ["drop", "double", "hold", "pass", "drop", "pass", "double"] as const;
  let n = 0;
  server.faults = { ...server.faults, toClient: ({ t }) => (t === "messages" ? (faults[n++ % faults.length] ?? "pass") : "pass") };
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  for (let seq = 3; seq <= 60; seq++) {
    say(server, "g", seq, seq);
    await clock.pass(seq % 5);
  }
  server.faults = { ...server.faults, toClient: () => "pass" };
  say(server, "g", 61, 61);
  await clock.pass(5_000);
  assert.deepEqual(heard, Array.from({ length: 61 }, (_, index) => index + 1));
  assert.deepEqual(texts(chat).slice(-50), numbers(12, 61));
});

test("after a break what was missed comes once, whether as entries or as ranges", async () => {
  for (const resumeMax of [800, 10]) {
    const { client, clock, server } = await start();
    server.resumeMax = resumeMax;
    const heard: number[] = [];
    client.on("message", ({ conversation, seq }) => conversation === "g" && heard.push(seq));
    say(server, "g", 1, 5);
    await clock.pass(10);
    const chat = client.conversation("g");
    chat.messages.subscribe(() => undefined);
    await clock.pass(10);
    server.isReachable = false;
    server.closeAll(1006);
    say(server, "g", 6, 90);
    say(server, "h", 1, 20);
    await clock.pass(2_000);
    server.isReachable = true;
    await clock.pass(60_000);
    assert.deepEqual(texts(chat), numbers(1, 90));
    assert.deepEqual(heard, Array.from({ length: 90 }, (_, index) => index + 1));
  }
});

test("a gap too large to fill is skipped, said, and the window begins anew", async () => {
  const { client, clock, server } = await start();
  server.resumeMax = 10;
  const skipped: object[] = [];
  client.on("skipped", (range) => skipped.push(range));
  say(server, "g", 1, 5);
  await clock.pass(10);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  server.isReachable = false;
  server.closeAll(1006);
  say(server, "g", 6, 3_000);
  await clock.pass(2_000);
  server.isReachable = true;
  await clock.pass(60_000);
  assert.deepEqual(skipped, [{ conversation: "g", from_seq: 6, to_seq: 2990 }]);
  assert.deepEqual(texts(chat), numbers(2941, 3000));
  assert.equal(chat.messages.get().hasOlder, true);
});

test("what history does not have is left out and said", async () => {
  const { client, clock, server } = await start();
  const skipped: object[] = [];
  client.on("skipped", (range) => skipped.push(range));
  say(server, "g", 1, 3);
  await clock.pass(10);
  for (const seq of [4, 5]) server.truth.unavailable.add(`g ${seq}`);
  server.faults = { ...server.faults, toClient: ({ t }) => (t === "messages" ? "drop" : "pass") };
  say(server, "g", 4, 5);
  await clock.pass(10);
  server.faults = { ...server.faults, toClient: () => "pass" };
  const heard: number[] = [];
  client.on("message", ({ seq }) => heard.push(seq));
  say(server, "g", 6, 7);
  await clock.pass(5_000);
  assert.deepEqual(skipped, [{ conversation: "g", from_seq: 4, to_seq: 5 }]);
  assert.deepEqual(heard, [6, 7]);
});

test("a reset, and a cursor that is refused, drop what is held and read anew", async () => {
  for (const how of ["reset", "refused"] as const) {
    const { client, clock, server } = await start();
    let resets = 0;
    client.on("reset", () => (resets += 1));
    say(server, "g", 1, 9);
    await clock.pass(10);
    const chat = client.conversation("g");
    chat.messages.subscribe(() => undefined);
    await clock.pass(10);
    // A restored backup: the conversation is shorter, and its last entries are others.
    server.truth.log.splice(5);
    (server.truth.timeline("g") as unknown[]).splice(5);
    server.epoch = 2;
    if (how === "refused") {
      server.refuse = ({ t, cursor }) => (t === "bind" && cursor !== undefined ? { code: "cursor_invalid", retry: false } : undefined);
    }
    server.closeAll(1006);
    await clock.pass(5_000);
    say(server, "g", 106, 107);
    await clock.pass(5_000);
    assert.equal(resets, 1);
    assert.deepEqual(texts(chat), ["1", "2", "3", "4", "5", "106", "107"]);
    assert.equal(client.conversations.get().items[0]?.last_seq, 7);
  }
});

test("edits, recalls, reactions and pins change the message, once each, in any order of arrival", async () => {
  const { client, clock, server } = await start();
  say(server, "g", 1, 4, "ada");
  await clock.pass(10);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  const at = (seq: number) => chat.messages.get().items.find((item) => item.is === "message" && item.state === "sent" && item.seq === seq);
  void chat.edit(1, { text: "mended" });
  void chat.recall(2);
  void chat.react(3, "👍");
  void chat.pin(4);
  await clock.pass(20);
  assert.deepEqual(at(1), { ...at(1), body: { text: "mended" }, version: 2 });
  assert.deepEqual(at(2), { ...at(2), body: null, recalled: { at: (at(2) as { recalled: { at: number } }).recalled.at, by: "ada" } });
  assert.deepEqual((at(3) as { reactions: unknown }).reactions, [{ key: "👍", count: 1, users: ["ada"] }]);
  assert.deepEqual((at(4) as { pinned: { by: string } }).pinned.by, "ada");
  void chat.unreact(3, "👍");
  void chat.unpin(4);
  for (let n = 0; n < 5; n++) server.truth.edit("g", 1, "ben", { text: `mended ${n}` }, clock.now());
  server.flush();
  server.tell({ t: "messages", cursor: "1.99", entries: [{ conversation: "g", seq: 5, kind: "edit", at: 1, type: "text", target: 1, version: 2, body: { text: "old" } }] });
  await clock.pass(20);
  assert.equal(textOf(at(1) as { body: string }), "mended 4");
  assert.deepEqual((at(3) as { reactions: unknown }).reactions, []);
  assert.equal((at(4) as { pinned: unknown }).pinned, undefined);
  assert.equal(chat.messages.get().items.length, 4, "changes are no messages");
});

test("a growing message that broke off says so, and an edit makes it whole", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "bot", body: { text: "" }, stream: "open" });
  await clock.pass(10);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  const edit = { conversation: "g", kind: "edit", target: 1, from: "bot", type: "text" };
  const tell = (seq: number, change: object): void => server.tell({ t: "messages", cursor: `${seq}`, entries: [{ ...edit, seq, at: seq, version: seq, ...change }] });
  const message = () => chat.messages.get().items[0] as SentMessage;
  tell(2, { body: { text: "half a" }, stream: "interrupted" });
  await clock.pass(10);
  assert.deepEqual([message().growing, textOf(message()), message().edited], ["interrupted", "half a", undefined]);
  tell(3, { body: { text: "half a sentence" } });
  await clock.pass(10);
  assert.deepEqual([message().growing, textOf(message()), message().edited], [undefined, "half a sentence", { at: 3, by: "bot" }]);
});

test("a growing message whose chunks came while there was no connection is read again when there is one", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "bot", body: { text: "" }, stream: "open" });
  await clock.pass(10);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  server.tell({ t: "stream", conversation: "g", seq: 1, offset: 0, text: "one" });
  await clock.pass(10);
  assert.deepEqual(texts(chat), ["one"]);
  server.closeAll(1006);
  server.truth.grow("g", 1, { text: "one two" });
  await clock.pass(5_000);
  assert.deepEqual(texts(chat), ["one two"]);
  server.tell({ t: "stream", conversation: "g", seq: 1, offset: 7, text: " three" });
  await clock.pass(10);
  assert.deepEqual(texts(chat), ["one two three"]);
});

test("a growing message grows by its chunks; a lost chunk is read again; its end is whole", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "bot", body: { text: "" }, stream: "open" });
  await clock.pass(10);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  const chunk = (offset: number, text: string): void => server.tell({ t: "stream", conversation: "g", seq: 1, offset, text });
  chunk(0, "grüße");
  chunk(0, "grüße");
  chunk(7, ", 你");
  await clock.pass(5);
  assert.deepEqual(texts(chat), ["grüße, 你"]);
  server.truth.grow("g", 1, { text: "grüße, 你好 and" });
  chunk(15, " and");
  await clock.pass(10);
  assert.deepEqual(texts(chat), ["grüße, 你好 and"]);
  chunk(19, " more");
  await clock.pass(10);
  assert.deepEqual(texts(chat), ["grüße, 你好 and more"]);
  server.truth.edit("g", 1, "bot", { text: "the whole" }, clock.now());
  server.flush();
  await clock.pass(10);
  const item = chat.messages.get().items[0];
  assert.ok(item?.is === "message" && item.state === "sent");
  assert.equal(textOf(item), "the whole");
  assert.equal(item.growing, undefined);
  assert.equal(item.edited, undefined);
});

test("a conversation that the user may not read says so; a direct one that nobody opened is empty", async () => {
  const { client, clock } = await start();
  const none = client.conversation("none");
  const loading = assert.rejects(none.messages.load(), { code: "not_found" });
  const direct = client.direct("ben");
  void direct.messages.load();
  await clock.pass(10);
  await loading;
  assert.deepEqual([none.messages.get().state, none.messages.get().failure], ["failed", "not_found"]);
  assert.equal(direct.messages.get().state, "ready");
  void direct.send({ text: "first" });
  await clock.pass(20);
  assert.deepEqual(texts(direct), ["first"]);
});

test("a gap that is open when the session ends is filled when the app connects again", async () => {
  const { client, clock, server } = await start();
  const heard: number[] = [];
  client.on("message", ({ seq }) => heard.push(seq));
  say(server, "g", 1, 1);
  await clock.pass(10);
  server.script = ({ t }) => t === "history"; // it never answers
  server.faults = { ...server.faults, toClient: ({ t }) => (t === "messages" ? "drop" : "pass") };
  say(server, "g", 2, 3);
  server.faults = { ...server.faults, toClient: () => "pass" };
  say(server, "g", 4, 4);
  await clock.pass(10);
  server.closeAll(4003, "replaced");
  await clock.pass(60_000);
  assert.deepEqual(heard, [1]);
  server.script = () => false;
  client.reconnect();
  await clock.pass(5_000);
  assert.deepEqual(heard, [1, 2, 3, 4]);
});

test("a history that is cleared on another device is cleared here, and an answer's preview follows its message", async () => {
  const { client, clock, server } = await start();
  say(server, "g", 1, 9);
  server.commit("g", { from: "ben", body: "answer", reply_to: { seq: 9, from: "ben", type: "text", body: { text: "9" } } });
  await clock.pass(10);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  server.tell({ t: "conversation", conversation: { ...server.truth.view("ada", "g"), cleared_seq: 7 } });
  await clock.pass(10);
  assert.deepEqual(texts(chat), ["8", "9", "answer"]);
  assert.equal(chat.messages.get().hasOlder, false);
  const quote = () => {
    const item = chat.messages.get().items.at(-1);
    return item?.is === "message" ? item.replyTo : undefined;
  };
  server.truth.edit("g", 9, "ben", { text: "nine" }, clock.now());
  server.flush();
  await clock.pass(10);
  assert.deepEqual(quote(), { seq: 9, from: "ben", type: "text", body: { text: "nine" } });
  server.truth.recall("g", 9, "ben", clock.now());
  server.flush();
  await clock.pass(10);
  assert.deepEqual(quote(), { seq: 9, from: "ben", type: "text", recalled: true });
});

test("a page that an edit, a recall, a reaction or a pin has overtaken does not turn it back", () => {
  const entry = (seq: number, more: object) => ({ conversation: "g", seq, kind: "message", at: 1, from: "ben", type: "text", body: seq, ...more });
  const changes = [
    entry(5, { kind: "edit", target: 1, version: 2, body: "edited" }),
    entry(6, { kind: "recall", target: 2 }),
    entry(7, { kind: "reactions", body: { changes: [{ seq: 3, reactions: [{ key: "👍", count: 1, users: ["ben"] }] }] } }),
    entry(8, { kind: "pins", target: 4, body: { pinned: true } }),
  ];
  // Read when there were four entries, and here when there are eight.
  const page = { entries: [1, 2, 3, 4].map((seq) => entry(seq, {})), more: false, first_seq: 1, last_seq: 4, conversation_last_seq: 4 };
  const timeline = new Timeline("g", 4);
  timeline.keep();
  timeline.offer(changes);
  const isRight = (): void => {
    assert.deepEqual([timeline.message(1)?.entry.body, timeline.message(1)?.entry.version], ["edited", 2]);
    assert.notEqual(timeline.message(2)?.entry.recalled, undefined);
    assert.equal(timeline.message(3)?.entry.reactions?.[0]?.count, 1);
    assert.notEqual(timeline.message(4)?.entry.pinned, undefined);
  };
  timeline.prepend(page);
  isRight();
  timeline.renew(page);
  isRight();
});

test("reactions and pins that are older than what history has said change nothing", () => {
  const timeline = new Timeline("g", 9);
  timeline.keep();
  const summary = (count: number) => [{ key: "👍", count, users: ["ben"] }];
  const message = { conversation: "g", seq: 9, kind: "message", at: 1, type: "text", body: "x", reactions: summary(2), pinned: { at: 1, by: "ben" } };
  timeline.prepend({ entries: [message], more: false, first_seq: 1, last_seq: 11, conversation_last_seq: 11 });
  const reactions = (seq: number, count: number) => ({ conversation: "g", seq, kind: "reactions", at: 1, type: "reactions", body: { changes: [{ seq: 9, reactions: summary(count) }] } });
  const pins = (seq: number, pinned: boolean) => ({ conversation: "g", seq, kind: "pins", at: 1, type: "pins", target: 9, body: { pinned } });
  // Both came to be before the page was read, and come after it.
  timeline.offer([reactions(10, 1), pins(11, false)]);
  assert.equal(timeline.message(9)?.entry.reactions?.[0]?.count, 2);
  assert.notEqual(timeline.message(9)?.entry.pinned, undefined);
  timeline.offer([reactions(12, 3), pins(13, false)]);
  assert.equal(timeline.message(9)?.entry.reactions?.[0]?.count, 3);
  assert.equal(timeline.message(9)?.entry.pinned, undefined);
});

test("a message whose time is over goes as one that was recalled, and says why", () => {
  const timeline = new Timeline("g", 1);
  timeline.keep();
  const entry = (seq: number, more: object) => ({ conversation: "g", seq, kind: "message", at: 1, from: "ben", type: "text", body: seq, ...more });
  timeline.prepend({ entries: [entry(1, { expires: { at: 61_000, after_read_s: 5 } })], more: false, first_seq: 1, last_seq: 1, conversation_last_seq: 1 });
  assert.deepEqual(timeline.message(1)?.entry.expires, { at: 61_000, after_read_s: 5 });
  timeline.offer([{ conversation: "g", seq: 2, kind: "recall", at: 61_000, type: "text", body: null, target: 1, expired: true }]);
  const gone = timeline.message(1)?.entry;
  assert.deepEqual([gone?.body, gone?.recalled, gone?.expires], [null, { at: 61_000, expired: true }, undefined]);
});
