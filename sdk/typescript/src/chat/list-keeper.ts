// Keeps the user's list right: reads it after each connect, and again where the model cannot count on.
import { TidingsError } from "../errors.js";
import { Cell } from "../observable.js";
import type { Conversations, ConversationsPage, ConversationsSnapshot } from "../tidings.js";
import type { ListFilter } from "../wire/client-frames.js";
import type { ConversationView, Entry } from "../wire/entries.js";
import type { Core } from "./core.js";
import { isOfOthers } from "./direct.js";
import { ConversationList } from "./list.js";

const PAGE_LIMIT = 100;
// Changes that come together are looked up together.
const REFRESH_AFTER_MS = 50;
// A line that is stale again after so many readings in a row is left until something else changes.
const ROUNDS_MAX = 5;

export class ListKeeper implements Conversations {
  readonly #core: Core;
  readonly #list: ConversationList;
  readonly #onRead: (view: ConversationView) => void;
  readonly #cell = new Cell<ConversationsSnapshot>({ items: [], unread: 0, mentions: 0, hasMore: false, state: "loading" });
  readonly #views = new Map<string, Cell<ConversationView | undefined>>();
  readonly #left = new Set<string>();
  #next: string | undefined;
  #isRead = false;
  #wantsAll = false;
  #timer: (() => void) | undefined;
  #reading: Promise<void> | undefined;
  #isDirty = false;

  /** `onRead` is told of each line that the server has answered with. */
  constructor(core: Core, onRead: (view: ConversationView) => void) {
    this.#core = core;
    this.#onRead = onRead;
    this.#list = new ConversationList(core.me);
  }

  readonly get = (): ConversationsSnapshot => this.#cell.get();

  readonly subscribe = (listener: () => void): (() => void) => this.#cell.subscribe(listener);

  viewOf(id: string): Cell<ConversationView | undefined> {
    let cell = this.#views.get(id);
    if (!cell) this.#views.set(id, (cell = new Cell<ConversationView | undefined>(this.#list.view(id))));
    return cell;
  }

  get views(): readonly ConversationView[] {
    return this.#list.views;
  }

  /** What was stored, until the server's own is read. */
  restore(views: readonly ConversationView[]): void {
    for (const view of views) this.#list.put(view);
    if (views.length > 0) this.#isRead = true;
    this.#changed();
  }

  take(entry: Entry): void {
    if (this.#isOfAccount(entry.conversation)) return;
    this.#list.take(entry);
    this.#refreshStale();
    this.#changed();
  }

  read(id: string, seq: number): void {
    this.#list.read(id, seq);
    this.#refreshStale();
    this.#changed();
  }

  put(view: ConversationView): void {
    if (this.#isOfAccount(view.id)) return;
    this.#left.delete(view.id);
    this.#list.put(view);
    this.#onRead(view);
    this.#refreshStale();
    this.#changed();
  }

  patch(id: string, change: Partial<ConversationView>): void {
    this.#list.patch(id, change);
    this.#changed();
  }

  membership(id: string, isMember: boolean): void {
    if (this.#isOfAccount(id)) return;
    if (isMember) {
      this.#left.delete(id);
      this.#list.stale.add(id);
    } else {
      // A page that is on its way may still have the line.
      this.#left.add(id);
      this.#list.remove(id);
    }
    this.#refreshStale();
    this.#changed();
  }

  /** Everything may have changed. */
  refreshAll(): void {
    this.#wantsAll = true;
    this.#schedule(0);
  }

  clear(): void {
    this.#list.clear();
    this.#isRead = false;
    this.#changed();
  }

  close(): void {
    this.#timer?.();
  }

  async loadMore(): Promise<void> {
    await this.#reading;
    if (this.#next === undefined) return;
    const page = await this.#core.asker.ask({ t: "conversations", after: this.#next, limit: PAGE_LIMIT });
    this.#takePage(page.conversations);
    this.#next = page.next ?? undefined;
    this.#changed();
  }

  async page(filter: ListFilter, after?: string, limit?: number): Promise<ConversationsPage> {
    const frame = { t: "conversations" as const, filter, ...(after !== undefined && { after }), ...(limit !== undefined && { limit }) };
    const { conversations, next } = await this.#core.asker.ask(frame);
    if (filter === "archived") {
      // Their `view` is kept right like that of any other line: the list only does not show them.
      this.#takePage(conversations);
      this.#changed();
    }
    return { conversations, ...(next != null && { next }) };
  }

  /** Conversations of accounts that this user answers for are not in the user's own list. */
  #isOfAccount(id: string): boolean {
    return isOfOthers(id, this.#core.me);
  }

  #refreshStale(): void {
    if (this.#list.stale.size > 0) this.#schedule(REFRESH_AFTER_MS);
  }

  #schedule(ms: number): void {
    if (this.#timer || this.#reading) return; // a reading looks again when it is done
    this.#timer = this.#core.clock.setTimer(ms, () => {
      this.#timer = undefined;
      this.#reading = this.#readAll().finally(() => {
        this.#reading = undefined;
        if (this.#wantsAll) this.#schedule(REFRESH_AFTER_MS);
      });
    });
  }

  async #readAll(): Promise<void> {
    try {
      for (let round = 0; round < ROUNDS_MAX && (this.#wantsAll || this.#list.stale.size > 0); round++) await this.#readOnce();
      if (!this.#wantsAll) this.#list.stale.clear();
    } catch (error) {
      this.#wantsAll = false;
      if (!(error instanceof TidingsError)) throw error;
      // That the session has ended is told by the status.
      if (this.#core.link.status.get().state !== "ended") this.#core.emitter.emit("error", error);
    }
  }

  /** Reads pages from the first on: as many as are loaded when all may have changed, or until no stale line is left. */
  async #readOnce(): Promise<void> {
    const isAll = this.#wantsAll;
    this.#wantsAll = false;
    const stale = new Set(this.#list.stale);
    const known = new Set(this.#list.views.map(({ id }) => id));
    const loaded = Math.max(PAGE_LIMIT, this.#list.size);
    const seen = new Set<string>();
    for (let after: string | undefined; ; ) {
      const page = await this.#core.asker.ask({ t: "conversations", limit: PAGE_LIMIT, ...(after !== undefined && { after }) });
      this.#takePage(page.conversations);
      for (const { id } of page.conversations) {
        seen.add(id);
        stale.delete(id);
      }
      after = page.next ?? undefined;
      if (isAll && (after === undefined || seen.size >= loaded)) this.#next = after;
      if (after === undefined || (isAll ? seen.size >= loaded : stale.size === 0)) break;
    }
    const archived = this.#list.views.filter(({ id, archived }) => archived === true && (isAll ? !seen.has(id) : stale.has(id)));
    if (archived.length > 0) {
      const page = await this.#core.asker.ask({ t: "conversations", limit: PAGE_LIMIT, filter: "archived" });
      this.#takePage(page.conversations);
      for (const { id } of page.conversations) seen.add(id);
    }
    for (const id of stale) this.#list.stale.delete(id); // the server's list has no such line
    // Lines that came while the pages were read are not in them, and stay.
    if (isAll) this.#list.keepOnly(new Set([...seen, ...this.#list.views.map(({ id }) => id).filter((id) => !known.has(id))]));
    this.#isRead = true;
    this.#changed();
  }

  #takePage(views: readonly ConversationView[]): void {
    for (const view of views) {
      if (this.#left.has(view.id)) continue;
      this.#list.put(view);
      this.#onRead(view);
    }
  }

  #changed(): void {
    if (this.#isDirty) return;
    this.#isDirty = true;
    queueMicrotask(() => {
      if (this.#isDirty) this.#show();
    });
  }

  #show(): void {
    this.#isDirty = false;
    const now = this.#core.clock.now();
    const views = this.#list.views.map((view) => (view.muted && view.muted_until != null && view.muted_until <= now ? { ...view, muted: false } : view));
    for (const [id, cell] of this.#views) cell.set(this.#list.view(id));
    const items = views.filter(({ hidden, archived }) => hidden !== true && archived !== true).sort(byActivity);
    this.#cell.set({
      items,
      unread: items.reduce((count, { muted, unread }) => count + (muted ? 0 : unread), 0),
      mentions: items.reduce((count, { mentions }) => count + mentions, 0),
      hasMore: this.#next !== undefined,
      state: this.#isRead ? "ready" : "loading",
    });
  }
}

function byActivity(a: ConversationView, b: ConversationView): number {
  return Number(b.pinned_at != null) - Number(a.pinned_at != null) || b.last_at - a.last_at || (a.id < b.id ? -1 : 1);
}
