// Components over the real server.
import { textOf, type Conversation, type MessagesSnapshot, type Tidings } from "@tidings/client";
import assert from "node:assert/strict";
import { after, afterEach, before, test } from "node:test";
import { StrictMode, useEffect, useState, type ReactNode } from "react";
import {
  TidingsProvider, useConversation, useConversations, useConversationView, useDirect, useMentions, usePresence, useReceipts, useStatus, useTidings,
  useTidingsEvent, useTimeline, useTyping, useUnread,
} from "../../src/index.js";
import { assertNoComplaints, Screen } from "../support/screen.js";
import { RealServer, type Server } from "../support/server.js";
import { open } from "../support/session.js";

let server: Server;
const clients: Tidings[] = [];
const screens: Screen[] = [];

before(async () => {
  server = await new RealServer().start();
});
afterEach(async () => {
  for (const screen of screens.splice(0)) screen.unmount();
  for (const client of clients.splice(0)) await client.close();
  assertNoComplaints();
});
after(() => server.remove());

async function signIn(user: string): Promise<Tidings> {
  const client = await open(server, user);
  clients.push(client);
  return client;
}

function show(tree: ReactNode): Screen {
  const screen = new Screen();
  screens.push(screen);
  screen.render(tree);
  return screen;
}

/** Two users and a group of theirs. */
async function people(): Promise<{ readonly ada: string; readonly ben: string; readonly group: string }> {
  const [ada = "", ben = ""] = await server.users("ada", "ben");
  const { id } = (await server.api("POST", "/v1/conversations", { kind: "group", name: "The house", owner: ada, members: [ben], receipts: "members" })) as { id: string };
  return { ada, ben, group: id };
}

const say = (from: string, conversation: string, text: string, more = {}): Promise<unknown> =>
  server.api("POST", "/v1/messages", { from, conversation, body: { text }, ...more });

function Timeline({ of, onRender }: { readonly of: Conversation | string; readonly onRender?: (snapshot: MessagesSnapshot) => void }) {
  const snapshot = useTimeline(of);
  onRender?.(snapshot);
  return <ol className={snapshot.state}>{snapshot.items.map((item) => item.is === "message" && <li className="message" key={item.key}>{textOf(item)} [{item.state}]</li>)}</ol>;
}

test("the list, its counts and a timeline follow what comes, and a send is pending, then sent", async () => {
  const { ada, ben, group } = await people();
  function List() {
    const { items } = useConversations();
    return <ul>{items.map(({ id, name, unread }) => <li className="line" key={id}>{name}: {unread}</li>)}</ul>;
  }
  function Badge() {
    return <b className="badge">{useUnread()} unread, {useMentions()} mentions, {useStatus().state}</b>;
  }
  const states: string[] = [];
  function Chat() {
    const chat = useConversation(group);
    const view = useConversationView(chat);
    return (
      <>
        <i className="read">{view?.read_seq}</i>
        <Timeline of={chat} onRender={({ items }) => states.push(...items.flatMap((item) => (item.is === "message" && textOf(item) === "hello" ? [item.state] : [])))} />
        <button className="send" onClick={() => void chat.send({ text: "hello" })}>Send</button>
        <button className="mark" onClick={() => chat.markRead().catch(() => undefined)}>Read</button>
      </>
    );
  }
  const screen = show(<StrictMode><TidingsProvider client={await signIn(ada)}><List /><Badge /><Chat /></TidingsProvider></StrictMode>);
  await screen.sees("The house: 0");
  await say(ben, group, "one");
  await say(ben, group, "two, @you", { mentions: [ada] });
  await screen.sees("one [sent]two, @you [sent]");
  await screen.sees("The house: 2");
  await screen.sees("2 unread, 1 mentions, online");
  await screen.click("send");
  await screen.sees("hello [sent]");
  assert.deepEqual([...new Set(states)], ["pending", "sent"]);
  await screen.click("mark");
  await screen.sees("0 unread, 0 mentions");
});

test("two components on one conversation show one snapshot, and a parent's renderings change none", async () => {
  const { ada, ben, group } = await people();
  const client = await signIn(ada);
  const shown = { left: [] as MessagesSnapshot[], right: [] as MessagesSnapshot[] };
  const handles = new Set<Conversation>();
  let renderAgain: (count: number) => void = () => undefined;
  function Both() {
    const [count, setCount] = useState(0);
    renderAgain = setCount;
    handles.add(useConversation(group));
    return (
      <>
        <b>{count}</b>
        <Timeline of={group} onRender={(snapshot) => shown.left.push(snapshot)} />
        <Timeline of={client.conversation(group)} onRender={(snapshot) => shown.right.push(snapshot)} />
      </>
    );
  }
  const screen = show(<TidingsProvider client={client}><Both /></TidingsProvider>);
  for (let n = 1; n <= 20; n++) await say(ben, group, `m${n}`);
  await screen.until("both show the last", () => screen.all("message").filter((text) => text === "m20 [sent]").length === 2);
  const [left, right] = [shown.left.at(-1), shown.right.at(-1)];
  assert.equal(left, right);
  for (let count = 1; count <= 50; count++) {
    renderAgain(count);
    await screen.sees(String(count));
  }
  assert.equal(shown.left.at(-1), left);
  assert.equal(handles.size, 1);
  // Once for each change and for each rendering of the parent, with room for the beginning: an endless loop makes thousands.
  assert.ok(shown.left.length <= 20 + 50 + 10, `${shown.left.length} renderings`);
});

test("a component that needs the count alone is not rendered again for what does not change it", async () => {
  const { ada, ben, group } = await people();
  const client = await signIn(ada);
  let renderings = 0;
  function Badge() {
    renderings += 1;
    return <b className="badge">{useUnread()}</b>;
  }
  // In the document, since only its changes are waited for.
  function ListState() {
    return <i className={useConversations().state} />;
  }
  const screen = show(<TidingsProvider client={client}><Badge /><ListState /><Timeline of={group} /></TidingsProvider>);
  await screen.until("the list and the timeline are there", () => screen.all("ready").length === 2);
  const before = renderings;
  for (let n = 1; n <= 5; n++) await say(ben, group, `quiet ${n}`, { silent: true });
  await screen.sees("quiet 5 [sent]");
  assert.equal(renderings, before);
  await say(ben, group, "loud");
  await screen.until("the badge says 1", () => screen.all("badge")[0] === "1");
  assert.ok(renderings <= before + 1, `${renderings - before} renderings`);
});

test("a component that goes while its messages load is not missed, and finds them when it is back", async () => {
  const { ada, ben, group } = await people();
  await say(ben, group, "before");
  const client = await signIn(ada);
  const screen = show(<TidingsProvider client={client}><Timeline of={group} /></TidingsProvider>);
  await screen.until("it is loading", () => screen.all("loading").length + screen.all("ready").length > 0);
  screen.render(<TidingsProvider client={client}><p>elsewhere</p></TidingsProvider>);
  await screen.sees("elsewhere");
  await say(ben, group, "meanwhile");
  screen.render(<StrictMode><TidingsProvider client={client}><Timeline of={group} /></TidingsProvider></StrictMode>);
  await screen.sees("before [sent]meanwhile [sent]");
});

test("typing, presence, receipts and events of the other user", async () => {
  const { ada, ben, group } = await people();
  const [client, other] = [await signIn(ada), await signIn(ben)];
  let heard = 0;
  function Other() {
    const typing = useTyping(group);
    const presence = usePresence(ben, group);
    const { marks } = useReceipts(group);
    const [event, setEvent] = useState("");
    useTidingsEvent("typing", ({ user }) => {
      heard += 1;
      setEvent(user);
    });
    return (
      <>
        <p className="typing">{typing.join()}</p>
        <p className="presence">{String(presence?.online)}</p>
        <p className="receipts">{marks.get(ben)?.read}</p>
        <p className="event">{event}</p>
      </>
    );
  }
  function Mine() {
    const chat = useConversation(group);
    useEffect(() => void chat.send({ text: "read this" }), [chat]);
    return null;
  }
  const screen = show(<StrictMode><TidingsProvider client={client}><Other /></TidingsProvider></StrictMode>);
  await screen.until("ben is online", () => screen.all("presence")[0] === "true");
  other.conversation(group).typing();
  await screen.until("ben types", () => screen.all("typing")[0] === ben && screen.all("event")[0] === ben);
  assert.equal(heard, 1);
  screen.render(<TidingsProvider client={client}><Other /><Mine /></TidingsProvider>);
  const arrived = new Promise<number>((resolve) => other.on("message", ({ seq }) => resolve(seq)));
  const seq = await arrived;
  await other.conversation(group).markRead(seq);
  await screen.until("ben has read it", () => screen.all("receipts")[0] === String(seq));
  await other.close();
  await screen.until("ben is away", () => screen.all("presence")[0] === "false");
});

test("the first message of a direct conversation", async () => {
  const { ada, ben } = await people();
  function First() {
    const chat = useDirect(ben);
    return <><Timeline of={chat} /><button className="send" onClick={() => void chat.send({ text: "first" })}>Send</button></>;
  }
  const screen = show(<TidingsProvider client={await signIn(ada)}><First /></TidingsProvider>);
  await screen.click("send");
  await screen.sees("first [sent]");
});

test("a hook outside of the provider says so", async () => {
  function Lost() {
    return <p>{useTidings().user}</p>;
  }
  class Guard extends (await import("react")).Component<{ readonly children: ReactNode }, { readonly said?: string }> {
    override state: { readonly said?: string } = {};
    static getDerivedStateFromError = (error: Error): { readonly said: string } => ({ said: error.message });
    override render(): ReactNode {
      return this.state.said ?? this.props.children;
    }
  }
  const screen = show(<Guard><Lost /></Guard>);
  await screen.sees("outside of a <TidingsProvider>");
});
