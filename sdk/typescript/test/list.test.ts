// The list of conversations keeps itself right: against a server that counts by itself.
import assert from "node:assert/strict";
import { test } from "node:test";
import { ConversationList } from "../src/chat/list.js";
import type { ConversationView } from "../src/wire/entries.js";
import { FakeServer } from "./support/fake-server.js";
import { start } from "./support/start.js";
import { VirtualClock } from "./support/virtual-clock.js";

const counts = (views: readonly ConversationView[]): object =>
  Object.fromEntries(views.map(({ id, last_seq, read_seq, unread, mentions }) => [id, { last_seq, read_seq, unread, mentions }]));

function isRight(client: { conversations: { get(): { items: readonly ConversationView[] } } }, server: FakeServer): void {
  assert.deepEqual(counts(client.conversations.get().items), counts(server.truth.list("ada", undefined, 1_000).conversations));
}

test("the list is read, and follows messages, own ones, silent ones and mentions", async () => {
  const server = new FakeServer(new VirtualClock());
  for (let n = 0; n < 3; n++) server.commit("g", { from: "ben", body: n });
  const { client, clock } = await start({ server });
  await clock.pass(100);
  isRight(client, server);
  server.commit("g", { from: "ben", body: "x", mentions: ["ada"] });
  server.commit("g", { from: "ben", body: "x", mentions: ["@all"] });
  server.commit("g", { from: "ben", body: "x", silent: true });
  server.commit("g", { from: "ada", body: "x" });
  server.commit("g", { kind: "member_change", body: {} });
  await clock.pass(100);
  isRight(client, server);
  assert.deepEqual(counts(client.conversations.get().items), { g: { last_seq: 8, read_seq: 0, unread: 5, mentions: 2 } });
  assert.equal(client.conversations.get().unread, 5);
});

test("conversations that are new are looked up, and the latest active stands first", async () => {
  const { client, clock, server } = await start();
  server.commit("a", { from: "ben", body: 1 });
  await clock.pass(100);
  server.commit("b", { from: "ben", body: 1 });
  await clock.pass(100);
  server.commit("a", { from: "ben", body: 2 });
  await clock.pass(100);
  isRight(client, server);
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id), ["a", "b"]);
});

test("reading here, on another device, and in the middle", async () => {
  const { client, clock, server } = await start();
  for (let n = 0; n < 9; n++) server.commit("g", { from: "ben", body: n, mentions: n % 2 ? ["ada"] : [] });
  await clock.pass(100);
  const reading = client.conversation("g").markRead(4);
  await clock.pass(100);
  await reading;
  isRight(client, server);
  server.truth.read("ada", "g", 7);
  server.tell({ t: "read", conversation: "g", user: "ada", seq: 7 });
  server.tell({ t: "read", conversation: "g", user: "ben", seq: 9 });
  await clock.pass(100);
  isRight(client, server);
  const rest = client.conversation("g").markRead();
  await clock.pass(10);
  await rest;
  isRight(client, server);
  assert.equal(client.conversations.get().unread, 0);
});

test("a read mark that was set on another device while this one was away is seen", async () => {
  const { client, clock, server } = await start();
  for (let n = 0; n < 5; n++) server.commit("g", { from: "ben", body: n });
  await clock.pass(100);
  server.isReachable = false;
  server.closeAll(1006);
  server.truth.read("ada", "g", 3);
  await clock.pass(1_000);
  server.isReachable = true;
  await clock.pass(60_000);
  isRight(client, server);
});

test("marks that are set while there is no connection are told as one", async () => {
  const { client, clock, server } = await start();
  for (let n = 0; n < 9; n++) server.commit("g", { from: "ben", body: n });
  await clock.pass(100);
  server.isReachable = false;
  server.closeAll(1006);
  await clock.pass(10);
  const chat = client.conversation("g");
  const marks = [chat.markRead(2), chat.markRead(5), chat.markRead(3), chat.markRead(8)];
  server.isReachable = true;
  await clock.pass(60_000);
  await Promise.all(marks);
  assert.deepEqual(server.received.filter(({ t }) => t === "read").map(({ seq }) => seq), [8]);
  isRight(client, server);
});

test("an answer that is older than what has come since does not turn the counts back", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "ben", body: 0 });
  await clock.pass(100);
  // The server answers with what was, and entries overtake the answer.
  const old = server.truth.list("ada", undefined, 100);
  server.script = (frame, link) => {
    if (frame.t !== "conversations") return false;
    clock.setTimer(30, () => link.tell({ t: "conversations", ...old, ref: frame.ref }));
    return true;
  };
  client.conversations.refreshAll();
  await clock.pass(5);
  for (let n = 0; n < 4; n++) server.commit("g", { from: "ben", body: n });
  await clock.pass(200);
  isRight(client, server);
});

test("leaving removes the line, also from an answer on its way; coming back brings it again", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "ben", body: 0 });
  server.commit("h", { from: "ben", body: 0 });
  await clock.pass(100);
  client.conversations.refreshAll();
  server.tell({ t: "membership", conversation: "g", member: false });
  await clock.pass(200);
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id), ["h"]);
  server.tell({ t: "membership", conversation: "g", member: true });
  await clock.pass(200);
  isRight(client, server);
});

test("a line that the server tells of changes it: pinned stand first, hidden and archived ones go", async () => {
  const { client, clock, server } = await start();
  for (const id of ["a", "b", "c", "d"]) {
    server.commit(id, { from: "ben", body: 0 });
    await clock.pass(1);
  }
  await clock.pass(100);
  const tell = (id: string, change: Partial<ConversationView>): void =>
    server.tell({ t: "conversation", conversation: { ...server.truth.view("ada", id), ...change } });
  tell("a", { pinned_at: 5, title: "mine" });
  tell("b", { hidden: true });
  tell("c", { archived: true });
  await clock.pass(10);
  assert.deepEqual(client.conversations.get().items.map(({ id, title }) => [id, title]), [["a", "mine"], ["d", undefined]]);
  assert.equal(client.conversation("b").view.get()?.hidden, true);
});

test("pinned lines stand by activity among themselves, and a hidden one comes back with its next message", async () => {
  const { client, clock, server } = await start();
  for (const id of ["a", "b", "c"]) {
    server.commit(id, { from: "ben", body: 0 });
    await clock.pass(1);
  }
  await clock.pass(100);
  const set = (id: string, change: Partial<ConversationView>): void => {
    server.truth.prefer(id, change);
    server.tell({ t: "conversation", conversation: server.truth.view("ada", id) });
  };
  set("a", { pinned_at: 9 });
  set("b", { pinned_at: 5 });
  set("c", { hidden: true });
  await clock.pass(10);
  const ids = (): readonly string[] => client.conversations.get().items.map(({ id }) => id);
  assert.deepEqual(ids(), ["b", "a"]);
  server.truth.prefer("c", {});
  server.commit("c", { from: "ben", body: 1 });
  await clock.pass(10);
  assert.deepEqual(ids(), ["b", "a", "c"]);
});

test("archived lines that were read stay known and right, also after a break", async () => {
  const server = new FakeServer(new VirtualClock());
  for (const id of ["a", "b"]) server.commit(id, { from: "ben", body: 0 });
  server.truth.prefer("a", { archived: true });
  const { client, clock } = await start({ server });
  await clock.pass(100);
  assert.equal(client.conversation("a").view.get(), undefined);
  const reading = client.conversations.page("archived");
  await clock.pass(10);
  assert.deepEqual((await reading).conversations.map(({ id }) => id), ["a"]);
  assert.equal(client.conversation("a").view.get()?.unread, 1);
  server.commit("a", { from: "ben", body: 1 });
  await clock.pass(100);
  assert.equal(client.conversation("a").view.get()?.unread, 2);
  server.closeAll(1006);
  server.truth.read("ada", "a", 2);
  await clock.pass(40_000);
  assert.deepEqual([client.conversation("a").view.get()?.unread, client.conversation("a").view.get()?.archived], [0, true]);
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id), ["b"]);
  server.truth.prefer("a", {});
  server.tell({ t: "conversation", conversation: server.truth.view("ada", "a") });
  await clock.pass(10);
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id).sort(), ["a", "b"]);
});

test("more than one page is loaded on request and stays right", async () => {
  const server = new FakeServer(new VirtualClock());
  for (let n = 0; n < 250; n++) {
    server.commit(`c${n}`, { from: "ben", body: n });
    await server.clock.pass(1);
  }
  const { client, clock } = await start({ server });
  await clock.pass(100);
  assert.equal(client.conversations.get().items.length, 100);
  assert.equal(client.conversations.get().hasMore, true);
  void client.conversations.loadMore();
  await clock.pass(10);
  void client.conversations.loadMore();
  await clock.pass(10);
  assert.equal(client.conversations.get().items.length, 250);
  assert.equal(client.conversations.get().hasMore, false);
  server.closeAll(1006);
  await clock.pass(40_000);
  isRight(client, server);
});

test("a mark may be ahead of the list: what comes up to it is read already", () => {
  const list = new ConversationList("ada");
  const entry = (seq: number) => ({ conversation: "g", seq, kind: "message", at: seq, type: "text", body: seq, from: "ben" });
  list.put({ id: "g", kind: "group", role: "member", last_seq: 3, last_at: 3, read_seq: 0, unread: 3, mentions: 0, muted: false });
  list.read("g", 5);
  for (const seq of [4, 5, 6]) list.take(entry(seq));
  assert.deepEqual(counts(list.views), { g: { last_seq: 6, read_seq: 5, unread: 1, mentions: 0 } });
});

test("conversations of an account that the user answers for are not in the user's own list, nor looked for in it", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "ben", body: 1 });
  await clock.pass(100);
  const [line] = client.conversations.get().items;
  assert.ok(line);
  const asked = server.received.length;
  server.commit("ben~news", { from: "ben", body: "When are you open?" });
  server.tell({ t: "conversation", conversation: { ...line, id: "ben~news", kind: "direct", account: "news" } });
  await clock.pass(1_000);
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id), ["g"]);
  assert.deepEqual(server.received.slice(asked).filter(({ t }) => t === "conversations"), []);
});

test("an assignment is told, to who may know of it", async () => {
  const { client, clock, server } = await start();
  const told: unknown[] = [];
  client.on("assignment", (assignment) => told.push(assignment));
  const { at } = server.commit("ben~news", { kind: "assignment", from: "news", agent: "cleo", body: { assigned_to: "ada" } });
  server.commit("ben~news", { kind: "assignment", body: { assigned_to: null } });
  server.commit("ada~news", { kind: "assignment", body: {} });
  await clock.pass(100);
  assert.deepEqual(told, [
    { conversation: "ben~news", assignedTo: "ada", by: "cleo", at },
    { conversation: "ben~news", assignedTo: null, at },
  ]);
});
