// The list of conversations keeps itself right: against a server that counts by itself.
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
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

test("an edit that mentions this user is counted, one that no longer does is not, and a recalled message is not unread", async () => {
  const { client, clock, server } = await start();
  for (let n = 0; n < 4; n++) server.commit("g", { from: "ben", body: n, ...(n === 3 && { mentions: ["ada"] }) });
  await clock.pass(100);
  const expect = async (unread: number, mentions: number): Promise<void> => {
    server.flush();
    await clock.pass(200);
    isRight(client, server);
    const [line] = client.conversations.get().items;
    assert.deepEqual([line?.unread, line?.mentions], [unread, mentions]);
  };
  await expect(4, 1);
  server.truth.edit("g", 1, "ben", "ada!", clock.now(), ["ada"]);
  await expect(4, 2);
  server.truth.edit("g", 2, "ben", "everybody!", clock.now(), ["@all"]);
  await expect(4, 3);
  server.truth.edit("g", 1, "ben", "nobody", clock.now());
  await expect(4, 2);
  server.truth.recall("g", 2, "ben", clock.now());
  await expect(3, 1);
  // The recalled one is not counted again when the mark moves.
  void client.conversation("g").markRead(1);
  await expect(2, 1);
});

test("the name of a line and the role of its user change with the notices that tell of it", async () => {
  const { client, clock, server } = await start();
  server.commit("g", { from: "ben", body: 1 });
  await clock.pass(100);
  const asked = (): number => server.received.filter(({ t }) => t === "conversations").length;
  const before = asked();
  server.commit("g", { kind: "conversation_change", body: { name: "House 7", avatar: null, by: "ben" } });
  server.commit("g", { kind: "member_change", body: { added: [], removed: [], changed: ["cleo"], role: "owner", by: "ben" } });
  server.commit("g", { kind: "member_change", body: { added: [], removed: [], changed: ["ada"], role: "admin", by: "ben" } });
  await clock.pass(100);
  const [line] = client.conversations.get().items;
  assert.deepEqual([line?.name, line?.avatar, line?.role], ["House 7", undefined, "admin"]);
  assert.equal(asked(), before, "the server was not asked");
  server.commit("g", { kind: "member_change", body: { added: [], removed: ["ben"], changed: [], role: null, owner: "ada", by: "ben" } });
  await clock.pass(100);
  assert.equal(client.conversations.get().items[0]?.role, "owner", "the last owner has left");
  // A notice names the first of many; whether this user is among the others the server says.
  server.commit("g", { kind: "member_change", body: { added: [], removed: [], changed: ["cleo"], changed_count: 2, role: "member", by: "ben" } });
  await clock.pass(100);
  assert.equal(asked(), before + 1);
});

type Deed =
  | { readonly do: "say"; readonly from: "ada" | "ben"; readonly mentions: readonly string[]; readonly silent: boolean; readonly ms: number }
  | { readonly do: "edit" | "recall" | "read" | "readElsewhere"; readonly at: number; readonly mentions: readonly string[]; readonly ms: number }
  | { readonly do: "readList"; readonly lateMs: number; readonly ms: number };

const ms = fc.constantFrom(0, 1, 5, 60, 400);
const mentions: fc.Arbitrary<readonly string[]> = fc.constantFrom([], [], ["ada"], ["cleo"], ["@all"]);
const deeds: fc.Arbitrary<readonly Deed[]> = fc.array(
  fc.oneof(
    fc.record({ do: fc.constant("say" as const), from: fc.constantFrom("ben" as const, "ben" as const, "ada" as const), mentions, silent: fc.nat(9).map((n) => n === 0), ms }),
    fc.record({ do: fc.constantFrom("edit" as const, "edit" as const, "recall" as const, "read" as const, "readElsewhere" as const), at: fc.nat(30), mentions, ms }),
    fc.record({ do: fc.constant("readList" as const), lateMs: fc.constantFrom(1, 30, 100), ms }),
  ),
  { minLength: 1, maxLength: 40 },
);

test("counts are the server's after any messages, edits, recalls, read marks and late answers", async () => {
  const runs = Number(process.env["RUNS"] ?? 100);
  await fc.assert(
    fc.asyncProperty(deeds, async (deeds) => {
      const server = new FakeServer(new VirtualClock());
      server.commit("g", { from: "ben", body: 0 });
      const { client, clock } = await start({ server });
      let lateMs = 0;
      server.script = (frame, link) => {
        if (frame.t !== "conversations") return false;
        const answer = { t: "conversations", ...server.truth.list("ada", undefined, 100), ref: frame.ref };
        clock.setTimer(lateMs, () => link.tell(answer));
        return true;
      };
      for (const deed of deeds) {
        const all = server.truth.timeline("g");
        const target = "at" in deed ? all[deed.at % all.length] : undefined;
        if (deed.do === "say") server.commit("g", { from: deed.from, body: 0, mentions: deed.mentions, ...(deed.silent && { silent: true }) });
        else if (deed.do === "readList") {
          lateMs = deed.lateMs;
          client.conversations.refreshAll();
        } else if (deed.do === "read") void client.conversation("g").markRead(target?.seq);
        else if (deed.do === "readElsewhere") {
          server.truth.read("ada", "g", target?.seq ?? 0);
          server.tell({ t: "read", conversation: "g", user: "ada", seq: target?.seq });
        } else if (target?.kind === "message") {
          if (deed.do === "edit") server.truth.edit("g", target.seq, "ben", 1, clock.now(), deed.mentions);
          else server.truth.recall("g", target.seq, "ben", clock.now());
          server.flush();
        }
        await clock.pass(deed.ms);
      }
      await clock.pass(5_000);
      isRight(client, server);
    }),
    { numRuns: runs },
  );
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
