// What a client of the WebSocket listener does, over whatever makes a socket: Node's `ws`, a browser.
//
// `connect(url)` resolves to a link: `send(text)`, `receive()` (rejects with {code, reason} at the end), `cut()`, and
// `close(code, reason)`, which resolves to the other side's code. It runs in a browser as it is: no module is imported.

export const BODY_BYTES_MAX = 64 * 1024;
const WINDOW = 64;

/** What a link's receiver needs: texts that wait, and readers that wait. */
export class Inbox {
  texts = [];
  readers = [];
  ended = null;

  put(text) {
    const reader = this.readers.shift();
    if (reader) reader.resolve(text);
    else this.texts.push(text);
  }

  end(code, reason) {
    this.ended = Object.assign(new Error(`closed with ${code} ${reason}`), { code, reason });
    for (const reader of this.readers.splice(0)) reader.reject(this.ended);
  }

  take() {
    if (this.texts.length) return Promise.resolve(this.texts.shift());
    if (this.ended) return Promise.reject(this.ended);
    return new Promise((resolve, reject) => this.readers.push({ resolve, reject }));
  }
}

export function assert(holds, why) {
  if (!holds) throw new Error(typeof why === "string" ? why : JSON.stringify(why));
}

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

export function letters(length) {
  const alphabet = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  let text = "";
  while (text.length < length) text += alphabet[Math.floor(Math.random() * alphabet.length)];
  return text;
}

export class Session {
  entries = [];
  refs = 0;

  constructor(link) {
    this.link = link;
  }

  static async bind(connect, url, token, fields = {}) {
    const session = new Session(await connect(url));
    session.tell({ t: "bind", token, device_id: "phone", ...fields });
    session.bound = await session.next();
    assert(session.bound.t === "bound", session.bound);
    session.cursor = session.bound.cursor;
    return session;
  }

  tell(frame) {
    this.link.send(JSON.stringify(frame));
  }

  async next() {
    const frame = JSON.parse(await this.link.receive());
    if (frame.t === "messages") {
      this.cursor = frame.cursor;
      this.entries.push(...frame.entries);
    }
    return frame;
  }

  async ask(frame) {
    const ref = ++this.refs;
    this.tell({ ref, ...frame });
    for (;;) {
      const answer = await this.next();
      if (answer.ref === ref) return answer;
      const result = answer.t === "sent" && answer.results.find((result) => result.ref === ref);
      if (result) return result;
    }
  }

  async send(to, body) {
    const client_msg_id = letters(16);
    for (;;) {
      const answer = await this.ask({ t: "send", to, client_msg_id, body });
      if (answer.t !== "error" || !answer.retry) return answer;
      await pause(answer.retry_after_ms ?? 100);
    }
  }

  async have(count) {
    while (this.entries.length < count) await this.next();
    assert(this.entries.length === count, `${this.entries.length} entries came, ${count} were sent`);
    return this.entries;
  }

  /** Sends frames (client_msg_id to frame), a window at a time; those that are refused for the moment again. */
  async sendAll(frames) {
    const waiting = new Map(frames);
    while (waiting.size) {
      const refs = new Map();
      for (const [name, frame] of [...waiting].slice(0, WINDOW)) {
        refs.set(frame.ref, name);
        this.tell(frame);
      }
      let wait = 0;
      while (refs.size) {
        const frame = await this.next();
        for (const { ref } of frame.t === "sent" ? frame.results : []) {
          waiting.delete(refs.get(ref));
          refs.delete(ref);
        }
        if (frame.t === "error") {
          assert(frame.retry, frame);
          refs.delete(frame.ref);
          wait = Math.max(wait, frame.retry_after_ms ?? 100);
        }
      }
      await pause(wait);
    }
  }
}

async function checkLengths(ada, ben, to) {
  const frames = new Map();
  const put = (length, body) =>
    frames.set(`l${length}`, { t: "send", ref: 1_000_000 + length, to, client_msg_id: `l${length}`, body });
  for (let length = 0; length <= 300; length++) put(length, letters(length));
  for (let length = 65_525; length < 65_545; length++) {
    put(length, "");
    put(length, letters(length - JSON.stringify(frames.get(`l${length}`)).length));
    assert(JSON.stringify(frames.get(`l${length}`)).length === length, "the frame has its length");
  }
  const before = ben.entries.length;
  await ada.sendAll(frames);
  for (const entry of (await ben.have(before + frames.size)).slice(before)) {
    assert(entry.body === frames.get(entry.client_msg_id).body, `${entry.client_msg_id} came changed`);
    frames.delete(entry.client_msg_id);
  }
  assert(frames.size === 0, "each came once");
}

async function checkResume(connect, url, ada, ben_id, token) {
  const ben = await Session.bind(connect, url, token, { device_id: "tablet" });
  await ada.send(ben_id, { before: 1 });
  await ben.have(1);
  const cursor = ben.cursor;
  await ben.link.cut();
  for (const n of [0, 1, 2]) await ada.send(ben_id, { missed: n });
  const again = await Session.bind(connect, url, token, { device_id: "tablet", cursor });
  assert(again.bound.resume.complete === true && !again.bound.resume.reset, again.bound);
  const bodies = (await again.have(3)).map((entry) => entry.body);
  assert(JSON.stringify(bodies) === '[{"missed":0},{"missed":1},{"missed":2}]', bodies);
  const third = await Session.bind(connect, url, token, { device_id: "tablet", cursor: again.cursor });
  const pong = await third.ask({ t: "ping" });
  assert(pong.t === "pong" && third.entries.length === 0, "what was handed over came again");
}

async function checkBodyLimit(ada, ben, to) {
  const whole = letters(BODY_BYTES_MAX - 2);
  const before = ben.entries.length;
  const receipt = await ada.send(to, whole);
  assert(receipt.seq, receipt);
  assert((await ben.have(before + 1)).at(-1).body === whole, "64 KiB came changed");
  const refused = await ada.send(to, whole + "x");
  assert(refused.code === "limit_exceeded" && refused.message.includes("65536"), refused);
  assert((await ada.ask({ t: "ping" })).t === "pong", "the session goes on");
}

async function checkConversations(ada) {
  const ids = [];
  let after;
  do {
    const page = await ada.ask({ t: "conversations", limit: 2, after });
    assert(page.t === "conversations" && page.conversations.length <= 2, page);
    ids.push(...page.conversations.map((conversation) => conversation.id));
    after = page.next;
  } while (after);
  assert(ids.length === 4 && new Set(ids).size === 4, ids);
}

async function checkBadCursor(connect, url, token) {
  const session = new Session(await connect(url));
  session.tell({ t: "bind", token, device_id: "watch", cursor: "of.another.server" });
  const refusal = await session.next();
  assert(refusal.code === "cursor_invalid" && refusal.retry === false, refusal);
  const end = await session.next().catch((error) => error);
  assert(end.code === 4014 && end.reason === "cursor_invalid", String(end));
}

async function checkClose(connect, url, token) {
  for (const code of [1000, 3999, 4999]) {
    const session = await Session.bind(connect, url, token, { device_id: "watch" });
    const answered = await session.link.close(code, "bye");
    assert(answered === code, `${code} was answered with ${answered}`);
  }
}

/** The cases, as [title, check] pairs, in order. `people`: name, and tokens of ada, ben and cy. */
export async function cases(connect, url, people, extra = []) {
  const [ada_id, ben_id, cy_id] = ["ada", "ben", "cy"].map((who) => `${people.name}-${who}`);
  const ada = await Session.bind(connect, url, people.ada);
  const ben = await Session.bind(connect, url, people.ben);
  return [
    ["a message is acknowledged and comes to both, unchanged", async () => {
      const text = 'grüße, 你好, 😀 \u0000 \\ "';
      const receipt = await ada.send(ben_id, { text });
      const [[hers], [his]] = [await ada.have(1), await ben.have(1)];
      assert(his.seq === receipt.seq && his.from === ada_id && his.body.text === text, his);
      assert(JSON.stringify(hers) === JSON.stringify(his), hers);
    }],
    ["every length from 0 to 300 and around 65,535 and 65,536", () => checkLengths(ada, ben, ben_id)],
    ["a body of 64 KiB is taken, one byte more is refused", () => checkBodyLimit(ada, ben, ben_id)],
    ["a ping is answered", async () => assert((await ada.ask({ t: "ping" })).t === "pong", "a pong")],
    ...extra.map(([title, check]) => [title, () => check(ada, ben, ben_id)]),
    ["conversations come page by page", async () => {
      await ada.send(cy_id, "so that there are two direct ones");
      await checkConversations(ada);
    }],
    ["after a cut what was missed comes, once", () => checkResume(connect, url, ada, ben_id, people.ben)],
    ["a cursor of another server is refused by a code of its own", () => checkBadCursor(connect, url, people.cy)],
    ["a goodbye is answered with its code", () => checkClose(connect, url, people.cy)],
  ];
}
