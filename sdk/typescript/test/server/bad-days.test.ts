// Days on which something goes wrong, against the real server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import WebSocket from "ws";
import { connect, textOf, type Conversation, type Tidings, type TransportName } from "../../src/index.js";
import { Proxy, RealServer, realNow, until } from "../support/real-server.js";

const DAY_MS = 86_400_000;
let server: RealServer;
let proxy: Proxy;
const clients: Tidings[] = [];

before(async () => {
  server = await new RealServer().start();
  proxy = await new Proxy(() => server.address).start();
});

after(async () => {
  await Promise.all(clients.map((client) => client.close()));
  proxy.end();
  await server.remove();
});

async function open(user: string, more: { readonly token?: () => Promise<string>; readonly transports?: readonly TransportName[] } = {}): Promise<Tidings> {
  const client = await connect({ url: proxy.url, token: async () => server.token(user), WebSocket, ...more });
  clients.push(client);
  return client;
}

const texts = (chat: Conversation): readonly (string | undefined)[] =>
  chat.messages.get().items.flatMap((item) => (item.is === "message" ? [`${item.state === "sent" ? "" : `(${item.state}) `}${textOf(item)}`] : []));
const shows = (chat: Conversation, expected: readonly string[]): Promise<void> =>
  until(chat.messages, () => JSON.stringify(texts(chat)) === JSON.stringify(expected));

for (const transport of ["websocket", "event-stream"] as const) {
  test(`${transport}: a token that expired while the client was away is replaced, and what was written is sent once`, async () => {
    const [ada, ben] = (await server.users("ada", "ben")) as [string, string];
    // The app hands out the token that it had kept, until it is asked again.
    const kept = [server.token(ada), server.token(ada, -60)];
    let asked = 0;
    const hers = await open(ada, { transports: [transport], token: async () => kept[asked++] ?? server.token(ada) });
    const [toBen, toAda] = [hers.direct(ben), (await open(ben)).direct(ada)];
    toAda.messages.subscribe(() => undefined);
    proxy.isBlocked = true;
    proxy.cut();
    await until(hers.status, () => hers.status.get().state === "away");
    const sent = toBen.send({ text: "written offline" });
    proxy.isBlocked = false;
    hers.reconnect();
    await sent;
    await shows(toAda, ["written offline"]);
    assert.equal(hers.status.get().state, "online");
    assert.ok(asked >= 3, `the provider was asked ${asked} times`);
  });
}

test("a store that was restored from a backup: what it lacks is gone, and what is written from then on comes", async () => {
  const restored = await new RealServer().start();
  const between = await new Proxy(() => restored.address).start();
  const [ada, ben] = (await restored.users("ada", "ben")) as [string, string];
  const hers = await connect({ url: between.url, token: async () => restored.token(ada), WebSocket });
  try {
    const chat = hers.direct(ben);
    chat.messages.subscribe(() => undefined);
    const say = (text: string): Promise<unknown> => restored.api("POST", "/v1/messages", { from: ben, to: ada, body: { text } });
    await say("before");
    await shows(chat, ["before"]);
    await restored.end("SIGTERM");
    restored.backup();
    await restored.start();
    await say("lost");
    await shows(chat, ["before", "lost"]);
    await until(hers.conversations, () => hers.conversations.get().unread === 2);

    let resets = 0;
    hers.on("reset", () => (resets += 1));
    await restored.end("SIGKILL");
    restored.restore();
    await restored.start();
    hers.reconnect();
    await shows(chat, ["before"]);
    await until(hers.conversations, () => hers.conversations.get().unread === 1);
    assert.equal(resets, 1);
    await say("after");
    await chat.send({ text: "and mine" });
    await shows(chat, ["before", "after", "and mine"]);
    // The cursor is the restored store's from here on.
    between.cut();
    hers.reconnect();
    await say("later");
    await shows(chat, ["before", "after", "and mine", "later"]);
    assert.equal(resets, 1);
  } finally {
    await hers.close();
    between.end();
    await restored.remove();
  }
});

for (const [name, offset] of [["ahead", DAY_MS], ["behind", -DAY_MS]] as const) {
  test(`a clock that is a day ${name}`, async () => {
    const [ada, ben] = (await server.users("ada", "ben")) as [string, string];
    Date.now = () => realNow() + offset;
    try {
      let asked = 0;
      const token = async (): Promise<string> => {
        asked += 1;
        return server.token(ada, 600);
      };
      const hers = await open(ada, { token });
      const [toBen, toAda] = [hers.direct(ben), (await open(ben)).direct(ada)];
      for (const chat of [toBen, toAda]) chat.messages.subscribe(() => undefined);
      const said: string[] = [];
      await toBen.send({ text: "first" });
      await toBen.mute(); // over HTTP
      said.push("first");
      for (let round = 0; round < 3; round++) {
        for (const chat of [toBen, toAda]) {
          said.push(`${round} ${chat === toBen ? "hers" : "his"}`);
          await chat.send({ text: said.at(-1) ?? "" });
        }
        proxy.cut();
        for (const client of clients.slice(-2)) client.reconnect();
      }
      for (const chat of [toBen, toAda]) await shows(chat, said);
      for (const item of toBen.messages.get().items) assert.ok(Math.abs(item.at - realNow()) < DAY_MS / 2, "times are the server's");
      assert.equal(hers.status.get().state, "online");
      assert.ok(asked <= 10, `a token was fetched ${asked} times for four connections`);
    } finally {
      Date.now = realNow;
    }
  });
}
