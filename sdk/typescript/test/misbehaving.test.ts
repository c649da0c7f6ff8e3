// Against a server that drops, doubles, holds back and cuts frames, and lies about cursors: what the app sees is a right prefix of
// each conversation, or an error that was told.
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import type { Json } from "../src/wire/json.js";
import type { TransportName } from "../src/session/transport.js";
import { FakeServer, NO_FAULTS, type Fault } from "./support/fake-server.js";
import type { PostFault } from "./support/fake-streams.js";
import { start } from "./support/start.js";
import { VirtualClock } from "./support/virtual-clock.js";

const CONVERSATIONS = ["g", "h", "ada~ben"] as const;
const conversation = fc.constantFrom(...CONVERSATIONS);

type Deed =
  | { readonly do: "others"; readonly conversation: string; readonly count: number }
  | { readonly do: "send"; readonly conversation: string }
  | { readonly do: "change"; readonly conversation: string; readonly what: "edit" | "recall" | "react" | "pin"; readonly nth: number }
  | { readonly do: "open"; readonly conversation: string }
  | { readonly do: "older"; readonly conversation: string }
  | { readonly do: "read"; readonly conversation: string }
  | { readonly do: "close"; readonly code: number }
  | { readonly do: "unreachable" | "reachable" }
  | { readonly do: "restore" };

const deed: fc.Arbitrary<Deed> = fc.oneof(
  { weight: 6, arbitrary: fc.record({ do: fc.constant("others" as const), conversation, count: fc.integer({ min: 1, max: 30 }) }) },
  { weight: 5, arbitrary: fc.record({ do: fc.constant("send" as const), conversation }) },
  { weight: 4, arbitrary: fc.record({ do: fc.constant("change" as const), conversation, what: fc.constantFrom("edit", "recall", "react", "pin"), nth: fc.nat(40) }) },
  { weight: 3, arbitrary: fc.record({ do: fc.constant("open" as const), conversation }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("older" as const), conversation }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("read" as const), conversation }) },
  { weight: 2, arbitrary: fc.record({ do: fc.constant("close" as const), code: fc.constantFrom(1006, 4007, 4008, 4009, 4012, 4014, 4018, 4020) }) },
  { weight: 1, arbitrary: fc.record({ do: fc.constantFrom("unreachable" as const, "reachable" as const) }) },
);

interface Plan {
  readonly deeds: readonly { readonly deed: Deed; readonly ms: number }[];
  readonly faults: readonly Fault[];
  readonly cuts: readonly boolean[];
  readonly lies: readonly number[];
  readonly resumeMax: number;
  readonly transport: TransportName;
  readonly posts: readonly PostFault[];
}

const plan: fc.Arbitrary<Plan> = fc.record({
  deeds: fc.array(fc.record({ deed, ms: fc.constantFrom(0, 1, 2, 10, 300, 5_000) }), { minLength: 1, maxLength: 40 }),
  faults: fc.array(
    fc.oneof({ weight: 5, arbitrary: fc.constant("pass" as const) }, { weight: 3, arbitrary: fc.constantFrom<Fault[]>("drop", "double", "hold", "cut", "half") }),
    { minLength: 1, maxLength: 20 },
  ),
  cuts: fc.array(fc.boolean(), { minLength: 1, maxLength: 5 }),
  lies: fc.array(fc.constantFrom(0, 0, 1, 3, 50), { minLength: 1, maxLength: 5 }),
  resumeMax: fc.constantFrom(5, 800),
  transport: fc.constantFrom<TransportName[]>("websocket", "event-stream"),
  posts: fc.array(fc.constantFrom<PostFault[]>("pass", "pass", "pass", "lost", "answer-lost"), { minLength: 1, maxLength: 5 }),
});

/** One after the other, over and over. */
function cycle<T>(items: readonly T[], otherwise: T): () => T {
  let next = 0;
  return () => items[next++ % items.length] ?? otherwise;
}

async function live({ deeds, faults, cuts, lies, resumeMax, transport, posts }: Plan): Promise<void> {
  let chance = 0;
  const clock = new VirtualClock(() => (chance = (chance + 0.37) % 1));
  const server = new FakeServer(clock);
  for (const id of CONVERSATIONS) server.commit(id, { from: "ben", body: { n: 0 } });
  const { client } = await start({ server, transport });
  server.resumeMax = resumeMax;
  server.faults = { toClient: cycle(faults, "pass"), cutBeforeAnswer: cycle(cuts, false), resumeLeavesOut: cycle(lies, 0), post: cycle(posts, "pass") };

  // What the app was told of each conversation, and the numbers that it was told to be missing.
  const heard = new Map<string, number>();
  const left = new Map<string, { from: number; to: number }[]>();
  client.on("skipped", ({ conversation, from_seq, to_seq }) => left.set(conversation, [...(left.get(conversation) ?? []), { from: from_seq, to: to_seq }]));
  client.on("reset", () => heard.clear());
  client.on("message", ({ conversation, seq, body, recalled }) => {
    const before = heard.get(conversation);
    const truth = server.truth.timeline(conversation);
    if (before !== undefined) {
      assert.ok(seq > before, `${conversation}: ${seq} came after ${before}`);
      for (let missing = before + 1; missing < seq; missing++) {
        const isNoMessage = truth[missing - 1]?.kind !== "message";
        const isTold = left.get(conversation)?.some(({ from, to }) => missing >= from && missing <= to) ?? false;
        assert.ok(isNoMessage || isTold, `${conversation}: ${missing} never came, and nobody said so`);
      }
    }
    heard.set(conversation, seq);
    if (!recalled) assert.ok(truth[seq - 1] !== undefined && truth[seq - 1]?.from !== undefined, "it is the server's");
    void body;
  });
  for (const id of CONVERSATIONS) {
    client.conversation(id).messages.subscribe(() => {
      const numbers = client.conversation(id).messages.get().items.flatMap((item) => ("seq" in item && item.seq !== undefined ? [item.seq] : []));
      const sorted = [...new Set(numbers)].sort((a, b) => a - b);
      assert.deepEqual(numbers.slice(0, sorted.length), sorted, `${id}: each once and in order`);
    })();
  }

  const watched = new Set<string>();
  const sends: Promise<unknown>[] = [];
  const names: string[] = [];
  let count = 0;
  for (const { deed, ms } of deeds) {
    switch (deed.do) {
      case "others":
        for (let n = 0; n < deed.count; n++) server.commit(deed.conversation, { from: "ben", body: { n: ++count } });
        break;
      case "send": {
        const name = `m${++count}`;
        names.push(name);
        sends.push(client.conversation(deed.conversation).send({ text: name }, { clientMsgId: name }));
        break;
      }
      case "change": {
        const target = server.truth.timeline(deed.conversation).filter(({ kind }) => kind === "message")[deed.nth];
        if (!target) break;
        if (deed.what === "edit") server.truth.edit(deed.conversation, target.seq, "ben", { n: ++count }, clock.now());
        else if (deed.what === "recall") server.truth.recall(deed.conversation, target.seq, "ben", clock.now());
        else if (deed.what === "react") server.truth.react(deed.conversation, target.seq, "ben", "👍", count++ % 3 === 0, clock.now());
        else server.truth.pin(deed.conversation, target.seq, "ben", count++ % 2 === 0, clock.now());
        server.flush();
        break;
      }
      case "open":
        if (!watched.has(deed.conversation)) client.conversation(deed.conversation).messages.subscribe(() => undefined);
        watched.add(deed.conversation);
        break;
      case "older":
        if (watched.has(deed.conversation)) client.conversation(deed.conversation).messages.loadOlder().catch(() => undefined);
        break;
      case "read":
        client.conversation(deed.conversation).markRead().catch(() => undefined);
        break;
      case "close":
        server.closeAll(deed.code);
        break;
      default:
        server.isReachable = deed.do === "reachable";
    }
    await clock.pass(ms);
  }

  // The server mends its ways; one more message in each conversation shows what is missing.
  server.faults = NO_FAULTS;
  server.isReachable = true;
  server.closeAll(1006);
  await clock.pass(200_000);
  for (const id of CONVERSATIONS) server.commit(id, { from: "ben", body: { last: true } });
  await clock.pass(200_000);

  await Promise.all(sends);
  for (const name of names) {
    const made = server.truth.log.filter((entry) => entry.client_msg_id === name);
    assert.equal(made.length, 1, `${name} was committed ${made.length} times`);
  }
  for (const id of CONVERSATIONS) {
    const truth = server.truth.timeline(id);
    const line = client.conversation(id).view.get();
    const right = server.truth.view("ada", id);
    assert.deepEqual([line?.last_seq, line?.unread, line?.mentions], [right.last_seq, right.unread, right.mentions], `${id}: the list`);
    if (!watched.has(id)) continue;
    const { items, state, hasOlder } = client.conversation(id).messages.get();
    assert.equal(state, "ready");
    const shown = items.map((item) => ("seq" in item ? item.seq : 0));
    const low = shown[0] ?? 1;
    const expected = truth.filter(({ kind, seq }) => kind === "message" && seq >= low);
    assert.deepEqual(shown, expected.map(({ seq }) => seq), `${id}: one unbroken range to the end`);
    assert.ok(hasOlder || truth.every(({ kind, seq }) => kind !== "message" || seq >= low) || (left.get(id)?.length ?? 0) > 0, `${id}: older ones are known of`);
    for (const [index, item] of items.entries()) {
      const entry = expected[index];
      if (item.is !== "message" || item.state !== "sent" || !entry) continue;
      const seen = { body: item.body, version: item.version, recalled: item.recalled !== undefined, reactions: item.reactions, pinned: item.pinned !== undefined };
      const is = { body: entry.body as Json, version: entry.version ?? 1, recalled: entry.recalled !== undefined, reactions: entry.reactions ?? [], pinned: entry.pinned !== undefined };
      assert.deepEqual(seen, is, `${id} ${entry.seq}`);
    }
  }
}

test("whatever a server does, the app sees a right prefix or is told", async () => {
  await fc.assert(fc.asyncProperty(plan, live), { numRuns: Number(process.env["RUNS"] ?? 150) });
});
