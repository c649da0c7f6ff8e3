// What a user has beyond the loaded part of the list: single lines, the total of what is unread, members' marks after a page load, and names.
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { FakeServer } from "./support/fake-server.js";
import { start } from "./support/start.js";
import { VirtualClock } from "./support/virtual-clock.js";

const CONVERSATIONS = 120; // more than a page

/** Many conversations of ada's, with one message each. */
async function many(count = CONVERSATIONS): Promise<FakeServer> {
  const server = new FakeServer(new VirtualClock());
  for (let n = 0; n < count; n++) {
    server.commit(`c${n}`, { from: "ben", body: n });
    await server.clock.pass(1);
  }
  return server;
}

test("the total counts conversations that are not loaded", async () => {
  const server = await many(500);
  const { client, clock } = await start({ server });
  await clock.pass(100);
  const { items, unread } = client.conversations.get();
  assert.deepEqual([items.length, unread], [100, 500]);
});

test("a conversation behind the loaded pages is read when somebody looks at it, and stays right", async () => {
  const server = await many();
  const { client, clock } = await start({ server });
  await clock.pass(100);
  const { view } = client.conversation("c3");
  assert.equal(view.get(), undefined);
  const end = view.subscribe(() => undefined);
  await clock.pass(100);
  assert.deepEqual([view.get()?.id, view.get()?.unread, client.conversations.get().unread], ["c3", 1, CONVERSATIONS]);
  server.closeAll(1006);
  server.truth.read("ada", "c3", 1);
  await clock.pass(40_000);
  assert.deepEqual([view.get()?.unread, client.conversations.get().unread], [0, CONVERSATIONS - 1]);
  end();
});

test("one that the user does not have is asked for once", async () => {
  const server = await many(3);
  const { client, clock } = await start({ server });
  await clock.pass(100);
  const asked = (): number => server.received.filter(({ conversation, t }) => t === "conversations" && conversation === "x").length;
  client.conversation("x").view.subscribe(() => undefined);
  await clock.pass(1_000);
  client.conversations.refreshAll();
  await clock.pass(1_000);
  assert.deepEqual([client.conversation("x").view.get(), asked()], [undefined, 2], "once, and once more after all was read anew");
});

type Deed = { readonly do: "say" | "read" | "mute" | "leave" | "look" | "more" | "break"; readonly at: number; readonly ms: number };

test("the total is the server's after any messages, marks, mutes, breaks and loaded pages", async () => {
  const deeds: fc.Arbitrary<readonly Deed[]> = fc.array(
    fc.record({ do: fc.constantFrom("say", "say", "read", "mute", "look", "more", "break"), at: fc.nat(CONVERSATIONS - 1), ms: fc.constantFrom(0, 1, 60, 400) }),
    { minLength: 1, maxLength: 20 },
  );
  await fc.assert(
    fc.asyncProperty(deeds, async (deeds) => {
      const server = await many();
      const { client, clock } = await start({ server });
      for (const { do: deed, at, ms } of deeds) {
        const id = `c${at}`;
        if (deed === "say") server.commit(id, { from: "ben", body: 0, ...(at % 3 === 0 && { mentions: ["ada"] }) });
        else if (deed === "look") client.conversation(id).view.subscribe(() => undefined);
        else if (deed === "more") void client.conversations.loadMore();
        else if (deed === "break") server.closeAll(1006);
        else {
          if (deed === "mute") server.truth.prefer(id, { muted: true });
          else {
            const seq = server.truth.timeline(id).length;
            server.truth.read("ada", id, seq);
            server.tell({ t: "read", conversation: id, user: "ada", seq });
          }
          server.tell({ t: "conversation", conversation: server.truth.view("ada", id) });
        }
        await clock.pass(ms);
      }
      await clock.pass(60_000);
      const { unread, mentions } = client.conversations.get();
      const truth = server.truth.unread("ada");
      assert.deepEqual({ unread, mentions }, { unread: truth.unread, mentions: truth.mentions });
    }),
    { numRuns: Number(process.env["RUNS"] ?? 50) },
  );
});

test("marks that were set before the page was loaded are there when somebody looks, and after a break", async () => {
  const { client, clock, server } = await start();
  for (let n = 0; n < 4; n++) server.commit("g", { from: "ada", body: n });
  server.truth.read("ben", "g", 3);
  await clock.pass(100);
  const { receipts } = client.conversation("g");
  const read = (): unknown => [...receipts.get().marks].map(([user, mark]) => [user, mark.read]);
  receipts.subscribe(() => undefined);
  await clock.pass(10);
  assert.deepEqual(read(), [["ben", 3]]);
  server.tell({ t: "receipts", conversation: "g", marks: [{ user: "cleo", read_seq: 2 }] });
  await clock.pass(10);
  assert.deepEqual(read(), [["ben", 3], ["cleo", 2]]);
  server.closeAll(1006);
  server.truth.read("ben", "g", 4);
  server.truth.read("cleo", "g", 2);
  await clock.pass(40_000);
  assert.deepEqual(read(), [["ben", 4], ["cleo", 2]]);
  // Other members: read again.
  server.truth.read("dan", "g", 1);
  server.commit("g", { kind: "member_change", body: {} });
  await clock.pass(100);
  assert.deepEqual(read(), [["ben", 4], ["cleo", 2], ["dan", 1]]);
});

test("a hundred names are one request, pages bring the names that they show, and a change is seen", async () => {
  const asked: (readonly string[])[] = [];
  const { client, clock, server } = await start({
    fetch: async (_, request) => {
      const { users } = JSON.parse(String(request?.body)) as { readonly users: readonly string[] };
      asked.push(users);
      return new Response(JSON.stringify({ users: users.filter((id) => id !== "nobody").map((id) => ({ id, name: `The ${id}` })) }));
    },
  });
  await clock.pass(100);
  const names = [...Array.from({ length: 100 }, (_, n) => `u${n}`), "nobody"];
  for (const id of names) client.users.of(id).subscribe(() => undefined);
  await clock.pass(100);
  assert.deepEqual([asked.length, asked[0]?.length], [1, 101]);
  assert.deepEqual([client.users.of("u7").get()?.name, client.users.of("nobody").get()], ["The u7", { id: "nobody" }]);
  server.tell({ t: "user", user: { id: "u7", name: "Seven" } });
  await clock.pass(10);
  assert.equal(client.users.of("u7").get()?.name, "Seven");
});
