// What outlives the page: the timeline with its cursor, the list, what is not sent; and a storage that fails.
import "fake-indexeddb/auto";
import assert from "node:assert/strict";
import { test } from "node:test";
import { connectWith } from "../src/connect.js";
import type { TidingsError } from "../src/errors.js";
import { textOf } from "../src/message.js";
import { indexedDbStorage } from "../src/storage/indexed-db.js";
import { memoryStorage } from "../src/storage/memory.js";
import type { KeyValueStorage } from "../src/storage/storage.js";
import type { Tidings } from "../src/tidings.js";
import { FakeServer } from "./support/fake-server.js";
import { unsignedToken } from "./support/tokens.js";
import { VirtualClock } from "./support/virtual-clock.js";

async function open(server: FakeServer, storage: KeyValueStorage, user = "ada"): Promise<Tidings> {
  let client: Tidings | undefined;
  const opening = connectWith(
    { url: "http://fake", token: async () => unsignedToken({ sub: user }), deviceId: "d", WebSocket: server.WebSocket, transports: ["websocket"], storage },
    { clock: server.clock, tabs: undefined },
  ).then((opened) => (client = opened));
  // A database answers in its own time.
  while (client === undefined) await server.clock.pass(10);
  return opening;
}

/** Until what was gathered is committed. */
async function written(server: FakeServer): Promise<void> {
  for (let n = 0; n < 40; n++) await server.clock.pass(50);
}

const texts = (client: Tidings): readonly (string | undefined)[] =>
  client.conversation("g").messages.get().items.map((item) => (item.is === "message" ? textOf(item) : undefined));

for (const [name, make] of [["memory", () => memoryStorage()], ["IndexedDB", () => indexedDbStorage(`db-${Math.random()}`)]] as const) {
  test(`${name}: a page that opens again shows what was there, resumes, and sends what was left`, async () => {
    const server = new FakeServer(new VirtualClock());
    const storage = make();
    for (let n = 1; n <= 5; n++) server.commit("g", { from: "ben", body: String(n) });
    const first = await open(server, storage);
    first.conversation("g").messages.subscribe(() => undefined);
    await written(server);
    server.isReachable = false;
    server.closeAll(1006);
    await server.clock.pass(10);
    void first.conversation("g").send("unsent one");
    void first.conversation("g").send("unsent two");
    await written(server);
    await first.close();
    server.commit("g", { from: "ben", body: "missed" });

    const second = await open(server, storage);
    assert.deepEqual(texts(second), ["1", "2", "3", "4", "5", "unsent one", "unsent two"], "shown without a connection");
    assert.equal(second.conversations.get().items[0]?.id, "g");
    server.isReachable = true;
    await server.clock.pass(60_000);
    assert.deepEqual(texts(second), ["1", "2", "3", "4", "5", "missed", "unsent one", "unsent two"]);
    assert.ok(server.binds.at(-1)?.["cursor"] !== undefined, "it resumed");
    await written(server);
    await second.close();

    const third = await open(server, storage);
    await server.clock.pass(1_000);
    assert.equal(server.truth.timeline("g").length, 8, "nothing was sent twice");
    assert.deepEqual(texts(third), texts(second));
    await third.close();
  });

  test(`${name}: another user's state is not shown`, async () => {
    const server = new FakeServer(new VirtualClock());
    const storage = make();
    server.commit("g", { from: "ben", body: "ada's" });
    const ada = await open(server, storage);
    ada.conversation("g").messages.subscribe(() => undefined);
    await written(server);
    await ada.close();
    const cleo = await open(server, storage, "cleo");
    assert.deepEqual(texts(cleo), []);
    assert.equal((await storage.read("timeline/")).size, 0);
    await cleo.close();
  });

  test(`${name}: a cursor that the server refuses takes what is stored with it`, async () => {
    const server = new FakeServer(new VirtualClock());
    const storage = make();
    server.commit("g", { from: "ben", body: "old" });
    const first = await open(server, storage);
    first.conversation("g").messages.subscribe(() => undefined);
    await written(server);
    await first.close();
    server.refuse = ({ t, cursor }) => (t === "bind" && cursor !== undefined ? { code: "cursor_invalid", retry: false } : undefined);
    const second = await open(server, storage);
    await server.clock.pass(5_000);
    await written(server);
    assert.equal((await storage.read("timeline/")).size, 0);
    second.conversation("g").messages.subscribe(() => undefined);
    await server.clock.pass(100);
    assert.deepEqual(texts(second), ["old"]);
    await second.close();
  });
}

test("a full disk: the client says so, goes on in memory, and what was stored stays right", async () => {
  const server = new FakeServer(new VirtualClock());
  const storage = indexedDbStorage(`db-${Math.random()}`);
  let isFull = false;
  const failing: KeyValueStorage = {
    ...storage,
    commit: (changes) => (isFull ? Promise.reject(new DOMException("no room", "QuotaExceededError")) : storage.commit(changes)),
  };
  server.commit("g", { from: "ben", body: "1" });
  const client = await open(server, failing);
  const failures: TidingsError[] = [];
  client.on("storage", (error) => failures.push(error));
  client.conversation("g").messages.subscribe(() => undefined);
  await written(server);
  isFull = true;
  for (let n = 2; n <= 4; n++) server.commit("g", { from: "ben", body: String(n) });
  await written(server);
  assert.deepEqual(failures.map(({ code }) => code), ["storage_full"]);
  assert.deepEqual(texts(client), ["1", "2", "3", "4"]);
  await client.close();

  const again = await open(server, indexedDbReopened(storage));
  await server.clock.pass(1_000);
  assert.deepEqual(texts(again), ["1", "2", "3", "4"], "it resumed from the cursor of what was stored");
  await again.close();
});

test("a storage that cannot be read: the client says so and works", async () => {
  const server = new FakeServer(new VirtualClock());
  const broken: KeyValueStorage = { ...memoryStorage(), read: () => Promise.reject(new Error("the profile is broken")) };
  const client = await open(server, broken);
  assert.equal(client.status.get().state, "online");
});

test("the server is told what is stored, at most once a second, and at last of all of it", async () => {
  const server = new FakeServer(new VirtualClock());
  const durable = { ...memoryStorage(), isDurable: true };
  const client = await open(server, durable);
  const from = server.clock.now();
  for (let n = 0; n < 40; n++) {
    server.commit("g", { from: "ben", body: n });
    await server.clock.pass(130);
  }
  const stored = (): readonly (string | undefined)[] => server.received.filter(({ t }) => t === "stored").map(({ cursor }) => String(cursor));
  assert.ok(stored().length <= 2 + (server.clock.now() - from) / 1_000, `${stored().length} times`);
  await server.clock.pass(3_000);
  assert.equal(stored().at(-1), "1.40");
  const before = stored().length;
  await server.clock.pass(60_000);
  assert.equal(stored().length, before, "nothing new, nothing told");
  await client.close();
});

function indexedDbReopened(storage: KeyValueStorage): KeyValueStorage {
  return storage; // closed by the first client, it opens again by itself
}
