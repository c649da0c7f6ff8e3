// Tabs of one browser share a connection: none replaces another, and when the one that holds it goes, the next goes on.
import assert from "node:assert/strict";
import { test } from "node:test";
import { connectWith } from "../src/connect.js";
import { textOf } from "../src/message.js";
import { memoryStorage } from "../src/storage/memory.js";
import type { KeyValueStorage } from "../src/storage/storage.js";
import type { Tidings } from "../src/tidings.js";
import { FakeBrowser, type FakeTab } from "./support/fake-browser.js";
import { FakeServer } from "./support/fake-server.js";
import { unsignedToken } from "./support/tokens.js";
import { VirtualClock } from "./support/virtual-clock.js";

async function open(server: FakeServer, tab: FakeTab, storage?: KeyValueStorage): Promise<Tidings> {
  const WebSocket = class extends server.WebSocket {
    constructor(url: string) {
      if (tab.isDead) throw new Error("the tab is dead");
      super(url);
    }
  };
  const opening = connectWith(
    {
      url: "http://fake",
      token: async () => unsignedToken({ sub: "ada" }),
      deviceId: "browser-1",
      WebSocket,
      transports: ["websocket"],
      shareTabs: true,
      ...(storage && { storage }),
    },
    { clock: server.clock, tabs: tab.support },
  );
  await server.clock.pass(200);
  return opening;
}

const texts = (client: Tidings): readonly (string | undefined)[] =>
  client.conversation("g").messages.get().items.map((item) => (item.is === "message" ? textOf(item) : undefined));

test("two tabs hold one connection, and both see and send", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const [one, two] = [await open(server, browser.openTab()), await open(server, browser.openTab())];
  for (const client of [one, two]) client.conversation("g").messages.subscribe(() => undefined);
  const sends = [one.conversation("g").send("from one"), two.conversation("g").send("from two")];
  await server.clock.pass(100);
  await Promise.all(sends);
  server.commit("g", { from: "ben", body: "from ben" });
  await server.clock.pass(100);
  assert.equal(server.binds.length, 1);
  for (const client of [one, two]) {
    assert.deepEqual([...texts(client)].sort(), ["from ben", "from one", "from two"]);
    assert.equal(client.status.get().state, "online");
    assert.equal(client.conversations.get().items[0]?.last_seq, 3);
  }
  const refused = two.popups.report([{ id: "x".repeat(200_000), decision: "d", type: "click" }]);
  await assert.rejects(refused, { code: "limit_exceeded" });
});

test("when the tab with the connection is killed, the next resumes: nothing is lost, nothing comes twice", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const tabs = [browser.openTab(), browser.openTab(), browser.openTab()];
  const clients: Tidings[] = [];
  for (const tab of tabs) clients.push(await open(server, tab));
  const heard = clients.map((client) => {
    const seqs: number[] = [];
    client.on("message", ({ seq }) => seqs.push(seq));
    client.conversation("g").messages.subscribe(() => undefined);
    return seqs;
  });
  server.commit("g", { from: "ben", body: "1" });
  await server.clock.pass(100);
  // An answer is on its way when the first tab dies.
  const sending = clients[1]?.conversation("g").send("2");
  await server.clock.pass(1);
  tabs[0]?.kill();
  server.closeAll(1006);
  server.commit("g", { from: "ben", body: "while nobody was there" });
  await server.clock.pass(5_000);
  await sending;
  server.commit("g", { from: "ben", body: "4" });
  await server.clock.pass(5_000);
  const all = server.truth.timeline("g").map((entry) => textOf(entry));
  assert.equal(all.filter((text) => text === "2").length, 1);
  for (const n of [1, 2]) {
    assert.deepEqual(texts(clients[n] as Tidings), all);
    assert.deepEqual(heard[n], all.map((_, index) => index + 1));
    assert.equal(clients[n]?.status.get().state, "online");
  }
  assert.equal(server.links.size, 1);
});

test("a tab that closes in order hands the connection on", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const [one, two] = [await open(server, browser.openTab()), await open(server, browser.openTab())];
  await one.close();
  await server.clock.pass(500);
  assert.equal(two.status.get().state, "online");
  const sent = two.conversation("g").send("still here");
  await server.clock.pass(100);
  assert.equal((await sent).seq, 1);
  await assert.rejects(one.conversation("g").send("no more"), { code: "closed" });
});

test("what a tab without the connection leaves unsent is sent by the one with it, once, however the tab ended", async () => {
  for (const ending of ["killed", "closed"]) {
    const server = new FakeServer(new VirtualClock());
    const browser = new FakeBrowser();
    const storage: KeyValueStorage = { ...memoryStorage(), close: () => Promise.resolve() };
    const one = await open(server, browser.openTab(), storage);
    const tabs = [browser.openTab(), browser.openTab()] as const;
    const [two, three] = [await open(server, tabs[0], storage), await open(server, tabs[1], storage)];
    one.conversation("g").messages.subscribe(() => undefined);
    server.isReachable = false;
    server.closeAll(1006);
    await server.clock.pass(10);
    void two.conversation("g").send("by the one that goes");
    void three.conversation("g").send("by the one that stays");
    await server.clock.pass(10);
    if (ending === "closed") void two.close();
    else tabs[0].kill();
    await server.clock.pass(500);
    // The one that stays sends its own, and nobody else does.
    assert.deepEqual(texts(one), ["by the one that goes"], ending);
    server.isReachable = true;
    await server.clock.pass(60_000);
    assert.deepEqual([...texts(one)].sort(), ["by the one that goes", "by the one that stays"], ending);
    assert.deepEqual([...(await storage.read("outbox/")).keys()], [], ending);
  }
});

test("a session that was replaced elsewhere ends in all tabs, and a tab that is opened begins anew", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const [one, two] = [await open(server, browser.openTab()), await open(server, browser.openTab())];
  server.closeAll(4003, "replaced");
  await server.clock.pass(60_000);
  for (const client of [one, two]) {
    const status = client.status.get();
    assert.equal(status.state === "ended" && status.error.code, "replaced");
  }
  assert.equal(server.binds.length, 1);
  const three = await open(server, browser.openTab());
  for (const client of [one, two, three]) assert.equal(client.status.get().state, "online");
  two.reconnect();
  await server.clock.pass(100);
  assert.equal(server.binds.length, 2);
});

test("a tab that is opened later stands where the session stands", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const storage = memoryStorage();
  const one = await open(server, browser.openTab(), storage);
  one.conversation("g").messages.subscribe(() => undefined);
  for (let n = 1; n <= 3; n++) server.commit("g", { from: "ben", body: String(n) });
  await server.clock.pass(1_000);
  // What is stored is older than what the first tab has: nothing was written since.
  const stored = memoryStorage();
  await stored.commit(await storage.read(""));
  for (let n = 4; n <= 5; n++) server.commit("g", { from: "ben", body: String(n) });
  await server.clock.pass(50);
  const two = await open(server, browser.openTab(), stored);
  const heard: number[] = [];
  two.on("message", ({ seq }) => heard.push(seq));
  two.conversation("g").messages.subscribe(() => undefined);
  await server.clock.pass(1_000);
  server.commit("g", { from: "ben", body: "6" });
  await server.clock.pass(1_000);
  assert.deepEqual(texts(two), ["1", "2", "3", "4", "5", "6"]);
  assert.deepEqual(texts(one), texts(two));
  assert.deepEqual(heard, [6]);
});

test("the tab in front lends its timers to the one with the connection", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  await open(server, browser.openTab());
  await open(server, browser.openTab());
  server.received.splice(0);
  await server.clock.pass(60_000);
  assert.ok(server.received.filter(({ t }) => t === "ping").length > 4, "pings of both tabs' timers");
});

test("what a tab had not sent when it was killed, the next one sends", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const storage = memoryStorage();
  const tabs = [browser.openTab(), browser.openTab()];
  const clients = [await open(server, tabs[0] as FakeTab, storage), await open(server, tabs[1] as FakeTab, storage)];
  server.isReachable = false;
  server.closeAll(1006);
  await server.clock.pass(10);
  for (const text of ["one", "two", "three"]) void clients[0]?.conversation("g").send(text);
  await server.clock.pass(1_000);
  tabs[0]?.kill();
  server.isReachable = true;
  await server.clock.pass(60_000);
  assert.deepEqual(server.truth.timeline("g").map((entry) => textOf(entry)), ["one", "two", "three"]);
});

test("a leader that its browser has suspended loses the connection to the tab in front, and follows it when it runs again", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const tabs = [browser.openTab(), browser.openTab()] as const;
  const [one, two] = [await open(server, tabs[0]), await open(server, tabs[1])];
  for (const client of [one, two]) client.conversation("g").messages.subscribe(() => undefined);
  await server.clock.pass(100);
  tabs[0].suspend();
  const sent = two.conversation("g").send("from the front");
  await server.clock.pass(60_000);
  assert.equal((await sent).seq, 1);
  const three = await open(server, browser.openTab());
  server.commit("g", { from: "ben", body: "from ben" });
  await server.clock.pass(1_000);
  tabs[0].resume();
  await server.clock.pass(60_000);
  for (const client of [one, two, three]) assert.equal(client.status.get().state, "online");
  assert.equal(server.links.size, 1, "one connection");
  assert.deepEqual(texts(one), ["from the front", "from ben"]);
  const last = one.conversation("g").send("followed");
  await server.clock.pass(1_000);
  assert.equal((await last).seq, 3);
  assert.deepEqual(texts(two), ["from the front", "from ben", "followed"]);
});

test("a tab that nobody looks at takes nothing from others", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const tabs = [browser.openTab(), browser.openTab()] as const;
  await open(server, tabs[0]);
  await open(server, tabs[1]);
  tabs[1].isInFront = false;
  tabs[0].suspend();
  await server.clock.pass(120_000);
  assert.equal(server.binds.length, 1);
});

test("somebody looks at the session while somebody looks at one of the tabs", async () => {
  const server = new FakeServer(new VirtualClock());
  const browser = new FakeBrowser();
  const tabs = [browser.openTab(), browser.openTab(), browser.openTab()] as const;
  const [one, two] = [await open(server, tabs[0]), await open(server, tabs[1])];
  const attentions = async (): Promise<readonly unknown[]> => {
    await server.clock.pass(1_000);
    return server.received.splice(0).flatMap((frame) => (frame.t === "attention" ? [frame["state"]] : []));
  };
  assert.deepEqual(await attentions(), [], "a session begins in the foreground");
  one.attend("background");
  assert.deepEqual(await attentions(), [], "the other tab is seen");
  two.attend("background");
  assert.deepEqual(await attentions(), ["background"]);
  server.closeAll(1006);
  await server.clock.pass(60_000);
  assert.deepEqual(await attentions(), ["background"], "told to the next session");
  await open(server, tabs[2]);
  assert.deepEqual(await attentions(), ["foreground"]);
  tabs[2].kill();
  assert.deepEqual(await attentions(), ["background"]);
  tabs[0].kill();
  server.closeAll(1006);
  await server.clock.pass(60_000);
  assert.deepEqual(await attentions(), ["background"], "told by the tab that has the connection now");
  two.attend("foreground");
  assert.deepEqual(await attentions(), ["foreground"]);
});
