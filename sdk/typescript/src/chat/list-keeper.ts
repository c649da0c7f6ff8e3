// Keeps the user's list right: reads it after each connect, and again where the model cannot count on.
import { TidingsError } from "../errors.js";
import { Cell } from "../observable.js";
import type { Conversations, ConversationsPage, ConversationsSnapshot } from "../tidings.js";
import type { ListFilter } from "../wire/client-frames.js";
import type { ConversationView, Entry } from "../wire/entries.js";
import type { ConversationsFrame } from "../wire/server-frames.js";
import type { Core } from "./core.js";
import { isOfOthers } from "./direct.js";
import { ConversationList } from "./list.js";

const PAGE_LIMIT = 100;
// Changes that come together are looked up together.
const REFRESH_AFTER_MS = 50;
// The longest time that a timer takes.
const TIMER_MS_MAX = 2 ** 31 - 1;
// A line that is stale again after so many readings in a row is left until something else changes.
const ROUNDS_MAX = 5;

export class ListKeeper implements Conversations {
  readonly #core: Core;
  readonly #list: ConversationList;
  readonly #onRead: (view: ConversationView) => void;
  readonly #cell = new Cell<ConversationsSnapshot>({ items: [], unread: 0, mentions: 0, hasMore: false, state: "loading" });
  readonly #views = new Map<string, Cell<ConversationView | undefined>>();
  /** How many pages were asked for. */
  #asked = 0;
  /** Of each line that something else than a page has told of: how many had been asked for by then. An earlier page may not know it. */
  readonly #told = new Map<string, number>();
  /** The same of each line's newest entry: a page merges with it, and a list without the line may be too old. */
  readonly #moved = new Map<string, number>();
  #next: string | undefined;
  #isRead = false;
  #wantsAll = false;
  #timer: (() => void) | undefined;
  #muteTimer: (() => void) | undefined;
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
    this.#moved.set(entry.conversation, this.#asked);
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
    this.#told.set(view.id, this.#asked);
    this.#list.put(view);
    this.#onRead(view);
    this.#refreshStale();
    this.#changed();
  }

  membership(id: string, isMember: boolean): void {
    if (this.#isOfAccount(id)) return;
    this.#told.set(id, this.#asked);
    if (isMember) this.#list.stale.add(id);
    else this.#list.remove(id);
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
    this.#muteTimer?.();
  }

  async loadMore(): Promise<void> {
    await this.#reading;
    if (this.#next === undefined) return;
    const page = await this.#ask({ after: this.#next, limit: PAGE_LIMIT });
    this.#next = page.next ?? undefined;
    this.#changed();
  }

  async page(filter: ListFilter, after?: string, limit?: number): Promise<ConversationsPage> {
    const question = { filter, ...(after !== undefined && { after }), ...(limit !== undefined && { limit }) };
    // Of archived lines the `view` is kept right like that of any other line: the list only does not show them.
    const { conversations, next } = await (filter === "archived" ? this.#ask(question) : this.#core.asker.ask({ t: "conversations", ...question }));
    this.#changed();
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
    const asked = this.#asked + 1;
    const loaded = Math.max(PAGE_LIMIT, this.#list.size);
    const seen = new Set<string>();
    let after: string | undefined;
    for (;;) {
      const page = await this.#ask({ limit: PAGE_LIMIT, ...(after !== undefined && { after }) });
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
      const page = await this.#ask({ limit: PAGE_LIMIT, filter: "archived" });
      for (const { id } of page.conversations) seen.add(id);
    }
    const isNews = (id: string): boolean => Math.max(this.#told.get(id) ?? 0, this.#moved.get(id) ?? 0) >= asked;
    for (const id of stale) if (!isNews(id)) this.#list.stale.delete(id); // the server's list has no such line
    if (isAll) {
      // Lines that came or changed while the pages were read may be missing in them: they stay, and are looked for again.
      const unsure = this.#list.views.map(({ id }) => id).filter((id) => known.has(id) && !seen.has(id) && isNews(id));
      for (const id of unsure) this.#list.stale.add(id);
      this.#list.keepOnly(new Set([...seen, ...unsure, ...this.#list.views.map(({ id }) => id).filter((id) => !known.has(id))]));
    } else if (after === undefined) {
      // The whole list was read for them, and does not have them.
      for (const id of stale) if (!seen.has(id) && !isNews(id)) this.#list.remove(id);
    }
    this.#isRead = true;
    this.#changed();
  }

  /** Asks for a page, and takes its lines, but for those of which something newer was told meanwhile. */
  async #ask(question: { readonly after?: string; readonly limit?: number; readonly filter?: ListFilter }): Promise<ConversationsFrame> {
    const asked = ++this.#asked;
    const page = await this.#core.asker.ask({ t: "conversations", ...question });
    for (const view of page.conversations) {
      if ((this.#told.get(view.id) ?? 0) >= asked) continue;
      this.#list.put(view);
      this.#onRead(view);
    }
    return page;
  }

  #endMutes(): void {
    const now = this.#core.clock.now();
    const next = this.#list.endMutes(now);
    this.#muteTimer?.();
    this.#muteTimer = next === undefined ? undefined : this.#core.clock.setTimer(Math.min(next - now, TIMER_MS_MAX), () => this.#changed());
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
    this.#endMutes();
    for (const [id, cell] of this.#views) cell.set(this.#list.view(id));
    const items = this.#list.views.filter(({ hidden, archived }) => hidden !== true && archived !== true).sort(byActivity);
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
