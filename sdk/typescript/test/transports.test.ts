// Which transport carries a session, and what an event stream makes of lost requests and odd chunks.
import assert from "node:assert/strict";
import { test } from "node:test";
import fc from "fast-check";
import { forgetfulMemory, TransportChoice, type ChoiceMemory } from "../src/session/choice.js";
import { eventStreams } from "../src/session/event-stream.js";
import { EventParser } from "../src/session/events.js";
import { Session } from "../src/session/session.js";
import { webSockets, type SocketLike, type WebSocketConstructor } from "../src/session/socket.js";
import { FakeLink, FakeServer, NO_FAULTS } from "./support/fake-server.js";
import { start, type Started } from "./support/start.js";
import { unsignedToken } from "./support/tokens.js";
import { VirtualClock } from "./support/virtual-clock.js";

type Network = "open" | "forbids" | "swallows" | "mutes";

interface Setup {
  readonly clock: VirtualClock;
  readonly server: FakeServer;
  readonly session: Session;
  readonly tried: string[];
  network: Network;
}

/** A session that may choose, in a network that does this to WebSockets. */
function begin(network: Network, options: { readonly memory?: ChoiceMemory; readonly fetch?: typeof fetch } = {}): Setup {
  const clock = new VirtualClock();
  const server = new FakeServer(clock);
  const tried: string[] = [];
  const setup = { clock, server, tried, network } as { -readonly [Name in keyof Setup]: Setup[Name] };
  const link = (): SocketLike => {
    tried.push("websocket");
    if (setup.network === "open") return new server.WebSocket("ws://fake/v1/connect");
    const blocked = new FakeLink("ws://fake", clock, () => NO_FAULTS);
    if (setup.network === "forbids") clock.setTimer(1, () => blocked.end(1006, ""));
    if (setup.network === "mutes") clock.setTimer(1, () => blocked.open());
    return blocked;
  };
  const WebSocket = function () {
    return link();
  } as unknown as WebSocketConstructor;
  const streamFetch: typeof fetch = (input, init) => {
    if (new URL(String(input)).pathname === "/v1/stream") tried.push("event-stream");
    return (options.fetch ?? server.fetch)(input, init);
  };
  const choice = new TransportChoice(webSockets(WebSocket, "ws://fake/v1/connect"), eventStreams({ base: "http://fake", fetch: streamFetch, clock }), clock, options.memory ?? forgetfulMemory());
  setup.session = new Session({
    openTransport: (handlers) => choice.open(handlers),
    token: () => Promise.resolve(unsignedToken({ sub: "ada" })),
    cursor: undefined,
    clock,
    identity: { deviceId: "d1", deviceKind: "web", appVersion: undefined, push: false, compact: false },
  });
  setup.session.start();
  return setup;
}

test("a WebSocket that works is used, and nothing else is tried", async () => {
  const { clock, session, tried } = begin("open");
  await clock.pass(100);
  assert.equal(session.isUp, true);
  assert.deepEqual(tried, ["websocket"]);
});

test("where WebSockets are forbidden, the same attempt goes on over an event stream, which comes first from then on", async () => {
  const { clock, server, session, tried } = begin("forbids");
  await clock.pass(100);
  assert.equal(session.isUp, true);
  assert.deepEqual(tried, ["websocket", "event-stream"]);
  assert.deepEqual(await answered(clock, session.request({ t: "ping" })), { t: "pong", ref: 1 });
  server.closeAll(1006);
  await clock.pass(2_000);
  assert.equal(session.isUp, true);
  assert.deepEqual(tried.slice(2), ["event-stream"]);
});

test("a network that swallows the handshake costs five seconds", async () => {
  const { clock, session, tried } = begin("swallows");
  await clock.pass(4_900);
  assert.equal(session.isUp, false);
  await clock.pass(200);
  assert.equal(session.isUp, true);
  assert.deepEqual(tried, ["websocket", "event-stream"]);
});

test("a proxy that lets the handshake pass and no frame is found out after two attempts", async () => {
  const { clock, session, tried } = begin("mutes");
  await clock.pass(60_000);
  assert.equal(session.isUp, true);
  assert.deepEqual(tried, ["websocket", "websocket", "event-stream"]);
});

test("after ten minutes the next connection tries a WebSocket again", async () => {
  const setup = begin("forbids");
  const { clock, server, tried } = setup;
  await clock.pass(100);
  setup.network = "open";
  await clock.pass(10 * 60_000);
  server.closeAll(1006);
  await clock.pass(2_000);
  assert.equal(setup.session.isUp, true);
  assert.deepEqual(tried, ["websocket", "event-stream", "websocket"]);
});

test("an event stream that comes first and fails gives way to a WebSocket in the same attempt", async () => {
  const memory = forgetfulMemory();
  const clock = new VirtualClock();
  memory.write(clock.now() + 60_000);
  const { session, tried, clock: own } = begin("open", { memory, fetch: () => Promise.reject(new TypeError("fetch failed")) });
  await own.pass(100);
  assert.equal(session.isUp, true);
  assert.deepEqual(tried, ["event-stream", "websocket"]);
  assert.equal(memory.read(), 0, "WebSockets come first again");
});

test("what was remembered by a clock that ran ahead is not believed", async () => {
  const memory = forgetfulMemory();
  memory.write(new VirtualClock().now() + 86_400_000);
  const { clock, tried } = begin("open", { memory });
  await clock.pass(100);
  assert.deepEqual(tried, ["websocket"]);
});

test("with no way at all the session waits and tries again", async () => {
  const { clock, server, session } = begin("forbids");
  server.isReachable = false;
  await clock.pass(5_000);
  assert.equal(session.status.get().state, "away");
  server.isReachable = true;
  await clock.pass(60_000);
  assert.equal(session.isUp, true);
});

const PROBLEMS: readonly (readonly [number, object | string, string, string])[] = [
  [403, { code: "forbidden", detail: "no", retry: false }, "away", "forbidden"],
  [404, { code: "not_found", detail: 'no user "ada"', retry: false }, "ended", "not_found"],
  [404, { code: "not_found", detail: 'no path "/v1/stream"', retry: false }, "away", "connection_lost"],
  [502, "<html>Bad gateway</html>", "away", "connection_lost"],
  [503, { code: "draining", detail: "later", retry: true }, "away", "draining"],
  [422, { code: "invalid_field", detail: "device_id: must not be empty", retry: false }, "ended", "invalid_field"],
];

for (const [status, body, state, code] of PROBLEMS) {
  test(`a stream that is refused with ${status} ${code} ends as a WebSocket would`, async () => {
    const headers = { "content-type": "application/problem+json" };
    const answer = (): Promise<Response> => Promise.resolve(new Response(typeof body === "string" ? body : JSON.stringify(body), { status, headers }));
    const { clock, session } = begin("forbids", { fetch: answer });
    await clock.pass(5);
    const now = session.status.get();
    assert.equal(now.state, state);
    assert.equal(now.state === "away" ? now.cause.code : now.state === "ended" ? now.error.code : "", code);
  });
}

test("frames whose request or answer was lost are sent again, and taken once", async () => {
  const { clock, server, client } = await start({ transport: "event-stream" });
  server.commit("g", { from: "ben", body: { n: 0 } });
  const faults = ["lost", "answer-lost", "pass"] as const;
  let next = 0;
  server.faults = { ...NO_FAULTS, post: () => faults[next++ % faults.length] ?? "pass" };
  const sent = ["a", "b", "c"].map((text) => client.conversation("g").send({ text }));
  await clock.pass(30_000);
  await Promise.all(sent);
  assert.deepEqual(server.truth.timeline("g").slice(1).map(({ body }) => (body as { text: string }).text), ["a", "b", "c"]);
  assert.equal(server.binds.length, 1, "in one session");
});

/** The server has ended the session, and the last event is on its way for so long; `undefined`: it never comes. */
async function endedUnheard(code: number, reason: string, eventMs: number | undefined): Promise<Started> {
  const started = await start({ transport: "event-stream" });
  const { clock, server, session } = started;
  const [link] = [...server.links];
  assert.ok(link);
  // Requests find no session any more, and the stream says nothing yet.
  link.readyState = 3;
  void session.request({ t: "ping" }).catch(() => undefined);
  if (eventMs !== undefined) clock.setTimer(eventMs, () => link.onclose?.({ code, reason } as never));
  return started;
}

test("a request that finds the session gone waits for the stream to say why", async () => {
  const { clock, server, session } = await endedUnheard(4003, "replaced", 1_000);
  await clock.pass(60_000);
  const status = session.status.get();
  assert.equal(status.state === "ended" && status.error.code, "replaced");
  assert.equal(server.binds.length, 1, "it stays away");
});

test("a session that is gone, and a stream that never says why: the client opens another stream", async () => {
  const { clock, server, session } = await endedUnheard(4003, "replaced", undefined);
  await clock.pass(2_500);
  assert.equal(server.binds.length, 1);
  await clock.pass(2_500);
  assert.equal(session.isUp, true);
  assert.equal(server.binds.length, 2);
});

for (const code of ["replaced", "kicked"] as const) {
  test(`a request that is answered with ${code} ends the session, whatever becomes of the stream`, async () => {
    const { clock, server, session } = await start({ transport: "event-stream" });
    server.goneCode = code;
    for (const link of server.links) link.readyState = 3;
    void session.request({ t: "ping" }).catch(() => undefined);
    await clock.pass(60_000);
    const status = session.status.get();
    assert.equal(status.state === "ended" && status.error.code, code);
    assert.equal(server.binds.length, 1);
  });
}

test("a stream that falls silent is given up, and the session resumes", async () => {
  const { clock, server, session } = await start({ transport: "event-stream" });
  for (const link of server.links) link.readyState = 3; // nothing more comes, and nobody says so
  await clock.pass(38_000 + 2_000);
  assert.equal(session.isUp, true);
  assert.equal(server.binds.length, 2);
});

test("events are read from chunks of any size", () => {
  const text = ': a comment\n\nid: 1.2\ndata: {"t":"one"}\n\nevent: open\r\ndata: {\r\ndata: }\r\n\r\nevent: nothing\n\ndata:é漢\rdata\r\r';
  const expected = [
    { name: "message", data: '{"t":"one"}' },
    { name: "open", data: "{\n}" },
    { name: "message", data: "é漢\n" },
  ];
  fc.assert(
    fc.property(fc.array(fc.nat(text.length)), (cuts) => {
      const parser = new EventParser();
      const ends = [...cuts.sort((a, b) => a - b), text.length];
      const events = ends.flatMap((end, index) => parser.take(text.slice(ends[index - 1] ?? 0, end)));
      assert.deepEqual([...events, ...parser.take("\n")], expected);
    }),
  );
});

async function answered<T>(clock: VirtualClock, promise: Promise<T>): Promise<T> {
  await clock.pass(100);
  return promise;
}
