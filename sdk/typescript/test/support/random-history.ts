// A random history of one user's client on the real server, beside two others, an app server and the user's other device: what the client shows
// in the end is compared with the model. A seed gives the same history again, as far as the machine lets it.
import WebSocket from "ws";
import { connect, memoryStorage, type Conversation, type Tidings, type TransportName } from "../../src/index.js";
import { ConversationModel } from "./chat-model.js";
import { differences, type Compared } from "./compare.js";
import { Proxy, type RealServer } from "./real-server.js";

const STEPS = 50;
// Nothing here takes seconds, but the machine may be busy.
const PATIENCE_MS = Number(process.env["PATIENCE_MS"] ?? 30_000);
const KEYS = ["👍", "🎉"];
// What a change may be refused with when others were faster, or its user is no member.
const EXPECTED_REFUSALS = new Set(["not_a_member", "not_found", "forbidden", "message_recalled", "version_conflict"]);

interface Answer {
  readonly seq: number;
  readonly at: number;
  readonly version?: number;
  readonly duplicate?: boolean;
}

interface Room extends Compared {
  /** What is under way here, by what it changes: two changes of one thing at once have no known order. */
  readonly busy: Set<string>;
  underWay: number;
  readonly mayPin: boolean;
  readonly isGroup: boolean;
}

function randomOf(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (state + 0x6d2b79f5) >>> 0;
    let t = state;
    t = Math.imul(t ^ (t >>> 15), t | 1);
    t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  };
}

export class RandomHistory {
  readonly #server: RealServer;
  readonly #random: () => number;
  readonly #pending = new Set<Promise<void>>();
  readonly #wrong: string[] = [];
  readonly #log: string[] = [];
  readonly #ownSends: { readonly room: Room; readonly id: string; readonly text: string; readonly seq: number }[] = [];
  readonly #storage = memoryStorage();
  #open!: () => Promise<Tidings>;
  #proxy!: Proxy;
  #client!: Tidings;
  #rooms: readonly Room[] = [];
  #ada = "";
  #ben = "";
  #cleo = "";
  #count = 0;

  constructor(server: RealServer, seed: number) {
    this.#server = server;
    this.#random = randomOf(seed);
  }

  /** What differs in the end: nothing. */
  async run(transport: TransportName = "websocket"): Promise<readonly string[]> {
    await this.#begin(transport);
    try {
      const isOver = await inTime(this.#live().then(() => true), 4 * PATIENCE_MS);
      return isOver ? this.#wrong : [...this.#wrong, `it stands still after: ${this.#log.slice(-3).join("; ")}`];
    } finally {
      await this.#client.close().catch(() => undefined);
      this.#proxy.end();
    }
  }

  async #live(): Promise<void> {
    for (let step = 0; step < STEPS; step++) await this.#step();
    await this.#end();
  }

  get log(): readonly string[] {
    return this.#log;
  }

  async #begin(transport: TransportName): Promise<void> {
    const server = this.#server;
    [this.#ada, this.#ben, this.#cleo] = (await server.users("ada", "ben", "cleo")) as [string, string, string];
    this.#proxy = await new Proxy(() => server.address).start();
    const [ada, ben, cleo] = [this.#ada, this.#ben, this.#cleo];
    for (const [id, owner] of [[`g-${ada}`, ben], [`h-${ada}`, ada]]) {
      await server.api("POST", "/v1/conversations", { id, kind: "group", name: "House", receipts: "members", owner, members: [ada, ben, cleo].filter((user) => user !== owner) });
    }
    const storage = { ...this.#storage, close: () => Promise.resolve() };
    this.#open = () => connect({ url: this.#proxy.url, token: async () => server.token(ada), WebSocket, transports: [transport], storage, deviceId: "d" });
    this.#client = await this.#open();
    const room = (chat: Conversation, mayPin: boolean, isGroup: boolean): Room => ({ id: chat.id, chat, model: new ConversationModel(ada), busy: new Set(), underWay: 0, mayPin, isGroup });
    const client = this.#client;
    this.#rooms = [room(client.conversation(`g-${ada}`), false, true), room(client.conversation(`h-${ada}`), true, true), room(client.direct(ben), true, false)];
    this.#look();
    // A conversation without a message is another matter.
    for (const some of this.#rooms) await this.#othersSend(some, ben);
  }

  /** Somebody looks at some of the conversations. */
  #look(): void {
    for (const { chat } of this.#rooms) {
      if (this.#chance(0.75)) chat.messages.subscribe(() => undefined);
      chat.receipts.subscribe(() => undefined);
    }
  }

  /** The page is closed and opened again, on what it has stored. */
  async #reload(): Promise<void> {
    // Of two sessions of the device that begin at once either may end the other.
    if (this.#pending.size > 0 || this.#client.status.get().state !== "online") return;
    this.#log.push("reload");
    await this.#client.close();
    this.#client = await this.#open();
    for (const room of this.#rooms) room.chat = this.#client.conversation(room.id);
    this.#look();
  }

  #chance(probability: number): boolean {
    return this.#random() < probability;
  }

  #pick<T>(list: readonly T[]): T | undefined {
    return list[Math.floor(this.#random() * list.length)];
  }

  async #step(): Promise<void> {
    const room = this.#pick(this.#rooms) as Room;
    const deeds: readonly [number, () => Promise<void> | void][] = [
      [12, () => this.#ownSend(room)],
      [2, () => this.#sendAgain()],
      [8, () => this.#ownEdit(room)],
      [3, () => this.#ownRecall(room)],
      [5, () => this.#ownReaction(room)],
      [3, () => this.#ownPin(room)],
      [5, () => this.#ownRead(room)],
      [4, () => this.#ownPreference(room)],
      [12, () => this.#othersSend(room, this.#pick([this.#ben, this.#cleo, undefined]))],
      [8, () => this.#othersEdit(room)],
      [4, () => this.#othersRecall(room)],
      [4, () => this.#othersReaction(room)],
      [2, () => this.#othersPin(room)],
      [3, () => this.#otherDevice(room)],
      [4, () => this.#othersRead(room)],
      [2, () => this.#rename(room)],
      [6, () => this.#membership(room)],
      [5, () => this.#connection()],
      [3, () => this.#reload()],
      [2, () => void room.chat.messages.loadOlder(3).catch(() => undefined)],
    ];
    let left = this.#random() * deeds.reduce((sum, [weight]) => sum + weight, 0);
    for (const [weight, deed] of deeds) {
      left -= weight;
      if (left < 0) return deed();
    }
  }

  // The user's own deeds, by the client.

  /** Begins what the client does, and now and then waits for it. `what` is what it changes, if others may not change that meanwhile. */
  async #own<T>(room: Room, what: string | undefined, text: string, act: () => Promise<T>, done: (answer: T) => void): Promise<void> {
    if (what !== undefined && room.busy.has(what)) return;
    if (what !== undefined) room.busy.add(what);
    room.underWay += 1;
    this.#log.push(`${room.id} ada ${text}`);
    const settled = act().then(
      (answer) => {
        this.#log.push(`${room.id} ada ${text}: ${JSON.stringify(answer)}`);
        done(answer);
      },
      (error: { readonly code?: string }) => {
        this.#log.push(`${room.id} ada ${text}: ${error.code}`);
        if (!EXPECTED_REFUSALS.has(error.code ?? "")) this.#wrong.push(`${text} was refused: ${String(error)}`);
      },
    );
    const over = settled.then(() => {
      if (what !== undefined) room.busy.delete(what);
      room.underWay -= 1;
      this.#pending.delete(over);
    });
    this.#pending.add(over);
    if (!this.#proxy.isBlocked && this.#chance(0.6)) await over;
  }

  #ownSend(room: Room): Promise<void> {
    const text = `ada ${++this.#count}`;
    const mentions = this.#mentions(room);
    const silent = this.#chance(0.1);
    const replyTo = this.#chance(0.3) ? this.#pick(this.#readable(room)) : undefined;
    const clientMsgId = `m${this.#count}`;
    return this.#own(
      room, undefined, `sends ${text}${replyTo === undefined ? "" : ` to ${replyTo}`}`,
      () => room.chat.send({ text }, { mentions, silent, clientMsgId, ...(replyTo !== undefined && { replyTo }) }),
      ({ seq, at }) => {
        room.model.sent({ seq, at, from: this.#ada, body: { text }, mentions, silent, ...(replyTo !== undefined && { replyTo }) });
        if (mentions.length === 0 && !silent && replyTo === undefined) this.#ownSends.push({ room, id: clientMsgId, text, seq });
      },
    );
  }

  #sendAgain(): Promise<void> | void {
    const sent = this.#pick(this.#ownSends);
    if (!sent) return;
    const { room, id, text, seq } = sent;
    // An id is only known for as long as its message is the first result: not once the user was removed meanwhile.
    return this.#own(room, undefined, `sends ${text} again`, () => room.chat.send({ text }, { mentions: [], silent: false, clientMsgId: id }), (again) => {
      if (again.seq !== seq) this.#wrong.push(`${text} was sent twice: ${seq} and ${again.seq}`);
    });
  }

  #ownEdit(room: Room): Promise<void> | void {
    const seq = this.#pick(room.model.seqs.filter((seq) => room.model.sender(seq) === this.#ada));
    if (seq === undefined) return;
    const body = this.#chance(0.05) ? null : { text: `ada's edit ${++this.#count}` };
    const mentions = this.#mentions(room);
    return this.#own(room, undefined, `edits ${seq} to ${JSON.stringify(body)}`, () => room.chat.edit(seq, body, { mentions }), ({ at, version }) => {
      if (version === undefined) this.#wrong.push("an edit was answered without its version");
      else room.model.edited(seq, { at, by: this.#ada, version, body, mentions });
    });
  }

  #ownRecall(room: Room): Promise<void> | void {
    const seq = this.#pick(room.model.seqs.filter((seq) => room.model.sender(seq) === this.#ada));
    if (seq === undefined) return;
    return this.#own(room, undefined, `recalls ${seq}`, () => room.chat.recall(seq), ({ at, duplicate }) => {
      room.model.recalled(seq, { at, by: this.#ada }, duplicate === true);
    });
  }

  #ownReaction(room: Room): Promise<void> | void {
    const seq = this.#pick(this.#readable(room));
    const key = this.#pick(KEYS) as string;
    if (seq === undefined) return;
    const isGiven = this.#chance(0.7);
    const act = (): Promise<void> => (isGiven ? room.chat.react(seq, key) : room.chat.unreact(seq, key));
    return this.#own(room, `reaction ${seq} ${key}`, `${isGiven ? "reacts" : "takes back"} ${key} ${seq}`, act, () => room.model.reacted(seq, this.#ada, key, isGiven));
  }

  #ownPin(room: Room): Promise<void> | void {
    const seq = this.#pick(this.#readable(room));
    if (seq === undefined || !room.mayPin) return;
    const isPinned = this.#chance(0.7);
    const act = (): Promise<void> => (isPinned ? room.chat.pin(seq) : room.chat.unpin(seq));
    return this.#own(room, `pin ${seq}`, `${isPinned ? "pins" : "unpins"} ${seq}`, act, () => room.model.pinned(seq, isPinned ? this.#ada : undefined));
  }

  #ownRead(room: Room): Promise<void> | void {
    const seq = this.#pick(this.#readable(room));
    if (seq === undefined) return;
    return this.#own(room, "mark", `reads ${seq}`, () => room.chat.markRead(seq), () => room.model.hasRead(seq));
  }

  #ownPreference(room: Room): Promise<void> | void {
    const { model, chat } = room;
    const isOn = this.#chance(0.5);
    switch (this.#pick(["pinned", "archived", "hidden", "title", "marked", "clear"])) {
      case "pinned":
        return this.#own(room, "pinned", `pinned ${isOn}`, () => chat.setPreferences({ pinned: isOn }), () => void (model.isPinned = isOn));
      case "archived":
        return this.#own(room, "archived", `archived ${isOn}`, () => chat.setPreferences({ archived: isOn }), () => void (model.isArchived = isOn));
      case "title": {
        const title = isOn ? `mine ${++this.#count}` : null;
        return this.#own(room, "title", `title ${title}`, () => chat.setPreferences({ title }), () => void (model.title = title ?? undefined));
      }
      case "marked":
        return this.#own(room, "mark", `marked ${isOn}`, () => chat.setPreferences({ marked_unread: isOn }), () => void (model.isMarked = isOn));
      case "hidden":
        // What is sent meanwhile may bring it back.
        if (room.underWay > 0 || this.#proxy.isBlocked) return;
        return this.#own(room, "hidden", `hidden ${isOn}`, () => chat.setPreferences({ hidden: isOn }), () => model.hidden(isOn)).then(() => this.#settled());
      default: {
        const seq = this.#pick(model.seqs.slice(0, 4));
        if (seq === undefined || !this.#chance(0.3)) return;
        return this.#own(room, undefined, `clears to ${seq}`, () => chat.setPreferences({ clear_to_seq: seq }), () => void (model.cleared = Math.max(model.cleared, seq)));
      }
    }
  }

  // Others' deeds, one after another, by the app server.

  async #others<T>(room: Room, text: string, method: string, path: string, body: unknown, done: (answer: T) => void): Promise<void> {
    this.#log.push(`${room.id} ${text}`);
    try {
      const answer = (await this.#server.api(method, path, body)) as T;
      this.#log.push(`${room.id} ${text}: ${JSON.stringify(answer)}`);
      done(answer);
    } catch (error) {
      this.#log.push(`${room.id} ${text}: ${String(error)}`);
      if (![...EXPECTED_REFUSALS].some((code) => String(error).includes(code))) this.#wrong.push(`${text} was refused: ${String(error)}`);
    }
  }

  #path(room: Room, rest = ""): string {
    return `/v1/conversations/${encodeURIComponent(room.id)}${rest}`;
  }

  #othersSend(room: Room, from: string | undefined): Promise<void> {
    const by = room.isGroup ? from : this.#ben;
    const body = { text: `${by ?? "app"} ${++this.#count}` };
    const [mentions, silent] = [this.#mentions(room), this.#chance(0.1)];
    const replyTo = this.#chance(0.3) ? this.#pick(room.model.seqs) : undefined;
    const to = room.isGroup ? { conversation: room.id } : { to: this.#ada };
    const message = { ...to, ...(by !== undefined && { from: by }), body, mentions, silent, ...(replyTo !== undefined && { reply_to: replyTo }) };
    return this.#others<Answer>(room, `${by} sends ${body.text}`, "POST", "/v1/messages", message, ({ seq, at }) =>
      room.model.sent({ seq, at, body, mentions, silent, ...(by !== undefined && { from: by }), ...(replyTo !== undefined && { replyTo }) }),
    );
  }

  #othersEdit(room: Room): Promise<void> | void {
    const seq = this.#pick(room.model.seqs);
    if (seq === undefined) return;
    // In a direct conversation each user changes own messages only; the app server may change any.
    const from = this.#chance(0.5) ? room.model.sender(seq) : undefined;
    const by = from === this.#ada ? undefined : from;
    const body = { text: `${by ?? "app"}'s edit ${++this.#count}` };
    const mentions = this.#mentions(room);
    const edit = { ...(by !== undefined && { from: by }), body, mentions };
    return this.#others<Answer>(room, `${by ?? "the app"} edits ${seq}`, "PATCH", this.#path(room, `/messages/${seq}`), edit, ({ at, version }) =>
      room.model.edited(seq, { at, version: version ?? 0, body, mentions, ...(by !== undefined && { by }) }),
    );
  }

  #othersRecall(room: Room): Promise<void> | void {
    const seq = this.#pick(room.model.seqs);
    if (seq === undefined) return;
    const sender = room.model.sender(seq);
    const by = this.#chance(0.5) && sender !== this.#ada ? sender : undefined;
    const query = by === undefined ? "" : `?from=${by}`;
    return this.#others<Answer>(room, `${by ?? "the app"} recalls ${seq}`, "DELETE", this.#path(room, `/messages/${seq}${query}`), undefined, ({ at, duplicate }) => {
      // A repeated one: the user's own, whose answer may have been lost, was first.
      if (duplicate !== true) room.model.recalled(seq, { at, ...(by !== undefined && { by }) }, false);
    });
  }

  #othersReaction(room: Room): Promise<void> | void {
    const seq = this.#pick(room.model.seqs);
    const key = this.#pick(KEYS) as string;
    const user = room.isGroup ? (this.#pick([this.#ben, this.#cleo]) as string) : this.#ben;
    if (seq === undefined) return;
    const isGiven = this.#chance(0.7);
    const path = this.#path(room, `/messages/${seq}/reactions/${encodeURIComponent(key)}?user=${user}`);
    return this.#others(room, `${user} ${isGiven ? "reacts" : "takes back"} ${key} ${seq}`, isGiven ? "PUT" : "DELETE", path, undefined, () => room.model.reacted(seq, user, key, isGiven));
  }

  #othersPin(room: Room): Promise<void> | void {
    const seq = this.#pick(room.model.seqs);
    if (seq === undefined || room.busy.has(`pin ${seq}`)) return;
    const isPinned = this.#chance(0.7);
    const path = this.#path(room, `/messages/${seq}/pin?user=${this.#ben}`);
    return this.#others(room, `ben ${isPinned ? "pins" : "unpins"} ${seq}`, isPinned ? "PUT" : "DELETE", path, undefined, () => room.model.pinned(seq, isPinned ? this.#ben : undefined));
  }

  #otherDevice(room: Room): Promise<void> | void {
    const seq = this.#pick(this.#readable(room));
    if (seq === undefined || room.busy.has("mark")) return;
    const path = `/v1/users/${this.#ada}/conversations/${encodeURIComponent(room.id)}`;
    if (this.#chance(0.5)) return this.#others(room, `ada reads ${seq} elsewhere`, "PUT", `${path}/read`, { seq }, () => room.model.hasRead(seq));
    const muted = this.#chance(0.5);
    return this.#others(room, `ada mutes ${muted} elsewhere`, "PUT", `${path}/mute`, { muted }, () => void (room.model.isMuted = muted));
  }

  #othersRead(room: Room): Promise<void> | void {
    const seq = this.#pick(room.model.seqs);
    const user = room.isGroup ? (this.#pick([this.#ben, this.#cleo]) as string) : this.#ben;
    if (seq === undefined) return;
    const path = `/v1/users/${user}/conversations/${encodeURIComponent(room.id)}/read`;
    return this.#others(room, `${user} reads ${seq}`, "PUT", path, { seq }, () => room.model.otherHasRead(user, seq));
  }

  #rename(room: Room): Promise<void> | void {
    if (!room.isGroup) return;
    return this.#others(room, "is renamed", "PATCH", this.#path(room), { name: `House ${++this.#count}` }, () => void (room.model.notices += 1));
  }

  async #membership(room: Room): Promise<void> {
    const { model } = room;
    if (!room.isGroup || room.mayPin || room.underWay > 0) return; // the owner is not removed
    if (model.isMember) {
      await this.#others(room, "ada is removed", "POST", this.#path(room, "/members"), { remove: [this.#ada] }, () => {
        model.isMember = false;
        model.notices += 1;
      });
      return;
    }
    await this.#others(room, "ada is added", "POST", this.#path(room, "/members"), { add: [this.#ada] }, () => {
      model.isMember = true;
      model.notices += 1;
    });
    // What was there when the user joined is read.
    const page = (await this.#server.api("GET", this.#path(room, "/messages?limit=100"))) as { readonly entries: readonly { readonly seq: number; readonly kind: string }[] };
    model.read = Math.max(model.read, page.entries.filter(({ kind }) => kind === "member_change").at(-1)?.seq ?? 0);
  }

  #connection(): void {
    if (this.#proxy.isBlocked) {
      this.#log.push("connected");
      this.#proxy.isBlocked = false;
      this.#client.reconnect();
      return;
    }
    this.#proxy.isBlocked = this.#chance(0.5);
    this.#log.push(this.#proxy.isBlocked ? "disconnected" : "cut");
    this.#proxy.cut();
    if (this.#chance(0.5)) this.#client.reconnect();
  }

  #mentions(room: Room): readonly string[] {
    if (this.#chance(0.75)) return [];
    return [this.#pick(room.isGroup ? [this.#ada, this.#ben, this.#cleo] : [this.#ada, this.#ben]) as string];
  }

  #readable({ model }: Room): readonly number[] {
    return model.seqs.filter((seq) => seq > model.cleared);
  }

  // The end.

  async #settled(): Promise<void> {
    if (!(await inTime(Promise.all(this.#pending).then(() => true), PATIENCE_MS))) this.#wrong.push("what the client was asked for never settled");
  }

  async #end(): Promise<void> {
    this.#log.push("end");
    if (this.#proxy.isBlocked) this.#connection();
    this.#client.reconnect();
    await this.#settled();
    for (const { chat, model } of this.#rooms) if (model.isMember) await chat.messages.load().catch(() => undefined);
    const end = Date.now() + PATIENCE_MS;
    let found = differences(this.#client, this.#rooms);
    while (found.length > 0 && Date.now() < end) {
      await new Promise((resolve) => setTimeout(resolve, 25));
      found = differences(this.#client, this.#rooms);
    }
    this.#wrong.push(...found);
    // What the server counts together is what the models count, too.
    const { unread, mentions } = (await this.#server.api("GET", `/v1/users/${this.#ada}/unread`)) as { readonly unread: number; readonly mentions: number };
    const shown = this.#client.conversations.get();
    if (unread !== shown.unread || mentions !== shown.mentions) this.#wrong.push(`the total is ${unread}, ${mentions}; shown are ${shown.unread}, ${shown.mentions}`);
  }
}

/** Whether it is done in time. */
function inTime(done: Promise<true>, ms: number): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<false>((resolve) => (timer = setTimeout(() => resolve(false), ms)));
  return Promise.race([done, late]).finally(() => clearTimeout(timer));
}
