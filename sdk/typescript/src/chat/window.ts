import type { Messages, MessagesSnapshot } from "../conversation.js";
import { TidingsError } from "../errors.js";
import { Cell } from "../observable.js";
import type { Core } from "./core.js";
import { itemOfOutbox } from "./items.js";
import type { Outbox } from "./outbox.js";
import { ShownItems } from "./shown.js";
import type { Timelines } from "./timelines.js";

/** What an app sees of one timeline: what is held of it, then what is not sent. */
export class Window implements Messages {
  readonly #id: string;
  readonly #core: Core;
  readonly #timelines: Timelines;
  readonly #outbox: Outbox;
  readonly #cell: Cell<MessagesSnapshot>;
  readonly #shown = new ShownItems();
  #state: MessagesSnapshot["state"] = "idle";
  #failure: string | undefined;
  #loading: Promise<void> | undefined;
  #older: Promise<void> | undefined;
  #isDirty = false;

  constructor(id: string, core: Core, timelines: Timelines, outbox: Outbox) {
    this.#id = id;
    this.#core = core;
    this.#timelines = timelines;
    this.#outbox = outbox;
    this.#cell = new Cell<MessagesSnapshot>({ items: [], hasOlder: false, state: "idle" }, (isUsed) => {
      if (isUsed) void this.load().catch(() => undefined); // the snapshot tells the failure
    });
    this.refresh();
  }

  readonly get = (): MessagesSnapshot => this.#cell.get();

  readonly subscribe = (listener: () => void): (() => void) => this.#cell.subscribe(listener);

  get isWatched(): boolean {
    return this.#cell.isUsed;
  }

  load(): Promise<void> {
    if (this.#state === "ready") return Promise.resolve();
    this.#loading ??= this.#load().finally(() => (this.#loading = undefined));
    return this.#loading;
  }

  loadOlder(limit?: number): Promise<void> {
    this.#older ??= this.#loadOlder(limit).finally(() => (this.#older = undefined));
    return this.#older;
  }

  /** What is held was dropped: it is read anew if somebody looks. */
  restart(): void {
    if (this.#state === "idle") return;
    this.#state = "idle";
    this.#failure = undefined;
    this.refresh();
    if (this.isWatched) void this.load().catch(() => undefined);
    else this.#timelines.of(this.#id).letGo();
  }

  /** What could not be read before may be readable now, such as after the user was added again. */
  retry(): void {
    if (this.#state === "failed") this.restart();
  }

  /** What is held is what was stored, and whole as far as it goes. */
  restored(): void {
    this.#state = "ready";
    this.refresh();
  }

  /** What this user has just sent, retried or discarded is to be seen at once. */
  refreshNow(): void {
    this.#show();
  }

  /** Something came: the snapshot is made once for all changes of this turn. */
  refresh(): void {
    if (this.#isDirty) return;
    this.#isDirty = true;
    queueMicrotask(() => {
      if (this.#isDirty) this.#show();
    });
  }

  async #load(): Promise<void> {
    this.#set("loading");
    try {
      // When all was dropped meanwhile, the page that came was of no use.
      do await this.#timelines.open(this.#id);
      while (!this.#timelines.of(this.#id).isJoined);
      this.#set("ready");
    } catch (error) {
      this.#failure = error instanceof TidingsError ? error.code : "internal";
      this.#set("failed");
      throw error;
    }
  }

  async #loadOlder(limit: number | undefined): Promise<void> {
    await this.load();
    if (this.#timelines.of(this.#id).hasOlder) await this.#timelines.older(this.#id, limit);
  }

  #set(state: MessagesSnapshot["state"]): void {
    this.#state = state;
    if (state !== "failed") this.#failure = undefined;
    this.refresh();
  }

  #show(): void {
    this.#isDirty = false;
    const timeline = this.#timelines.of(this.#id);
    const items = this.#shown.of(timeline.slots, timeline.low);
    // Without a window there is nothing that a settled message could be missing from.
    this.#outbox.dropSettled(this.#id, (seq) => (timeline.high !== undefined && seq <= timeline.high) || this.#state === "idle");
    const unsent = this.#outbox.of(this.#id).map((item) => itemOfOutbox(item, this.#core.me));
    if (unsent.length > 0) {
      const has = new Set(items.map(({ key }) => key));
      items.push(...unsent.filter(({ key }) => !has.has(key)));
    }
    const before = this.#cell.get();
    const isSame =
      before.state === this.#state &&
      before.failure === this.#failure &&
      before.hasOlder === timeline.hasOlder &&
      before.items.length === items.length &&
      before.items.every((item, index) => item === items[index]);
    if (isSame) return;
    this.#cell.set({
      items,
      hasOlder: timeline.hasOlder,
      state: this.#state,
      ...(this.#failure !== undefined && { failure: this.#failure }),
    });
  }
}
