// One connection for all tabs of a browser: the tab that has the lock holds the session, the others ask it.
//
//   follower ─lock→ leader          a leader that closes or dies gives the lock to the next tab, which resumes from its own cursor
//   leader ─lock stolen→ follower   a browser may suspend a tab in the background for good: one in front takes its lock
import { CLIENT_CODES, TidingsError } from "../errors.js";
import { Cell, type Observable } from "../observable.js";
import type { Clock } from "../session/clock.js";
import type { AnswerTo, LinkEvent, WakeableLink } from "../session/link.js";
import type { ConnectionStatus } from "../tidings.js";
import type { Attention, NoticeFrame, RequestFrame } from "../wire/client-frames.js";
import type { BoundFrame } from "../wire/server-frames.js";
import type { Channel, TabSupport } from "./browser.js";
import { LivingTabs } from "./living-tabs.js";
import { errorOf, eventOf, plainError, plainEvent, plainStatus, statusOf, type TabMessage } from "./messages.js";

// Longer than a session waits for an answer: the leader's own answer comes first.
const ANSWER_MS_MAX = 35_000;

// A tab that runs answers within a moment, also in the background; one that does not is suspended.
const ALIVE_MS_MAX = 5_000;

export interface SharedLinkOptions {
  /** The same for all tabs of a user of a server. */
  readonly name: string;
  readonly tab: string;
  readonly support: TabSupport;
  readonly clock: Clock;
  /** The cursor of what was stored. */
  readonly cursor: string | undefined;
  readonly openSession: (cursor: string | undefined) => WakeableLink;
  /** This tab has the connection now. */
  readonly onLead: () => void;
  /** Another tab is gone, while this one has the connection. */
  readonly onTabGone: (tab: string) => void;
}

interface Waiting {
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: TidingsError) => void;
  readonly cancelTimer: () => void;
}

export class SharedLink implements WakeableLink {
  readonly #options: SharedLinkOptions;
  readonly #status = new Cell<ConnectionStatus>({ state: "connecting" });
  readonly #listeners = new Set<(event: LinkEvent) => void>();
  readonly #waiting = new Map<number, Waiting>();
  readonly #end = new AbortController();
  readonly #channel: Channel;
  readonly #livingTabs: LivingTabs;
  #requests = 0;
  /** Of the leader; undefined in other tabs. */
  #session: WakeableLink | undefined;
  #endSession: readonly (() => void)[] = [];
  #leader: string | undefined;
  #term = 0;
  #heardAt = -Infinity;
  #isQueued = false;
  #bound: BoundFrame | undefined;
  #cursor: string | undefined;
  #isStarted = false;
  #cancelWaking: (() => void) | undefined;
  #attention: Attention = "foreground";
  /** Of the leader: the other tabs at which somebody looks. */
  readonly #seenTabs = new Set<string>();
  #release: () => void = () => undefined;

  constructor(options: SharedLinkOptions) {
    this.#options = options;
    this.#cursor = options.cursor;
    const { name, support, onTabGone } = options;
    this.#livingTabs = new LivingTabs({
      name,
      locks: support.locks,
      signal: this.#end.signal,
      onGone: (tab) => {
        this.#seenTabs.delete(tab);
        this.#attendForAll();
        if (this.#session) onTabGone(tab);
      },
    });
    this.#channel = support.openChannel(name);
    this.#channel.onmessage = (event: { readonly data?: unknown }) => this.#take(event.data as TabMessage);
  }

  get status(): Observable<ConnectionStatus> {
    return this.#status;
  }

  get isUp(): boolean {
    return this.#session ? this.#session.isUp : this.#bound !== undefined;
  }

  get isLeader(): boolean {
    return this.#session !== undefined;
  }

  request<Frame extends RequestFrame>(frame: Frame): Promise<AnswerTo<Frame>> {
    if (this.#session) return this.#session.request(frame);
    if (!this.isUp) return Promise.reject(new TidingsError(CLIENT_CODES.connectionLost, "there is no connection", { retry: true }));
    const id = ++this.#requests;
    return new Promise((resolve, reject) => {
      const cancelTimer = this.#options.clock.setTimer(ANSWER_MS_MAX, () => {
        this.#waiting.delete(id);
        reject(new TidingsError(CLIENT_CODES.timeout, `the tab with the connection did not answer "${frame.t}" in time`, { retry: true }));
      });
      this.#waiting.set(id, { resolve: resolve as (answer: unknown) => void, reject, cancelTimer });
      this.#post({ is: "request", id, frame });
    });
  }

  tell(frame: NoticeFrame): void {
    if (this.#session) this.#session.tell(frame);
    else if (this.isUp) this.#post({ is: "tell", frame });
  }

  listen(listener: (event: LinkEvent) => void): () => void {
    this.#listeners.add(listener);
    return () => this.#listeners.delete(listener);
  }

  start(): void {
    if (this.#session) this.#session.start();
    else if (this.#isStarted) this.#post({ is: "start" });
    else {
      this.#isStarted = true;
      this.#livingTabs.live(this.#options.tab);
      this.#queueForLock();
      this.#askIfAlive("hello");
    }
  }

  wake(): void {
    if (this.#session) this.#session.wake();
    else if (this.#isStarted) this.#askIfAlive("wake");
  }

  attend(attention: Attention): void {
    if (attention === this.#attention) return;
    this.#attention = attention;
    this.#attendForAll();
    this.#postAttention();
  }

  /** Somebody looks at the session while somebody looks at one of the tabs. */
  #attendForAll(): void {
    this.#session?.attend(this.#attention === "foreground" || this.#seenTabs.size > 0 ? "foreground" : "background");
  }

  #postAttention(): void {
    if (!this.#session) this.#post({ is: "attention", attention: this.#attention });
  }

  async close(): Promise<void> {
    const session = this.#session;
    const error = new TidingsError(CLIENT_CODES.closed, "the app has closed the client");
    this.#lose(error);
    this.#end.abort();
    this.#cancelWaking?.();
    this.#bound = undefined;
    this.#listeners.clear();
    this.#status.set({ state: "ended", error });
    await session?.close();
    this.#release();
    this.#channel.close();
  }

  #queueForLock(): void {
    if (this.#isQueued) return;
    this.#isQueued = true;
    this.#request({ signal: this.#end.signal }, () => (this.#isQueued = false));
  }

  #request(options: { readonly signal: AbortSignal } | { readonly steal: true }, granted: () => void): void {
    const { name, support } = this.#options;
    support.locks
      .request(name, options, () => {
        granted();
        if (this.#end.signal.aborted || this.#session) return Promise.resolve();
        this.#lead();
        return new Promise<void>((resolve) => (this.#release = resolve)); // held until this tab closes
      })
      .catch((cause: unknown) => {
        if (this.#end.signal.aborted) return;
        if (this.#session) this.#stepDown();
        else this.#tellAll({ type: "report", error: new TidingsError("internal", `the tabs' lock failed: ${String(cause)}`, { cause }) });
      });
  }

  /** Takes the lock of a leader that does not answer, if a person looks at this tab. */
  #askIfAlive(is: "hello" | "wake"): void {
    const { clock, support } = this.#options;
    const askedAt = clock.now();
    this.#post({ is });
    clock.setTimer(ALIVE_MS_MAX, () => {
      if (this.#session || this.#end.signal.aborted || this.#heardAt >= askedAt || !support.isInFront()) return;
      this.#request({ steal: true }, () => undefined);
    });
  }

  /** leader => follower */
  #stepDown(): void {
    const session = this.#session;
    if (!session) return;
    const gone = new TidingsError(CLIENT_CODES.connectionLost, "another tab has the connection now", { retry: true });
    const wasUp = this.#bound !== undefined;
    for (const end of this.#endSession) end();
    this.#session = undefined;
    this.#leader = undefined;
    this.#bound = undefined;
    void session.close();
    if (wasUp) this.#tellAll({ type: "down", cause: gone });
    this.#status.set({ state: "connecting" });
    this.#queueForLock();
    this.#askIfAlive("hello");
  }

  /** follower => leader */
  #lead(): void {
    const wasUp = this.isUp;
    const gone = new TidingsError(CLIENT_CODES.connectionLost, "the tab with the connection has closed", { retry: true });
    this.#cancelWaking?.();
    this.#bound = undefined;
    this.#leader = this.#options.tab;
    this.#term += 1;
    const session = this.#options.openSession(this.#cursor);
    this.#session = session;
    this.#lose(gone);
    if (wasUp) this.#tellAll({ type: "down", cause: gone });
    this.#endSession = [
      session.status.subscribe(() => {
        this.#status.set(session.status.get());
        this.#postState();
      }),
      session.listen((event) => {
        this.#follow(event);
        this.#post({ is: "event", event: plainEvent(event) });
        this.#tellAll(event);
      }),
    ];
    this.#seenTabs.clear();
    this.#attendForAll();
    this.#postState();
    session.start();
    this.#options.onLead();
  }

  #follow(event: LinkEvent): void {
    if (event.type === "up") {
      this.#bound = event.bound;
      this.#cursor = event.bound.cursor;
    } else if (event.type === "down") this.#bound = undefined;
    else if (event.type === "forget") this.#cursor = undefined;
    else if (event.type === "frame" && event.frame.t === "messages") this.#cursor = event.frame.cursor;
  }

  #take(message: TabMessage): void {
    if (this.#end.signal.aborted) return;
    if (this.#session) this.#serve(this.#session, message);
    else this.#hear(message);
  }

  /** As the leader. */
  #serve(session: WakeableLink, message: TabMessage): void {
    this.#livingTabs.watch(message.from);
    switch (message.is) {
      case "hello":
        this.#postState(message.from);
        break;
      case "request": {
        const { from: to, id } = message;
        session.request(message.frame).then(
          (answer) => this.#post({ is: "answer", to, id, answer }),
          (error: TidingsError) => this.#post({ is: "answer", to, id, error: plainError(error) }),
        );
        break;
      }
      case "tell":
        session.tell(message.frame);
        break;
      case "start":
        session.start();
        break;
      case "attention":
        if (message.attention === "foreground") this.#seenTabs.add(message.from);
        else this.#seenTabs.delete(message.from);
        this.#attendForAll();
        break;
      case "wake":
        session.wake();
        this.#postState(message.from);
        break;
      case "state":
        if (message.term <= this.#term) break; // of a leader that was
        this.#stepDown();
        this.#hear(message);
        break;
      default:
        break; // between others
    }
  }

  /** As a follower. */
  #hear(message: TabMessage): void {
    switch (message.is) {
      case "state":
        if (message.term < this.#term) break; // of a leader that was
        this.#heardAt = this.#options.clock.now();
        if (message.to === undefined || message.to === this.#options.tab) this.#hearState(message);
        break;
      case "event":
        if (message.from === this.#leader) this.#hearEvent(eventOf(message.event));
        break;
      case "answer": {
        if (message.to !== this.#options.tab) break;
        const waiting = this.#waiting.get(message.id);
        this.#waiting.delete(message.id);
        waiting?.cancelTimer();
        if (message.error) waiting?.reject(errorOf(message.error));
        else waiting?.resolve(message.answer);
        break;
      }
      default:
        break; // of other followers
    }
  }

  #hearState({ from, term, status, bound }: Extract<TabMessage, { is: "state" }>): void {
    const isFirst = this.#leader === undefined;
    this.#term = term;
    if (this.#leader !== from) {
      this.#leader = from;
      this.#post({ is: "here" });
      this.#postAttention();
      if (this.#bound) this.#hearEvent({ type: "down", cause: new TidingsError(CLIENT_CODES.connectionLost, "another tab has the connection now", { retry: true }) });
    }
    // A tab that the user has just opened begins anew what had ended.
    if (isFirst && status.state === "ended") {
      this.#post({ is: "start" });
      return;
    }
    if (bound && !this.#bound) this.#hearEvent({ type: "up", bound, from: bound.cursor });
    this.#status.set(statusOf(status));
  }

  #hearEvent(event: LinkEvent): void {
    if (event.type === "up" && this.#bound) return; // told by the state already
    this.#follow(event);
    if (event.type === "down") {
      this.#cancelWaking?.();
      this.#lose(event.cause);
    }
    if (event.type === "up") this.#keepAwake(event.bound.heartbeat_ms / 2);
    this.#tellAll(event);
  }

  #keepAwake(ms: number): void {
    this.#cancelWaking?.();
    this.#cancelWaking = this.#options.clock.setTimer(ms, () => {
      this.#askIfAlive("wake");
      this.#keepAwake(ms);
    });
  }

  /** It is not known what became of what was asked. */
  #lose(cause: TidingsError): void {
    for (const [id, { reject, cancelTimer }] of [...this.#waiting]) {
      this.#waiting.delete(id);
      cancelTimer();
      reject(new TidingsError(CLIENT_CODES.connectionLost, cause.message, { retry: true, cause }));
    }
  }

  #postState(to?: string): void {
    // Who comes now stands where the session stands now.
    const bound = this.#bound && this.#cursor !== undefined ? { ...this.#bound, cursor: this.#cursor, resume: { complete: true } } : undefined;
    this.#post({ is: "state", term: this.#term, status: plainStatus(this.#status.get()), bound: this.isUp ? bound : undefined, ...(to !== undefined && { to }) });
  }

  #post(message: TabMessageBody): void {
    if (!this.#end.signal.aborted) this.#channel.postMessage({ from: this.#options.tab, ...message });
  }

  #tellAll(event: LinkEvent): void {
    for (const listener of [...this.#listeners]) listener(event);
  }
}

type WithoutFrom<Message> = Message extends unknown ? Omit<Message, "from"> : never;
type TabMessageBody = WithoutFrom<TabMessage>;
