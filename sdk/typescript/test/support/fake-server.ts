// A server in memory that keeps the protocol of docs/websocket.md, and breaks it where a test says so.
import type { SocketLike, WebSocketConstructor } from "../../src/session/socket.js";
import type { Entry, Reaction } from "../../src/wire/entries.js";
import type { Json } from "../../src/wire/json.js";
import { claimsOf } from "../../src/session/claims.js";
import { fakeFetch, type GoneCode, type PostFault } from "./fake-streams.js";
import type { VirtualClock } from "./virtual-clock.js";
import { Truth } from "./truth.js";

/** What happens to a frame on its way to a client. */
export type Fault = "pass" | "drop" | "double" | "hold" | "cut" | "half";

export interface Faults {
  /** Asked for each frame that is about to leave. */
  readonly toClient: (frame: { readonly t: string }) => Fault;
  /** Asked for each request, once it took effect: true, and the connection breaks before the answer. */
  readonly cutBeforeAnswer: (frame: { readonly t: string }) => boolean;
  /** How many entries of the past a resume leaves out, although it says that it is complete. */
  readonly resumeLeavesOut: () => number;
  /** Asked for each request with frames for an event stream. */
  readonly post: () => PostFault;
}

export const NO_FAULTS: Faults = { toClient: () => "pass", cutBeforeAnswer: () => false, resumeLeavesOut: () => 0, post: () => "pass" };

type Frame = { readonly t: string; readonly ref?: number; readonly [name: string]: unknown };

export class FakeServer {
  readonly clock: VirtualClock;
  readonly truth = new Truth();
  faults: Faults = NO_FAULTS;
  /** Refuses what it returns an answer for, before anything takes effect. */
  refuse: (frame: Frame) => { readonly code: string; readonly retry: boolean; readonly retry_after_ms?: number } | undefined = () => undefined;
  /** Answers what this server would not, or otherwise than it would. */
  script: (frame: Frame, link: FakeLink) => boolean = () => false;
  heartbeatMs = 30_000;
  /** Above, a resume names ranges instead of handing entries over. */
  resumeMax = 800;
  epoch = 1;
  isReachable = true;
  /** What a request to an event stream that has ended is answered with. */
  goneCode: GoneCode = "session_gone";
  readonly links = new Set<FakeLink>();
  readonly received: Frame[] = [];
  readonly binds: Frame[] = [];

  /** Event streams, and the requests beside them. */
  readonly fetch: typeof fetch;

  constructor(clock: VirtualClock) {
    this.clock = clock;
    this.fetch = fakeFetch({
      clock,
      isReachable: () => this.isReachable,
      openLink: () => {
        const link = new FakeLink("http://fake/v1/stream", clock, () => this.faults);
        this.#open(link);
        return link;
      },
      postFault: () => this.faults.post(),
      goneCode: () => this.goneCode,
    });
  }

  get WebSocket(): WebSocketConstructor {
    const open = (link: FakeLink): void => this.#open(link);
    const server = this;
    return class extends FakeLink {
      constructor(url: string) {
        super(url, server.clock, () => server.faults);
        open(this);
      }
    };
  }

  /** Commits an entry and hands it to who is there. */
  commit(conversation: string, entry: Partial<Entry>): Entry {
    const whole = this.truth.commit(conversation, { at: this.clock.now(), ...entry });
    this.flush();
    return whole;
  }

  flush(): void {
    for (const link of this.links) {
      const entries = this.truth.log.slice(link.handedOver);
      if (!link.isBound || entries.length === 0) continue;
      link.handedOver = this.truth.log.length;
      link.tell({ t: "messages", entries: entries.map((entry) => this.truth.now(entry)), cursor: this.#cursor(link.handedOver) });
    }
  }

  /** To everybody who is there. */
  tell(frame: object): void {
    for (const link of this.links) if (link.isBound) link.tell(frame);
  }

  closeAll(code: number, reason = ""): void {
    for (const link of [...this.links]) link.end(code, reason);
  }

  #cursor(position: number): string {
    return `${this.epoch}.${position}`;
  }

  #open(link: FakeLink): void {
    if (!this.isReachable) {
      this.clock.setTimer(1, () => link.end(1006, ""));
      return;
    }
    this.links.add(link);
    link.onEnd = () => this.links.delete(link);
    link.onText = (text) => this.#take(link, JSON.parse(text) as Frame);
    this.clock.setTimer(1, () => link.open());
  }

  #take(link: FakeLink, frame: Frame): void {
    this.received.push(frame);
    if (this.script(frame, link)) return;
    const refusal = this.refuse(frame);
    if (refusal) {
      link.tell({ t: "error", message: `refused: ${refusal.code}`, ...refusal, ...(frame.ref !== undefined && { ref: frame.ref }) });
      return;
    }
    if (frame.t === "bind") this.#bind(link, frame);
    else this.#answer(link, frame);
  }

  #bind(link: FakeLink, frame: Frame): void {
    this.binds.push(frame);
    const user = claimsOf(String(frame["token"])).sub ?? "";
    link.user = user;
    const given = frame["cursor"] as string | undefined;
    const [epoch, position] = (given ?? this.#cursor(this.truth.log.length)).split(".").map(Number);
    const isReset = epoch !== this.epoch || (position ?? 0) > this.truth.log.length;
    const from = isReset ? this.truth.log.length : Math.min(this.truth.log.length, (position ?? 0) + this.faults.resumeLeavesOut());
    const missed = this.truth.log.slice(from);
    const tooMany = missed.slice(0, Math.max(0, missed.length - this.resumeMax));
    link.handedOver = from + tooMany.length;
    link.isBound = true;
    const claims = claimsOf(String(frame["token"]));
    link.tell({
      t: "bound",
      session: String(this.binds.length),
      user,
      heartbeat_ms: this.heartbeatMs,
      cursor: isReset ? this.#cursor(this.truth.log.length) : (given ?? this.#cursor(this.truth.log.length)),
      ...(claims.exp !== undefined && { expires_at: claims.exp * 1000 }),
      resume: { complete: tooMany.length === 0, ...(tooMany.length > 0 && { ranges: rangesOf(tooMany) }), ...(isReset && { reset: true }) },
    });
    this.flush();
  }

  #answer(link: FakeLink, frame: Frame): void {
    const me = link.user;
    const ref = frame.ref;
    const answer = (fields: object): void => {
      if (this.faults.cutBeforeAnswer(frame)) link.end(1006, "");
      else link.tell({ ...fields, ...(ref !== undefined && { ref }) });
    };
    const sent = (result: object): void => {
      if (this.faults.cutBeforeAnswer(frame)) link.end(1006, "");
      else link.tell({ t: "sent", results: [{ ...result, ref }] });
    };
    const refused = (code: string): void => link.tell({ t: "error", code, message: code, retry: false, ref });
    const [conversation, seq] = [String(frame["conversation"]), Number(frame["seq"])];
    switch (frame.t) {
      case "send": {
        const id = frame["to"] === undefined ? conversation : [me, String(frame["to"])].sort().join("~");
        const { conversation: _, to: __, t: ___, ref: ____, ...message } = frame;
        const { entry, duplicate } = this.truth.send(id, me, message as Partial<Entry>, this.clock.now());
        this.flush();
        sent({ conversation: id, seq: entry.seq, at: entry.at, ...(duplicate && { duplicate }) });
        return;
      }
      case "edit": {
        const [body, mentions, id] = [frame["body"] as Json, frame["mentions"] as readonly string[] | undefined, frame["client_msg_id"] as string | undefined];
        const made = this.truth.edit(conversation, seq, me, body, this.clock.now(), mentions, id);
        if (!made) return refused("not_found");
        this.flush();
        sent({ conversation, seq: made.seq, at: made.at, version: made.version });
        return;
      }
      case "recall": {
        const made = this.truth.recall(conversation, seq, me, this.clock.now());
        if (!made) return refused("not_found");
        this.flush();
        sent({ conversation, seq: made.seq, at: made.at, version: this.truth.timeline(conversation)[seq - 1]?.version ?? 1 });
        return;
      }
      case "react":
        this.truth.react(conversation, seq, me, String(frame["key"]), frame["remove"] === true, this.clock.now());
        this.flush();
        return answer({ t: "ok" });
      case "pin":
        this.truth.pin(conversation, seq, me, frame["remove"] !== true, this.clock.now());
        this.flush();
        return answer({ t: "ok" });
      case "read":
        this.truth.read(me, conversation, seq);
        return answer({ t: "ok" });
      case "history": {
        const page = this.truth.history(frame);
        return page ? answer({ t: "history", conversation, ...page }) : refused("not_found");
      }
      case "unread":
        return answer({ t: "unread", ...this.truth.unread(me) });
      case "receipts":
        return answer({ t: "receipts", conversation, marks: this.truth.marks(conversation) });
      case "conversations":
        if (frame["conversation"] !== undefined) {
          if (!this.truth.conversations.includes(conversation)) return refused("not_found");
          return answer({ t: "conversations", conversations: [this.truth.view(me, conversation)] });
        }
        if (frame["search"] !== undefined) return answer({ t: "conversations", conversations: this.truth.list(me, undefined, 1_000).conversations.filter(({ id }) => id.includes(String(frame["search"]))) });
        return answer({ t: "conversations", ...this.truth.list(me, frame["after"] as string | undefined, Number(frame["limit"] ?? 50), frame["filter"] === "archived") });
      case "ping":
        return answer({ t: "pong" });
      case "watch_presence":
        return answer({ t: "presence", changes: (frame["users"] as string[]).map((user) => ({ user, online: true })) });
      case "popup":
        return answer({ t: "popup", retry_after_ms: 5_000 });
      case "refresh":
      case "popup_events":
      case "unwatch_presence":
      case "preferences":
        return answer({ t: "ok" });
      case "unbind":
        link.end(1000, "");
        return;
      default:
        return; // notices
    }
  }
}

function rangesOf(entries: readonly Entry[]): readonly { conversation: string; from_seq: number; to_seq: number }[] {
  const ranges = new Map<string, { conversation: string; from_seq: number; to_seq: number }>();
  for (const { conversation, seq } of entries) {
    const range = ranges.get(conversation);
    if (range) range.to_seq = Math.max(range.to_seq, seq);
    else ranges.set(conversation, { conversation, from_seq: seq, to_seq: seq });
  }
  return [...ranges.values()];
}

/** The client's side of a connection. */
export class FakeLink implements SocketLike {
  readyState = 0;
  onopen: ((event: never) => void) | null = null;
  onmessage: ((event: never) => void) | null = null;
  onclose: ((event: never) => void) | null = null;
  onerror: ((event: never) => void) | null = null;
  readonly url: string;
  user = "";
  isBound = false;
  handedOver = 0;
  onText: (text: string) => void = () => undefined;
  onEnd: () => void = () => undefined;
  readonly #clock: VirtualClock;
  readonly #faults: () => Faults;
  #held: string[] = [];
  #isEnded = false;

  constructor(url: string, clock: VirtualClock, faults: () => Faults) {
    this.url = url;
    this.#clock = clock;
    this.#faults = faults;
  }

  open(): void {
    if (this.readyState !== 0) return;
    this.readyState = 1;
    this.onopen?.({} as never);
  }

  /** By the client. */
  send(text: string): void {
    this.#clock.setTimer(1, () => {
      if (!this.#isEnded) this.onText(text);
    });
  }

  /** By the client; what it has sent arrives before. */
  close(): void {
    this.readyState = 3;
    this.#clock.setTimer(1, () => this.onEnd());
  }

  /** By the server. */
  tell(frame: object): void {
    const text = JSON.stringify(frame);
    const fault = this.#faults().toClient(frame as { t: string });
    if (fault === "drop") return;
    if (fault === "hold") {
      this.#held.push(text);
      return;
    }
    if (fault === "cut") {
      this.end(1006, "");
      return;
    }
    const texts = [fault === "half" ? text.slice(0, text.length / 2) : text, ...(fault === "double" ? [text] : []), ...this.#held.splice(0)];
    for (const one of texts) {
      this.#clock.setTimer(1, () => {
        if (this.readyState === 1) this.onmessage?.({ data: one } as never);
      });
    }
  }

  /** By the server, or by the network. */
  end(code: number, reason: string): void {
    this.onEnd();
    this.#isEnded = true;
    this.isBound = false;
    this.#clock.setTimer(1, () => {
      if (this.readyState === 3) return;
      this.readyState = 3;
      this.onclose?.({ code, reason } as never);
    });
  }
}

export type { Reaction };
