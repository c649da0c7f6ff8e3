// The session's life: binding, heartbeats, tokens, endings, waits.
import assert from "node:assert/strict";
import { test } from "node:test";
import { CLOSE_CODES } from "../src/session/close-codes.js";
import { claimsOf, refreshInMs } from "../src/session/claims.js";
import { initialState, step } from "../src/session/machine.js";
import type { SessionEvent, SessionState } from "../src/session/states.js";
import { FakeServer } from "./support/fake-server.js";
import { start } from "./support/start.js";
import { unsignedToken } from "./support/tokens.js";
import { VirtualClock } from "./support/virtual-clock.js";

test("a session binds, and stays up through hours of silence", async () => {
  const { client, clock, server } = await start();
  assert.deepEqual(client.status.get(), { state: "online", session: "1" });
  await clock.pass(3 * 3_600_000);
  assert.equal(server.binds.length, 1);
  const pings = server.received.filter(({ t }) => t === "ping").length;
  assert.ok(pings >= 3 * 120, `${pings} pings in three hours of 30 s heartbeats`);
});

test("a server that falls silent counts as gone after one and a half heartbeats", async () => {
  const { client, clock, server } = await start();
  server.script = ({ t }) => t === "ping";
  await clock.pass(45_000);
  server.script = () => false;
  assert.notEqual(client.status.get().state, "ended");
  await clock.pass(20_000);
  assert.equal(server.binds.length, 2, "it bound again");
  assert.equal(client.status.get().state, "online");
});

test("each close code is followed by what the table advises", async () => {
  for (const [number, { code, advice }] of CLOSE_CODES) {
    let serial = 0;
    const { client, clock, server } = await start({ token: async () => unsignedToken({ sub: "ada", jti: String(serial++) }) });
    server.closeAll(number, code);
    await clock.pass(31_000);
    const status = client.status.get();
    if (advice === "stop") {
      assert.equal(status.state, "ended", code);
      assert.equal(status.state === "ended" && status.error.code, code);
      assert.equal(server.binds.length, 1, code);
    } else {
      assert.equal(status.state, "online", `${number} ${code}`);
      assert.equal(server.binds[1]?.["cursor"], advice === "fresh" ? undefined : "1.0", code);
    }
  }
});

test("4999 and numbers above the table do as the error before them says", async () => {
  for (const retry of [true, false]) {
    const { client, clock, server } = await start();
    server.tell({ t: "error", code: "of_a_newer_server", message: "because", retry });
    await clock.pass(5);
    server.closeAll(4999, "of_a_newer_server");
    await clock.pass(31_000);
    assert.equal(client.status.get().state, retry ? "online" : "ended");
  }
});

test("the same refused token stops the client, another is tried, and three are enough", async () => {
  const server = new FakeServer(new VirtualClock());
  server.refuse = ({ t }) => (t === "bind" ? { code: "unauthorized", retry: false } : undefined);
  const same = await start({ server });
  await server.clock.pass(120_000);
  const status = same.client.status.get();
  assert.equal(status.state === "ended" && status.error.code, "unauthorized");
  assert.equal(server.received.filter(({ t }) => t === "bind").length, 1, "the refused token was not sent again");

  const other = new FakeServer(new VirtualClock());
  other.refuse = server.refuse;
  let serial = 0;
  const fresh = await start({ server: other, token: async () => unsignedToken({ sub: "ada", jti: String(serial++) }) });
  await other.clock.pass(600_000);
  assert.equal(fresh.client.status.get().state, "ended");
  assert.equal(other.received.filter(({ t }) => t === "bind").length, 4);
  other.refuse = () => undefined;
  fresh.client.reconnect();
  await other.clock.pass(1_000);
  assert.equal(fresh.client.status.get().state, "online", "the app asked again");
});

test("waits are random, double up to half a minute, and begin anew after a session that held", async () => {
  const clock = new VirtualClock(() => 0.999);
  const server = new FakeServer(clock);
  const { client } = await start({ server });
  server.isReachable = false;
  await clock.pass(11_000);
  server.closeAll(1006);
  const waits: number[] = [];
  for (let n = 0; n < 10; n++) {
    await clock.pass(5);
    const status = client.status.get();
    assert.equal(status.state, "away");
    if (status.state !== "away") return;
    const wait = status.retryAt - clock.now();
    waits.push(Math.round((wait + 5) / 500) * 500);
    await clock.pass(wait);
  }
  assert.deepEqual(waits, [500, 500, 1000, 2000, 4000, 8000, 16000, 30000, 30000, 30000].map((ms, n) => (n === 0 ? 500 : ms)), "each attempt's wait");
});

test("a stopping server's after_ms is waited for, also by a waking page", async () => {
  const { client, clock, server, session } = await start();
  server.tell({ t: "reconnect", after_ms: 7_000 });
  await clock.pass(5);
  server.closeAll(4009, "draining");
  await clock.pass(5);
  session.wake();
  await clock.pass(6_900);
  assert.equal(client.status.get().state, "away");
  await clock.pass(200);
  assert.equal(client.status.get().state, "online");
});

test("a token is refreshed in place before it expires", async () => {
  const clock = new VirtualClock();
  let serial = 0;
  const token = async (): Promise<string> => {
    const now = Math.floor(clock.now() / 1000);
    return unsignedToken({ sub: "ada", iat: now, exp: now + 600, jti: String(serial++) });
  };
  const { server } = await start({ server: new FakeServer(clock), token });
  await clock.pass(3_600_000);
  const refreshes = server.received.filter(({ t }) => t === "refresh").length;
  assert.equal(server.binds.length, 1);
  assert.ok(refreshes >= 6 && refreshes <= 9, `${refreshes} refreshes in an hour of ten-minute tokens`);
});

test("a clock that is wrong by a day refreshes as well", () => {
  const now = 1_700_000_000_000;
  const claims = { iat: now / 1000, exp: now / 1000 + 600 };
  for (const wrong of [-86_400_000, 0, 86_400_000]) {
    const ms = refreshInMs(claims, claims.exp * 1000, now + wrong) ?? 0;
    assert.ok(ms >= 10_000 && ms <= 540_000, `${wrong}: ${ms}`);
  }
});

test("a provider that fails is asked again; null ends the session", async () => {
  const clock = new VirtualClock();
  let answers: (() => string | null)[] = [
    () => { throw new Error("no network"); },
    () => { throw new Error("no network"); },
    () => unsignedToken({ sub: "ada" }),
  ];
  const { client, server } = await start({ server: new FakeServer(clock), token: async () => (answers.shift() ?? (() => null))() });
  await clock.pass(5_000);
  assert.equal(client.status.get().state, "online");
  answers = [];
  server.closeAll(1006);
  await clock.pass(5_000);
  const status = client.status.get();
  assert.equal(status.state === "ended" && status.error.code, "signed_out");
});

test("what is left of an earlier attempt changes nothing", () => {
  const identity = { deviceId: "d", deviceKind: "web", appVersion: undefined, push: false, compact: false };
  const around = { now: 0, random: 0 };
  let state: SessionState = initialState(identity, undefined);
  for (const event of [{ type: "start" }, { type: "token", epoch: 1, token: "a" }, { type: "opened", epoch: 1 }] as SessionEvent[]) {
    [state] = step(state, event, around);
  }
  [state] = step(state, { type: "closed", epoch: 1, code: 1006, reason: "" }, around);
  assert.equal(state.phase.at, "waiting");
  for (const event of [
    { type: "opened", epoch: 1 },
    { type: "closed", epoch: 1, code: 4003, reason: "" },
    { type: "token", epoch: 1, token: "late" },
    { type: "garbage", epoch: 1, why: "late" },
  ] as SessionEvent[]) {
    const [next, effects] = step(state, event, around);
    assert.equal(next, state);
    assert.deepEqual(effects, []);
  }
});

test("closing says goodbye and leaves no timer", async () => {
  const { client, clock, server } = await start();
  await client.close();
  await clock.pass(10);
  assert.equal(server.received.at(-1)?.t, "unbind");
  assert.equal(clock.pending, 0);
  await assert.rejects(client.conversation("c").send("after the end"), { code: "closed" });
  await assert.rejects(client.conversation("c").markRead(1), { code: "closed" });
});

test("an app's listener that throws stops nothing", async () => {
  const thrown: unknown[] = [];
  const place = globalThis as { reportError?: (error: unknown) => void };
  place.reportError = (error) => void thrown.push(error);
  const { client, clock, server } = await start();
  client.on("message", () => {
    throw new Error("the app's own");
  });
  client.status.subscribe(() => {
    throw new Error("the app's own");
  });
  client.conversations.subscribe(() => {
    throw new Error("the app's own");
  });
  server.commit("g", { from: "ben", body: 1 });
  await clock.pass(100);
  server.closeAll(1006);
  await clock.pass(5_000);
  server.commit("g", { from: "ben", body: 2 });
  await clock.pass(100);
  delete place.reportError;
  assert.equal(client.conversations.get().items[0]?.last_seq, 2);
  assert.equal(client.status.get().state, "online");
  assert.ok(thrown.length >= 4, "the app sees its defects");
});

for (const transport of ["websocket", "event-stream"] as const) {
  test(`${transport}: a machine that slept for a night connects at once, with another token, and has missed nothing`, async () => {
    const server = new FakeServer(new VirtualClock());
    const expiring = (): string => unsignedToken({ sub: "ada", exp: Math.floor(server.clock.now() / 1000) + 900 });
    const { clock, client, session } = await start({ server, transport, token: () => Promise.resolve(expiring()) });
    const chat = client.conversation("g");
    chat.messages.subscribe(() => undefined);
    server.commit("g", { from: "ben", body: 0 });
    await clock.pass(1_000);
    // Nobody says goodbye: the server gives the session up, and the network has forgotten the connection.
    for (const link of server.links) {
      link.readyState = 3;
      link.onEnd();
    }
    for (let n = 1; n <= 3; n++) server.commit("g", { from: "ben", body: n });
    const written = chat.send({ n: 4 });
    await clock.sleep(9 * 3_600_000);
    session.wake();
    await clock.pass(5_000);
    assert.equal(session.status.get().state, "online");
    assert.equal((await written).seq, 5);
    assert.deepEqual(chat.messages.get().items.map((item) => (item.is === "message" ? [item.state, item.body] : [])), [
      ...[0, 1, 2, 3].map((n) => ["sent", n]),
      ["sent", { n: 4 }],
    ]);
    const expiries = server.binds.map(({ token }) => claimsOf(String(token)).exp ?? 0);
    assert.equal(expiries.length, 2, "in one attempt");
    assert.ok((expiries[1] ?? 0) * 1000 > clock.now(), "with a token that is good");
  });
}
