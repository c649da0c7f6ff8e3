// The client against the real server.
import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import WebSocket from "ws";
import { connect, memoryStorage, textOf, type Conversation, type SentMessage, type Tidings, type TransportName } from "../../src/index.js";
import { Proxy, RealServer, until } from "../support/real-server.js";

// Set by the file that runs the same tests over the other transport.
const transport = (process.env["TIDINGS_TRANSPORT"] ?? "websocket") as TransportName;
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

async function open(user: string, more: { readonly push?: boolean; readonly compact?: boolean; readonly deviceId?: string } = {}): Promise<Tidings> {
  const client = await connect({ url: proxy.url, token: async () => server.token(user), WebSocket, transports: [transport], ...more });
  clients.push(client);
  return client;
}

const texts = (conversation: Conversation): readonly (string | undefined)[] =>
  conversation.messages.get().items.map((item) => (item.is === "message" ? `${item.state === "sent" ? "" : `(${item.state}) `}${textOf(item)}` : item.kind));
const shows = (conversation: Conversation, expected: readonly string[]): Promise<void> =>
  until(conversation.messages, () => JSON.stringify(texts(conversation)) === JSON.stringify(expected));

test("two users chat; the list counts; reading clears", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? ""), await open(ben ?? "")];
  assert.equal(hers.user, ada);
  const [toBen, toAda] = [hers.direct(ben ?? ""), his.direct(ada ?? "")];
  toAda.messages.subscribe(() => undefined);
  const receipt = await toBen.send({ text: "hello" });
  assert.equal(receipt.seq, 1);
  await shows(toAda, ["hello"]);
  await until(his.conversations, () => his.conversations.get().unread === 1);
  await toAda.markRead();
  await until(his.conversations, () => his.conversations.get().unread === 0);
  await toAda.send({ text: "hi" });
  await toBen.messages.load();
  await shows(toBen, ["hello", "hi"]);
  await until(hers.conversations, () => hers.conversations.get().items[0]?.unread === 1);
});

test("older pages are loaded until the beginning", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  for (let n = 1; n <= 130; n++) await server.api("POST", "/v1/messages", { from: ben, to: ada, body: { text: String(n) } });
  const chat = (await open(ada ?? "")).direct(ben ?? "");
  await chat.messages.load();
  await shows(chat, Array.from({ length: 50 }, (_, n) => String(81 + n)));
  while (chat.messages.get().hasOlder) await chat.messages.loadOlder();
  await shows(chat, Array.from({ length: 130 }, (_, n) => String(1 + n)));
});

test("connections are cut at any time: everything comes once and in order, and what is written meanwhile is sent once", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? ""), await open(ben ?? "")];
  const heard: number[] = [];
  his.on("message", ({ seq }) => heard.push(seq));
  const [toBen, toAda] = [hers.direct(ben ?? ""), his.direct(ada ?? "")];
  toAda.messages.subscribe(() => undefined);
  const sends: Promise<unknown>[] = [];
  const written: string[] = [];
  for (let round = 0; round < 6; round++) {
    for (let n = 0; n < 20; n++) {
      written.push(`${round}.${n}`);
      sends.push(toBen.send({ text: `${round}.${n}` }));
      if (n === round * 3) proxy.cut();
    }
    for (const client of [hers, his]) client.reconnect(); // the test does not wait as long as a client does
    await Promise.race(sends.slice(-1));
  }
  await Promise.all(sends);
  await until(toAda.messages, () => texts(toAda).length >= 50 && texts(toAda).at(-1) === written.at(-1));
  while (toAda.messages.get().hasOlder) await toAda.messages.loadOlder();
  assert.deepEqual(texts(toAda), written);
  assert.deepEqual(heard, written.map((_, n) => n + 1));
});

test("the server is killed and started again; the client goes on where it was", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const hers = await open(ada ?? "");
  const chat = hers.direct(ben ?? "");
  await chat.send({ text: "before" });
  await server.end("SIGKILL");
  await until(hers.status, () => hers.status.get().state === "away");
  const sent = chat.send({ text: "meanwhile" });
  assert.deepEqual(texts(chat).at(-1), "(pending) meanwhile");
  await server.start();
  hers.reconnect();
  assert.equal((await sent).seq, 2);
  await chat.messages.load();
  await shows(chat, ["before", "meanwhile"]);
});

test("a stopping server says when to come back, and the client comes back", async () => {
  const [ada] = await server.users("ada");
  const hers = await open(ada ?? "");
  await server.end("SIGTERM");
  await until(hers.status, () => hers.status.get().state === "away");
  await server.start();
  await until(hers.status, () => hers.status.get().state === "online");
});

test("groups: made, renamed, joined and left, as the list and the timeline tell", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? ""), await open(ben ?? "")];
  const group = await hers.createGroup({ name: "House", members: [ben ?? ""] });
  await until(hers.conversations, () => hers.conversations.get().items.some(({ id }) => id === group.id));
  await group.send({ text: "welcome" });
  const theirs = his.conversation(group.id);
  await until(his.conversations, () => his.conversations.get().items.some(({ id, unread }) => id === group.id && unread === 1));
  await theirs.messages.load();
  assert.ok(texts(theirs).includes("welcome"));
  assert.deepEqual((await group.members()).members.map(({ user }) => user).sort(), [ada, ben].sort());
  const left = new Promise<boolean>((resolve) => his.on("membership", ({ member }) => resolve(member)));
  await theirs.leave();
  assert.equal(await left, false);
  await until(his.conversations, () => !his.conversations.get().items.some(({ id }) => id === group.id));
  await assert.rejects(theirs.send({ text: "still here?" }), (error: { code?: string }) => error.code === "not_a_member");
});

test("a conversation that the app server deletes is gone for its members", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? ""), await open(ben ?? "")];
  const group = await hers.createGroup({ members: [ben ?? ""] });
  await group.send({ text: "soon gone" });
  await until(his.conversations, () => his.conversations.get().items.some(({ id, unread }) => id === group.id && unread === 1));
  const left = new Promise<boolean>((resolve) => his.on("membership", ({ member }) => resolve(member)));
  await server.api("DELETE", `/v1/conversations/${encodeURIComponent(group.id)}`);
  assert.equal(await left, false);
  for (const one of [hers, his]) await until(one.conversations, () => !one.conversations.get().items.some(({ id }) => id === group.id));
  await assert.rejects(group.send({ text: "still here?" }), (error: { code?: string }) => error.code === "conversation_deleted");
});

test("owners mute, ban, invite, admit and hand over", async () => {
  const [ada, ben, cleo] = await server.users("ada", "ben", "cleo");
  const [hers, his, third] = [await open(ada ?? ""), await open(ben ?? ""), await open(cleo ?? "")];
  const group = await hers.createGroup({ members: [ben ?? ""] });
  const theirs = his.conversation(group.id);
  await group.restrict(ben ?? "", "mute", { until: Date.now() + 3_600_000, reason: "loud" });
  await assert.rejects(theirs.send({ text: "psst" }), { code: "muted" });
  assert.deepEqual((await group.restrictions({ kind: "mute" })).restrictions.map(({ user, by, reason }) => [user, by, reason]), [[ben, ada, "loud"]]);
  assert.equal((await theirs.members()).members.find(({ user }) => user === ben)?.muted, true);
  await group.liftRestriction(ben ?? "", "mute");
  await theirs.send({ text: "thanks" });

  const { id, token } = await group.createInvite({ usesMax: 1 });
  assert.equal((await third.joinByInvite(token)).id, group.id);
  assert.deepEqual((await group.invites()).map(({ uses }) => uses), []);
  await assert.rejects(group.revokeInvite("0"), { code: "not_found" });
  assert.equal(typeof id, "string");
  await group.restrict(cleo ?? "", "ban");
  await assert.rejects(group.addMembers([cleo ?? ""]), { code: "banned" });
  await group.liftRestriction(cleo ?? "", "ban");
  await assert.rejects(third.conversation(group.id).askToJoin("me?"), { code: "forbidden" });

  await group.handOver(ben ?? "");
  assert.deepEqual((await group.members()).members.map(({ user, role }) => [user, role]).sort(), [[ada, "admin"], [ben, "owner"]].sort());
});

test("edits and recalls change the message everywhere, and history says the same", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? ""), await open(ben ?? "")];
  const [toBen, toAda] = [hers.direct(ben ?? ""), his.direct(ada ?? "")];
  toAda.messages.subscribe(() => undefined);
  const first = await toBen.send({ text: "frist" });
  const second = await toBen.send({ text: "wrong person" });
  await shows(toAda, ["frist", "wrong person"]);
  await toBen.edit(first.seq, { text: "first" }, { ifVersion: 1 });
  await toBen.recall(second.seq);
  const isChanged = (chat: Conversation): boolean => {
    const [one, two] = chat.messages.get().items;
    return one?.is === "message" && one.state === "sent" && one.version === 2 && textOf(one) === "first" && two?.is === "message" && two.state === "sent" && two.recalled !== undefined;
  };
  await until(toAda.messages, () => isChanged(toAda));
  await toBen.messages.load();
  assert.ok(isChanged(toBen));
  await assert.rejects(toBen.edit(first.seq, { text: "again" }, { ifVersion: 1 }), { code: "version_conflict" });
  await assert.rejects(toAda.edit(first.seq, { text: "not mine" }), { code: "forbidden" });
  const fresh = (await open(ben ?? "", { deviceId: "another" })).direct(ada ?? "");
  await fresh.messages.load();
  assert.ok(isChanged(fresh));
});

test("typing, presence and mutes", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? ""), await open(ben ?? "")];
  const [toBen, toAda] = [hers.direct(ben ?? ""), his.direct(ada ?? "")];
  await toBen.send({ text: "hello" });
  toAda.typing();
  toAda.typing();
  await until(toBen.typingUsers, () => toBen.typingUsers.get().includes(ben ?? ""));
  await toAda.send({ text: "typed" });
  await until(toBen.typingUsers, () => toBen.typingUsers.get().length === 0);
  const end = hers.presence.watch([ben ?? ""]);
  const state = hers.presence.of(ben ?? "");
  await until(state, () => state.get()?.online === true);
  end();
  await toBen.mute();
  await until(toBen.view, () => toBen.view.get()?.muted === true);
  await toBen.unmute();
  await until(toBen.view, () => toBen.view.get()?.muted === false);
});

test("a client of compact entries has what another one has", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? "", { compact: true }), await open(ben ?? "")];
  const group = await hers.createGroup({ name: "Busy", members: [ben ?? ""] });
  const both = [group, his.conversation(group.id)];
  for (const chat of both) await chat.messages.load();
  const messages = Array.from({ length: 200 }, (_, n) => ({
    conversation: group.id, from: n % 3 ? ada : ben, body: { text: String(n) }, ...(n % 7 === 0 && { type: "note" }), ...(n % 5 === 0 && n > 0 && { reply_to: 1 }),
  }));
  await server.api("POST", "/v1/messages/batch", { messages });
  const [first, second] = await Promise.all(both.map(async (chat) => {
    await until(chat.messages, () => texts(chat).at(-1) === "199");
    return chat.messages.get().items;
  }));
  assert.ok((first?.length ?? 0) >= 200);
  assert.deepEqual(first, second);
});

test("pushes are handed on once and acknowledged", async () => {
  const [ada] = await server.users("ada");
  const hers = await open(ada ?? "", { push: true, deviceId: "phone-1" });
  const pushed = new Promise<unknown>((resolve) => hers.on("push", ({ type, body }) => resolve({ type, body })));
  const { push } = (await server.api("POST", "/v1/push", { to: { users: [ada] }, type: "offer", body: { id: 7 } })) as { push: number };
  assert.deepEqual(await pushed, { type: "offer", body: { id: 7 } });
  for (let state = ""; state !== "acknowledged"; ) {
    const { devices } = (await server.api("GET", `/v1/push/${push}/devices`)) as { devices: readonly { state: string }[] };
    state = devices[0]?.state ?? "";
  }
});

test("popups: asked for, reported, triggered", async () => {
  const [ada] = await server.users("ada");
  const id = `popup-${ada}`;
  await server.api("PUT", `/v1/popups/${id}`, {
    state: "live", placements: [id], audience: { any: [] }, test_users: [ada], variants: [{ id: "a", content: { title: "Hello" } }],
  });
  const hers = await open(ada ?? "");
  const { show } = await hers.popups.ask({ placement: id });
  assert.equal(show?.content.title, "Hello");
  await hers.popups.report([{ id: "e1", decision: show?.decision ?? "", type: "impression" }]);
  assert.equal((await hers.popups.ask({ placement: "nowhere" })).show, undefined);
  const triggered = new Promise<string>((resolve) => hers.on("popup", ({ popup }) => resolve(popup)));
  await server.api("POST", "/v1/popups/trigger", { user: ada, placement: id });
  assert.equal(await triggered, id);
});

test("a bad token is refused, and connect says why", async () => {
  await assert.rejects(connect({ url: proxy.url, token: async () => "no.token.atall", WebSocket, transports: [transport] }), { code: "unauthorized" });
  const [ada] = await server.users("ada");
  const forged = `${server.token(ada ?? "").split(".").slice(0, 2).join(".")}.AAAA`;
  await assert.rejects(connect({ url: proxy.url, token: async () => forged, WebSocket, transports: [transport] }), { code: "unauthorized" });
  await assert.rejects(connect({ url: proxy.url, token: async () => null, WebSocket }), { code: "signed_out" });
});

test("a second session of the device ends the first, which stays away until it is asked to come back", async () => {
  const [ada] = await server.users("ada");
  const first = await open(ada ?? "", { deviceId: "d" });
  const second = await open(ada ?? "", { deviceId: "d" });
  await until(first.status, () => first.status.get().state === "ended");
  const status = first.status.get();
  assert.equal(status.state === "ended" && status.error.code, "replaced");
  first.reconnect();
  await until(first.status, () => first.status.get().state === "online");
  await until(second.status, () => second.status.get().state === "ended");
});

test("reactions, answers, pins and mentions", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const [hers, his] = [await open(ada ?? ""), await open(ben ?? "")];
  const [toBen, toAda] = [hers.direct(ben ?? ""), his.direct(ada ?? "")];
  toAda.messages.subscribe(() => undefined);
  const first = await toBen.send({ text: "lunch?" });
  const sent = (chat: Conversation, seq: number) =>
    chat.messages.get().items.find((item) => item.is === "message" && item.state === "sent" && item.seq === seq) as SentMessage | undefined;
  await until(toAda.messages, () => sent(toAda, first.seq) !== undefined);
  await toAda.react(first.seq, "👍");
  await toBen.react(first.seq, "👍");
  await until(toAda.messages, () => sent(toAda, first.seq)?.reactions[0]?.count === 2);
  assert.deepEqual((await toBen.reactions(first.seq)).reactions.map(({ user, key }) => [user, key]).sort(), [[ada, "👍"], [ben, "👍"]].sort());
  await toAda.unreact(first.seq, "👍");
  await until(toAda.messages, () => sent(toAda, first.seq)?.reactions[0]?.count === 1);

  const answer = await toAda.send({ text: "yes" }, { replyTo: first.seq, mentions: [ada ?? ""] });
  await until(toAda.messages, () => JSON.stringify(sent(toAda, answer.seq)?.replyTo?.body) === '{"text":"lunch?"}');
  assert.deepEqual((await toBen.replies(first.seq)).entries.map(({ seq }) => seq), [answer.seq]);
  assert.deepEqual((await hers.mentions()).mentions.map(({ seq }) => seq), [answer.seq]);

  await toBen.pin(answer.seq);
  await until(toAda.messages, () => sent(toAda, answer.seq)?.pinned?.by === ada);
  assert.deepEqual((await toAda.pins()).map(({ seq }) => seq), [answer.seq]);
  await toBen.unpin(answer.seq);
  await until(toAda.messages, () => sent(toAda, answer.seq)?.pinned === undefined);

  await toBen.recall(first.seq);
  await until(toAda.messages, () => sent(toAda, answer.seq)?.replyTo?.recalled === true);
  assert.equal(sent(toAda, answer.seq)?.replyTo?.body, undefined, "the preview is gone");
});

test("receipts: what a client has stored is delivered, what its user has read is read", async () => {
  const [ada, ben] = await server.users("ada", "ben");
  const hers = await open(ada ?? "");
  const his = await connect({ url: proxy.url, token: async () => server.token(ben ?? ""), WebSocket, transports: [transport], storage: { ...memoryStorage(), isDurable: true } });
  clients.push(his);
  const toBen = hers.direct(ben ?? "");
  const { seq } = await toBen.send({ text: "hello" });
  const mark = () => toBen.receipts.get().marks.get(ben ?? "");
  await until(toBen.receipts, () => mark()?.delivered === seq && mark()?.read === 0);
  await his.direct(ada ?? "").markRead(seq);
  await until(toBen.receipts, () => mark()?.read === seq);
  assert.deepEqual(await toBen.messageReceipts(seq), { delivered: 1, read: 1, members: 1, receipts: [{ user: ben, delivered: true, read: true }] });
  const later = await open(ada ?? "", { deviceId: "later" });
  await later.direct(ben ?? "").messageReceipts(seq);
  assert.deepEqual(later.direct(ben ?? "").receipts.get().marks.get(ben ?? ""), { delivered: seq, read: seq });
});

test("agents answer for an account: their list, assignment, and who of them wrote", async () => {
  const [news, ben, cleo, dan] = (await server.users("news", "ben", "cleo", "dan")) as [string, string, string, string];
  await server.api("POST", "/v1/conversations", { id: news, kind: "official", name: "News", members: [ben] });
  await server.api("PATCH", `/v1/conversations/${news}/desk`, { add: [cleo, dan] });
  const [bens, cleos, dans] = [await open(ben), await open(cleo), await open(dan)];
  const assigned = new Promise<unknown>((resolve) => dans.on("assignment", ({ conversation, assignedTo, by }) => resolve({ conversation, assignedTo, by })));

  const asked = await bens.direct(news).send({ text: "When are you open?" });
  const account = cleos.account(news);
  const { conversations } = await account.conversations({ assignedTo: "@nobody", filter: "unread" });
  assert.deepEqual(conversations.map(({ id, unread, account: of }) => [id, unread, of]), [[asked.conversation, 1, news]]);
  assert.deepEqual(cleos.conversations.get().items, [], "the agent's own list is another one");

  const [hers, his] = [cleos.conversation(asked.conversation), dans.conversation(asked.conversation)];
  await his.messages.load();
  await hers.assign(cleo, { ifAssignedTo: null });
  await assert.rejects(his.assign(dan, { ifAssignedTo: null }), { code: "assignment_conflict" });
  assert.deepEqual(await assigned, { conversation: asked.conversation, assignedTo: cleo, by: cleo });
  assert.deepEqual((await account.conversations({ assignedTo: "@me" })).conversations.map(({ id, assigned_to }) => [id, assigned_to]), [[asked.conversation, cleo]]);

  hers.messages.subscribe(() => undefined);
  bens.direct(news).messages.subscribe(() => undefined);
  await hers.send({ text: "From nine to five" });
  const said = (chat: Conversation) => chat.messages.get().items.flatMap((item) => (item.is === "message" ? [[item.state, item.from, item.agent, textOf(item)]] : []));
  const whole = [["sent", ben, undefined, "When are you open?"], ["sent", news, cleo, "From nine to five"]];
  for (const chat of [hers, his]) await until(chat.messages, () => JSON.stringify(said(chat)) === JSON.stringify(whole));
  const shown = [whole[0], ["sent", news, undefined, "From nine to five"]];
  await until(bens.direct(news).messages, () => JSON.stringify(said(bens.direct(news))) === JSON.stringify(shown));

  await assert.rejects(bens.account(news).conversations(), { code: "forbidden" });
  await assert.rejects(bens.direct(news).assign(cleo), { code: "forbidden" });
});
