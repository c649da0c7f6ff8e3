// The list and its lines stay right when frames, entries and answers overtake each other, and after their user was away, removed or added again.
import assert from "node:assert/strict";
import { test } from "node:test";
import { start } from "./support/start.js";

test("who is removed and added again while away sees the conversation again: in the list, and its timeline", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "ben", body: 1 });
  server.commit("h", { from: "ben", body: 1 });
  await clock.pass(100);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  let isMember = false;
  server.refuse = ({ t, conversation }) => (t === "history" && conversation === "g" && !isMember ? { code: "not_a_member", retry: false } : undefined);
  server.tell({ t: "membership", conversation: "g", member: false });
  await clock.pass(100);
  assert.deepEqual([client.conversations.get().items.map(({ id }) => id), chat.messages.get().state], [["h"], "failed"]);
  server.isReachable = false;
  server.closeAll(1006);
  await clock.pass(10);
  isMember = true;
  server.commit("g", { kind: "member_change", type: "member_change", body: { added: ["ada"] } });
  server.isReachable = true;
  await clock.pass(60_000);
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id).sort(), ["g", "h"]);
  assert.equal(chat.messages.get().state, "ready");
  assert.deepEqual(chat.messages.get().items.map((item) => item.is), ["message", "notice"]);
});

test("who is removed and added again before the first answer comes sees the conversation again", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "ben", body: 1 });
  await clock.pass(100);
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  const held: (() => void)[] = [];
  let isHeld = true;
  server.script = (frame, link) => {
    if (frame.t !== "history" || !isHeld) return false;
    held.push(() => link.tell({ t: "error", code: "not_a_member", message: "no member", retry: false, ref: frame.ref }));
    return true;
  };
  server.tell({ t: "membership", conversation: "g", member: false });
  await clock.pass(5);
  assert.equal(held.length, 1);
  isHeld = false;
  server.tell({ t: "membership", conversation: "g", member: true });
  held.forEach((tell) => tell());
  await clock.pass(200);
  assert.equal(chat.messages.get().state, "ready");
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id), ["g"]);
});

test("a conversation that is deleted is gone with its last entry, and that is said once", async () => {
  const { client, clock, server } = await start();
  for (const id of ["g", "h"]) server.commit(id, { from: "ben", body: 1 });
  await clock.pass(100);
  const told: unknown[] = [];
  client.on("membership", (change) => told.push(change));
  const chat = client.conversation("g");
  chat.messages.subscribe(() => undefined);
  await clock.pass(10);
  server.refuse = ({ t, conversation }) => (t === "history" && conversation === "g" ? { code: "not_found", retry: false } : undefined);
  server.commit("g", { kind: "conversation_change", type: "conversation_change", body: { deleted: true } });
  await clock.pass(100);
  assert.deepEqual([client.conversations.get().items.map(({ id }) => id), chat.messages.get().items], [["h"], []]);
  server.tell({ t: "membership", conversation: "g", member: false });
  await clock.pass(100);
  assert.deepEqual(told, [{ conversation: "g", member: false }]);
  // The id may be that of another conversation later on.
  server.refuse = () => undefined;
  server.commit("g", { from: "ben", body: 2 });
  server.tell({ t: "membership", conversation: "g", member: true });
  await clock.pass(100);
  server.tell({ t: "membership", conversation: "g", member: false });
  await clock.pass(100);
  assert.deepEqual(told.slice(1), [{ conversation: "g", member: true }, { conversation: "g", member: false }]);
});

test("a line that was told of while the list was read is not that of the list", async () => {
  const { client, clock, server } = await start();
  for (const id of ["a", "b"]) server.commit(id, { from: "ben", body: 0 });
  await clock.pass(100);
  server.script = (frame, link) => {
    if (frame.t !== "conversations") return false;
    const answer = { t: "conversations", ...server.truth.list("ada", undefined, 100), ref: frame.ref };
    clock.setTimer(30, () => link.tell(answer));
    return true;
  };
  client.conversations.refreshAll();
  await clock.pass(10);
  server.truth.prefer("a", { pinned_at: 5 });
  server.tell({ t: "conversation", conversation: server.truth.view("ada", "a") });
  await clock.pass(100);
  assert.equal(client.conversation("a").view.get()?.pinned_at, 5);
});

test("an entry that overtakes the first answer with its line is counted", async () => {
  const { client, clock, server } = await start();
  await clock.pass(100);
  server.script = (frame, link) => {
    if (frame.t !== "conversations") return false;
    const answer = { t: "conversations", ...server.truth.list("ada", undefined, 100), ref: frame.ref };
    clock.setTimer(30, () => link.tell(answer));
    return true;
  };
  server.commit("g", { from: "ben", body: 1 });
  await clock.pass(65);
  server.commit("g", { from: "ben", body: 2 });
  await clock.pass(500);
  const view = client.conversation("g").view.get();
  assert.deepEqual([view?.last_seq, view?.unread, view?.last_message?.body], [2, 2, 2]);
});

test("a hidden line that comes back while the list is read stays", async () => {
  const { client, clock, server } = await start();
  for (const id of ["a", "b"]) server.commit(id, { from: "ben", body: 0 });
  await clock.pass(100);
  server.truth.prefer("a", { hidden: true });
  server.tell({ t: "conversation", conversation: server.truth.view("ada", "a") });
  await clock.pass(100);
  server.script = (frame, link) => {
    if (frame.t !== "conversations") return false;
    const answer = { t: "conversations", ...server.truth.list("ada", undefined, 100), ref: frame.ref };
    clock.setTimer(30, () => link.tell(answer));
    return true;
  };
  client.conversations.refreshAll();
  await clock.pass(10);
  server.truth.prefer("a", {});
  server.commit("a", { from: "ben", body: 1 });
  await clock.pass(500);
  assert.deepEqual(client.conversations.get().items.map(({ id }) => id), ["a", "b"]);
});

test("a conversation that the user has marked as unread is read by the next mark, wherever it stands", async () => {
  const { client, clock, server } = await start();
  for (let n = 0; n < 3; n++) server.commit("g", { from: "ben", body: n });
  await clock.pass(100);
  const chat = client.conversation("g");
  await Promise.all([chat.markRead(3), clock.pass(10)]);
  await Promise.all([chat.markRead(3), clock.pass(10)]);
  const told = (): number => server.received.filter(({ t }) => t === "read").length;
  assert.equal(told(), 1);
  server.tell({ t: "conversation", conversation: { ...server.truth.view("ada", "g"), marked_unread: true } });
  await clock.pass(10);
  await Promise.all([chat.markRead(2), clock.pass(10)]);
  assert.equal(told(), 2);
});

test("a mute ends at its time, without another event", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "ben", body: 0 });
  server.truth.prefer("g", { muted: true, muted_until: clock.now() + 5_000 });
  await clock.pass(100);
  assert.deepEqual([client.conversation("g").view.get()?.muted, client.conversations.get().unread], [true, 0]);
  await clock.pass(5_000);
  assert.deepEqual([client.conversation("g").view.get()?.muted, client.conversations.get().unread], [false, 1]);
});

test("marks are told again after a reset, and after a refusal", async () => {
  const { client, clock, server } = await start();
  for (let n = 0; n < 9; n++) server.commit("g", { from: "ben", body: n });
  await clock.pass(100);
  const chat = client.conversation("g");
  let isRefused = true;
  server.refuse = ({ t }) => (t === "read" && isRefused ? { code: "not_a_member", retry: false } : undefined);
  await Promise.all([assert.rejects(chat.markRead(9), { code: "not_a_member" }), clock.pass(10)]);
  isRefused = false;
  const told = (): readonly unknown[] => server.received.filter(({ t }) => t === "read").map(({ seq }) => seq);
  await Promise.all([chat.markRead(9), clock.pass(10)]);
  assert.deepEqual(told(), [9, 9]);
  server.truth.log.splice(5);
  (server.truth.timeline("g") as unknown[]).splice(5);
  server.epoch = 2;
  server.closeAll(1006);
  await clock.pass(5_000);
  await Promise.all([chat.markRead(), clock.pass(10)]);
  assert.deepEqual(told(), [9, 9, 5]);
});
