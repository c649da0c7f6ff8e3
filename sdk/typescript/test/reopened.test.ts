// Pages that die at any moment and open again on what they had stored, beside tabs that live on: the last one sees what the server has,
// and what was written is sent once.
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { connectWith } from "../src/connect.js";
import type { Tidings } from "../src/tidings.js";
import { memoryStorage } from "../src/storage/memory.js";
import { FakeBrowser, type FakeTab } from "./support/fake-browser.js";
import { FakeServer, NO_FAULTS, type Fault } from "./support/fake-server.js";
import { unsignedToken } from "./support/tokens.js";
import { VirtualClock } from "./support/virtual-clock.js";

type Deed = { readonly do: "others" | "send" | "edit" | "kill" | "close" | "open" | "cut" | "older" | "suspend" | "resume"; readonly n: number; readonly ms: number };

const deed: fc.Arbitrary<Deed> = fc.record({
  do: fc.constantFrom("others", "others", "send", "send", "edit", "kill", "close", "open", "open", "cut", "older", "suspend", "resume"),
  n: fc.nat(20),
  ms: fc.constantFrom(0, 1, 50, 250, 3_000),
});
const fault: fc.Arbitrary<Fault> = fc.constantFrom("pass", "pass", "pass", "pass", "drop", "double", "hold", "cut");

interface Page {
  readonly tab: FakeTab;
  readonly client: Tidings;
}

async function live(deeds: readonly Deed[], faults: readonly Fault[], isShared: boolean): Promise<void> {
  let chance = 0;
  const clock = new VirtualClock(() => (chance = (chance + 0.37) % 1));
  const server = new FakeServer(clock);
  const browser = new FakeBrowser();
  const storage = memoryStorage();
  let next = 0;
  server.faults = { ...NO_FAULTS, toClient: ({ t }) => (t === "bound" ? "pass" : (faults[next++ % faults.length] ?? "pass")) };
  const pages: Page[] = [];
  let count = 0;
  const names = new Map<string, { isStored: boolean; page: Page }>();

  const open = async (): Promise<void> => {
    const tab = browser.openTab();
    const WebSocket = class extends server.WebSocket {
      constructor(url: string) {
        if (tab.isDead) throw new Error("the tab is dead");
        super(url);
      }
    };
    const guarded = { ...storage, commit: (changes: ReadonlyMap<string, unknown>) => (tab.isDead ? new Promise<void>(() => undefined) : storage.commit(changes)), close: () => Promise.resolve() };
    const options = { url: "http://fake", token: async () => unsignedToken({ sub: "ada" }), deviceId: "d", WebSocket, transports: ["websocket" as const], storage: guarded, shareTabs: isShared };
    let client: Tidings | undefined;
    void connectWith(options, { clock, tabs: tab.support }).then((opened) => (client = opened));
    for (let tries = 0; client === undefined && tries < 400; tries++) await clock.pass(250);
    assert.ok(client, "a page opens");
    const page = { tab, client };
    client.conversation("g").messages.subscribe(() => undefined);
    pages.push(page);
  };
  const end = (page: Page): void => {
    page.tab.kill();
    for (const link of [...server.links]) if (pages.filter(({ tab }) => !tab.isDead).length === 0 || !isShared) link.end(1006, "");
    pages.splice(pages.indexOf(page), 1);
  };

  server.commit("g", { from: "ben", body: 0 });
  for (const { do: what, n, ms } of deeds) {
    const page = pages[n % Math.max(1, pages.length)];
    switch (what) {
      case "others":
        for (let some = 0; some <= n; some++) server.commit("g", { from: "ben", body: ++count });
        break;
      case "edit":
        server.truth.edit("g", 1, "ben", ++count, clock.now());
        server.flush();
        break;
      case "send":
        if (page && !page.tab.isSuspended) {
          const name = `m${++count}`;
          names.set(name, { isStored: false, page });
          void page.client.conversation("g").send(name, { clientMsgId: name });
        }
        break;
      case "open":
        // Without sharing, two pages of one device would replace each other.
        if (pages.length < (isShared ? 3 : 1)) await open();
        break;
      case "kill":
        if (page) end(page);
        break;
      case "close":
        if (page) {
          pages.splice(pages.indexOf(page), 1);
          void page.client.close();
          await clock.pass(10);
          page.tab.kill();
        }
        break;
      case "suspend":
        if (isShared && pages.length > 1) page?.tab.suspend();
        break;
      case "resume":
        for (const { tab } of pages) tab.resume();
        break;
      case "cut":
        server.closeAll(1006);
        break;
      case "older":
        page?.client.conversation("g").messages.loadOlder().catch(() => undefined);
    }
    await clock.pass(ms);
    if (ms >= 1) for (const name of names.values()) if (pages.includes(name.page)) name.isStored = true;
  }

  server.faults = NO_FAULTS;
  server.closeAll(1006);
  for (const { tab } of pages) tab.resume();
  if (pages.length === 0) await open();
  await clock.pass(200_000);
  server.commit("g", { from: "ben", body: "last" });
  await clock.pass(200_000);
  for (const [name, { isStored }] of names) {
    const made = server.truth.timeline("g").filter((entry) => entry.client_msg_id === name).length;
    assert.ok(made === 1 || (made === 0 && !isStored), `${name} was committed ${made} times`);
  }
  for (const { client } of pages) {
    const { items } = client.conversation("g").messages.get();
    const shown = items.map((item) => ("seq" in item ? [item.seq, item.body] : [0, item.body]));
    const low = Number(shown[0]?.[0] ?? 1);
    const truth = server.truth.timeline("g").filter(({ kind, seq }) => kind === "message" && seq >= low);
    assert.deepEqual(shown, truth.map(({ seq, body }) => [seq, body]));
    assert.equal(client.conversation("g").view.get()?.unread, server.truth.view("ada", "g").unread);
  }
}

/** What has failed before. */
const EXAMPLES: readonly [readonly Deed[], readonly Fault[]][] = [
  // A tab that does not have the connection is killed with a message unsent, and the one with the connection lives on.
  [
    [
      { do: "edit", n: 0, ms: 1 },
      { do: "open", n: 0, ms: 1 },
      { do: "open", n: 0, ms: 0 },
      { do: "open", n: 0, ms: 50 },
      { do: "send", n: 1, ms: 1 },
      { do: "kill", n: 1, ms: 50 },
    ],
    ["hold", "drop", "hold", "pass", "pass", "cut", "drop", "cut", "pass"],
  ],
  // An edit overtakes the page of older messages that has its message as it was before.
  [
    [
      { do: "open", n: 0, ms: 0 },
      { do: "others", n: 0, ms: 1 },
      { do: "kill", n: 0, ms: 0 },
      { do: "open", n: 0, ms: 3_000 },
      { do: "edit", n: 0, ms: 0 },
      { do: "others", n: 0, ms: 0 },
    ],
    ["pass", "hold", "pass", "pass"],
  ],
];

for (const isShared of [false, true]) {
  test(`pages that die and open again${isShared ? ", beside tabs that share the connection" : ""}`, async () => {
    const runs = Number(process.env["RUNS"] ?? 100);
    await fc.assert(fc.asyncProperty(fc.array(deed, { minLength: 1, maxLength: 30 }), fc.array(fault, { minLength: 1, maxLength: 12 }), (deeds, faults) => live(deeds, faults, isShared)), { numRuns: runs, examples: EXAMPLES.map(([deeds, faults]): [Deed[], Fault[]] => [[...deeds], [...faults]]) });
  });
}
