// What this user changes is shown when the server has answered, and as the server has it: answers and entries come in any order.
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import type { SentMessage } from "../src/message.js";
import type { Conversation } from "../src/conversation.js";
import type { SendReceipt } from "../src/wire/entries.js";
import { FakeServer } from "./support/fake-server.js";
import { start, type Started } from "./support/start.js";

async function withMessages(count: number): Promise<Started & { readonly chat: Conversation; readonly at: (seq: number) => SentMessage }> {
  const started = await start();
  for (let seq = 1; seq <= count; seq++) started.server.commit("g", { from: "ada", body: seq });
  await started.clock.pass(100);
  const chat = started.client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await started.clock.pass(10);
  const at = (seq: number): SentMessage => {
    const found = chat.messages.get().items.find((item) => item.is === "message" && item.state === "sent" && item.seq === seq);
    assert.ok(found?.is === "message" && found.state === "sent");
    return found;
  };
  return { ...started, chat, at };
}

/** Holds what edits and recalls are answered with until it is told. */
function holdAnswers(server: FakeServer): () => void {
  const held: (() => void)[] = [];
  server.script = (frame, link) => {
    if (frame.t !== "edit" && frame.t !== "recall") return false;
    const [conversation, seq] = [String(frame["conversation"]), Number(frame["seq"])];
    const made =
      frame.t === "edit"
        ? server.truth.edit(conversation, seq, link.user, frame["body"] as string, server.clock.now(), undefined, String(frame["client_msg_id"]))
        : server.truth.recall(conversation, seq, link.user, server.clock.now());
    assert.ok(made);
    const version = made.version ?? server.truth.timeline(conversation)[seq - 1]?.version ?? 1;
    held.push(() => link.tell({ t: "sent", results: [{ conversation, seq: made.seq, at: made.at, version, ref: frame.ref }] }));
    return true;
  };
  return () => held.splice(0).forEach((tell) => tell());
}

test("an answer that a later edit has overtaken turns nothing back", async () => {
  const { clock, server, chat, at } = await withMessages(1);
  const answer = holdAnswers(server);
  const editing = chat.edit(1, "mine");
  await clock.pass(5);
  server.truth.edit("g", 1, "ben", "ben's", clock.now());
  server.flush();
  server.commit("g", { from: "ben", body: "so it is", reply_to: { seq: 1, from: "ada", type: "text", body: "ben's" } });
  await clock.pass(5);
  assert.equal(at(1).body, "ben's");
  answer();
  await clock.pass(5);
  assert.equal((await editing).version, 2);
  assert.equal(at(4).replyTo?.body, "ben's");
  assert.deepEqual([at(1).body, at(1).version, at(1).edited?.by], ["ben's", 3, "ben"]);
});

test("an answer that comes before its entry is shown at once, and what the entry says stays", async () => {
  const { clock, server, chat, at } = await withMessages(1);
  const answer = holdAnswers(server);
  void chat.edit(1, "mine");
  await clock.pass(5);
  answer();
  await clock.pass(5);
  assert.deepEqual([at(1).body, at(1).version], ["mine", 2]);
  server.truth.edit("g", 1, undefined, "the app's", clock.now());
  server.flush();
  await clock.pass(5);
  assert.deepEqual([at(1).body, at(1).version, at(1).edited?.by], ["the app's", 3, undefined]);
});

test("what an agent changes is the account's own change, as its entry says", async () => {
  const { clock, server, client } = await start();
  const chat = client.conversation("ben~news");
  for (let seq = 1; seq <= 2; seq++) server.commit("ben~news", { from: "news", agent: "ada", body: seq });
  chat.messages.subscribe(() => undefined);
  await clock.pass(100);
  const answer = holdAnswers(server);
  void chat.edit(1, "mine");
  void chat.recall(2);
  await clock.pass(5);
  answer();
  await clock.pass(5);
  const marks = () => chat.messages.get().items.map((item) => item.is === "message" && item.state === "sent" && (item.edited?.by ?? item.recalled?.by));
  assert.deepEqual(marks(), ["ada", "ada"], "as far as it is known");
  const [edit, recall] = server.truth.timeline("ben~news").slice(2);
  assert.ok(edit && recall);
  server.tell({ t: "messages", cursor: "1.4", entries: [edit, recall].map((entry) => ({ ...entry, from: "news", agent: "ada" })) });
  await clock.pass(5);
  assert.deepEqual(marks(), ["news", "news"]);
});

test("an edit that was asked for twice is the edit of the first time, also when another came between", async () => {
  const { clock, server, chat, at } = await withMessages(1);
  let isFirst = true;
  server.faults = { ...server.faults, cutBeforeAnswer: ({ t }) => t === "edit" && isFirst };
  const editing = chat.edit(1, "mine");
  await clock.pass(5);
  isFirst = false;
  server.truth.edit("g", 1, "ben", "ben's", clock.now());
  await clock.pass(60_000);
  assert.equal((await editing).version, 2);
  assert.deepEqual([at(1).body, at(1).version], ["ben's", 3]);
});

test("a server that does not tell the version is believed when the entry comes", async () => {
  const { clock, server, chat, at } = await withMessages(1);
  server.script = (frame, link) => {
    if (frame.t !== "edit") return false;
    const made = server.truth.edit("g", 1, "ada", "mine", clock.now());
    server.truth.edit("g", 1, "ben", "ben's", clock.now());
    server.flush();
    link.tell({ t: "sent", results: [{ conversation: "g", seq: made?.seq, at: made?.at, ref: frame.ref }] });
    return true;
  };
  await Promise.all([chat.edit(1, "mine"), clock.pass(10)]);
  assert.deepEqual([at(1).body, at(1).version], ["ben's", 3]);
});

test("of an edit by the app server the former editor is not shown", async () => {
  const { clock, server, at } = await withMessages(1);
  server.truth.edit("g", 1, "ben", "once", clock.now());
  server.flush();
  await clock.pass(5);
  assert.equal(at(1).edited?.by, "ben");
  server.truth.edit("g", 1, undefined, "twice", clock.now() + 7);
  server.flush();
  await clock.pass(5);
  assert.deepEqual([at(1).body, at(1).edited], ["twice", { at: server.truth.timeline("g")[0]?.edited_at }]);
});

test("a recalled message keeps neither reactions nor pin, and the list shows the message before", async () => {
  const { clock, server, client, at } = await withMessages(1);
  for (let seq = 2; seq <= 3; seq++) server.commit("g", { from: "ada", body: seq });
  await clock.pass(5);
  const last = () => client.conversation("g").view.get()?.last_message;
  server.truth.react("g", 3, "ben", "👍", false, clock.now());
  server.truth.pin("g", 3, "ben", true, clock.now());
  server.flush();
  await clock.pass(5);
  assert.deepEqual([at(3).reactions.length, at(3).pinned?.by, last()?.seq, last()?.reactions?.length, last()?.pinned?.by], [1, "ben", 3, 1, "ben"]);
  const asked = server.received.filter(({ t }) => t === "conversations").length;
  server.truth.recall("g", 3, "ben", clock.now());
  server.flush();
  await clock.pass(5);
  assert.deepEqual([at(3).body, at(3).reactions, at(3).pinned], [null, [], undefined]);
  assert.equal(last()?.seq, 2);
  // Of what the client does not hold it asks the server.
  for (const seq of [2, 1]) server.truth.recall("g", seq, "ben", clock.now());
  server.flush();
  await clock.pass(200);
  assert.equal(last(), undefined);
  assert.ok(server.received.filter(({ t }) => t === "conversations").length > asked);
});

test("the list's message follows the message that it answers", async () => {
  const { clock, server, client } = await withMessages(1);
  server.commit("g", { from: "ben", body: "answer", reply_to: { seq: 1, from: "ada", type: "text", body: 1 } });
  await clock.pass(5);
  const quote = () => client.conversation("g").view.get()?.last_message?.reply_to;
  server.truth.edit("g", 1, "ada", "one", clock.now());
  server.flush();
  await clock.pass(5);
  assert.deepEqual(quote(), { seq: 1, from: "ada", type: "text", body: "one" });
  server.truth.recall("g", 1, "ada", clock.now());
  server.flush();
  await clock.pass(5);
  assert.deepEqual(quote(), { seq: 1, from: "ada", type: "text", recalled: true });
});

test("a message that is sent again with its id answers with the first result, whether it is shown or about to be", async () => {
  const { client, clock, server, chat } = await withMessages(1);
  // The answer comes, and the entry does not.
  let isLost = true;
  server.faults = { ...server.faults, toClient: ({ t }) => (t === "messages" && isLost ? "drop" : "pass") };
  const first = chat.send("x", { clientMsgId: "m1" });
  await clock.pass(10);
  const receipt = await first;
  const outcomes: SendReceipt[] = [];
  void chat.send("x", { clientMsgId: "m1" }).then((again) => outcomes.push(again));
  await clock.pass(10);
  assert.deepEqual([...outcomes], [{ ...receipt, duplicate: true }]);
  isLost = false;
  server.commit("g", { from: "ben", body: "y" });
  await clock.pass(10);
  void chat.send("x", { clientMsgId: "m1" }).then((again) => outcomes.push(again));
  await clock.pass(10);
  assert.deepEqual(outcomes.map(({ seq }) => seq), [2, 2]);
  assert.deepEqual(chat.messages.get().items.map((item) => item.is === "message" && item.body), [1, "x", "y"]);
  assert.equal(client.conversations.get().items[0]?.last_seq, 3);
});

test("an id is that of one message: another one in its conversation is refused, in another conversation it is sent", async () => {
  const { client, clock, server } = await start();
  server.isReachable = false;
  server.closeAll(1006);
  await clock.pass(10);
  const first = client.conversation("g").send("x", { clientMsgId: "m1" });
  const other = client.conversation("h").send("x", { clientMsgId: "m1" });
  await assert.rejects(client.conversation("g").send("y", { clientMsgId: "m1" }), { code: "client_msg_id_reused" });
  server.refuse = ({ t, body }) => (t === "send" && body === "bad" ? { code: "forbidden", retry: false } : undefined);
  server.isReachable = true;
  await clock.pass(60_000);
  assert.deepEqual([(await first).conversation, (await other).conversation], ["g", "h"]);
  // One that was refused was stored nowhere: its id may be used again.
  await Promise.all([assert.rejects(client.conversation("g").send("bad", { clientMsgId: "m2" }), { code: "forbidden" }), clock.pass(10)]);
  const mended = client.conversation("g").send("good", { clientMsgId: "m2" });
  await clock.pass(10);
  assert.equal((await mended).seq, 2);
});

test("an edit whose entry has no body is read again: it was made obsolete, or its body is null", async () => {
  const { clock, server, client, at } = await withMessages(3);
  server.truth.edit("g", 1, "ben", "gone", clock.now());
  server.truth.recall("g", 1, "ben", clock.now());
  server.truth.edit("g", 2, "ben", null, clock.now());
  server.truth.edit("g", 3, "ben", null, clock.now());
  server.truth.edit("g", 3, "ben", "new", clock.now());
  server.flush();
  await clock.pass(200);
  assert.deepEqual([1, 2, 3].map((seq) => [at(seq).body, at(seq).version, at(seq).edited?.by]), [[null, 2, "ben"], [null, 2, "ben"], ["new", 3, "ben"]]);
  assert.deepEqual(server.received.filter(({ t, from_seq }) => t === "history" && from_seq !== undefined).map(({ from_seq }) => from_seq), [1, 2]);
  server.truth.edit("g", 3, "ben", null, clock.now());
  server.flush();
  await clock.pass(200);
  const last = (): unknown => client.conversation("g").view.get()?.last_message?.body;
  assert.deepEqual([at(3).body, last()], [null, null]);
  // It may be shown only later.
  for (const body of ["a", "b"]) server.commit("g", { from: "ben", body });
  const [a, b] = server.truth.timeline("g").filter(({ kind }) => kind === "message").slice(-2).map(({ seq }) => seq);
  await clock.pass(200);
  server.truth.edit("g", a ?? 0, "ben", null, clock.now());
  server.flush();
  await clock.pass(200);
  server.truth.recall("g", b ?? 0, "ben", clock.now());
  server.flush();
  await clock.pass(200);
  assert.equal(last(), null);
});

test("an edit without a body of a message that is not loaded is shown by the messages that answer it", async () => {
  const { server, clock } = await withMessages(2);
  for (let n = 0; n < 60; n++) server.commit("g", { from: "ben", body: n, ...(n === 59 && { reply_to: { seq: 2, from: "ada", type: "text", body: 2 } }) });
  const { client } = await start({ server });
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  assert.ok(chat.messages.get().hasOlder);
  server.truth.edit("g", 2, "ben", null, clock.now());
  server.flush();
  await clock.pass(200);
  const answer = chat.messages.get().items.at(-1);
  assert.deepEqual(answer?.is === "message" && answer.replyTo, { seq: 2, type: "text", from: "ada", body: null });
});

test("what an answer shows of a message goes when the user clears the history up to that message", async () => {
  const { client, clock, server, chat } = await withMessages(3);
  const reply_to = { seq: 2, from: "ada", type: "text", body: 2 };
  for (const body of ["answer", "other"]) server.commit("g", { from: "ben", body, ...(body === "answer" && { reply_to }) });
  await clock.pass(200);
  const clear = { cleared_seq: 2 };
  server.truth.prefer("g", clear);
  server.tell({ t: "conversation", conversation: server.truth.view("ada", "g") });
  await clock.pass(10);
  const shown = chat.messages.get().items.filter((item) => item.is === "message");
  assert.deepEqual(shown.map(({ body, replyTo }) => [body, replyTo]), [[3, undefined], ["answer", { seq: 2 }], ["other", undefined]]);
  server.truth.recall("g", 5, "ben", clock.now());
  server.flush();
  await clock.pass(10);
  assert.deepEqual(client.conversation("g").view.get()?.last_message?.reply_to, { seq: 2 });
});

type Deed = { readonly do: "edit" | "ben" | "app" | "recall" | "answer" | "wait"; readonly seq: number };

test("after any own and others' edits and recalls, with late answers, everything is as the server has it", async () => {
  const deed: fc.Arbitrary<Deed> = fc.record({ do: fc.constantFrom("edit", "edit", "edit", "ben", "ben", "app", "recall", "answer", "wait"), seq: fc.integer({ min: 1, max: 4 }) });
  await fc.assert(
    fc.asyncProperty(fc.array(deed, { minLength: 1, maxLength: 40 }), async (deeds) => {
      const { clock, server, chat, at, client } = await withMessages(4);
      const answer = holdAnswers(server);
      let n = 0;
      for (const { do: what, seq } of deeds) {
        const isRecalled = server.truth.timeline("g")[seq - 1]?.recalled !== undefined;
        if (what === "answer") answer();
        else if (what === "wait") server.flush();
        else if (!isRecalled) {
          if (what === "edit") void chat.edit(seq, `mine ${++n}`);
          if (what === "recall") void chat.recall(seq);
          if (what === "ben") server.truth.edit("g", seq, "ben", `ben's ${++n}`, clock.now());
          if (what === "app") server.truth.edit("g", seq, undefined, `app's ${++n}`, clock.now());
        }
        await clock.pass(2);
      }
      server.flush();
      answer();
      await clock.pass(500);
      for (let seq = 1; seq <= 4; seq++) {
        const { body, version, edited_at, edited_by, recalled } = server.truth.timeline("g")[seq - 1] ?? {};
        const { body: shown, version: shownVersion, edited, recalled: shownRecalled } = at(seq);
        assert.deepEqual([shown, shownVersion, edited?.at, edited?.by, shownRecalled], [body, version ?? 1, edited_at, edited_by, recalled]);
      }
      assert.deepEqual(client.conversation("g").view.get()?.last_message?.seq, server.truth.view("ada", "g").last_message?.seq);
    }),
    { numRuns: Number(process.env["RUNS"] ?? 200) },
  );
});

