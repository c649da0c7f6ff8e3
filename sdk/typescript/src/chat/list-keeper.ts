// Keeps the user's list right: reads it after each connect, and again where the model cannot count on.
import { TidingsError } from "../errors.js";
import { Cell } from "../observable.js";
import type { Conversations, ConversationsPage, ConversationsSnapshot } from "../tidings.js";
import type { ListFilter } from "../wire/client-frames.js";
import type { ConversationView, Entry, UserCard } from "../wire/entries.js";
import type { ConversationsFrame } from "../wire/server-frames.js";
import type { Core } from "./core.js";
import { isOfOthers } from "./direct.js";
import type { HttpListener } from "./http.js";
import { ConversationList } from "./list.js";

const PAGE_LIMIT = 100;
// Changes that come together are looked up together.
const REFRESH_AFTER_MS = 50;
// The longest time that a timer takes.
const TIMER_MS_MAX = 2 ** 31 - 1;
// A line that is stale again after so many readings in a row is left until something else changes.
const ROUNDS_MAX = 5;
// Lines that are asked for one by one in one reading.
const SINGLES_MAX = 50;
/** What a line is refused with that the user does not have. */
const ABSENT: ReadonlySet<string> = new Set(["not_found", "not_a_member", "forbidden"]);

/** What the parts beside the list learn from it. */
export interface ListEvents {
  /** A line that the server has answered with. */
  readonly read: (view: ConversationView) => void;
  /** How the users of a page are shown. */
  readonly users: (cards: readonly UserCard[]) => void;
}

/** What is unread in a conversation that is not loaded. */
type Beyond = Pick<ConversationView, "unread" | "mentions">;

export class ListKeeper implements Conversations {
  readonly #core: Core;
  readonly #list: ConversationList;
  readonly #http: HttpListener;
  readonly #events: ListEvents;
  readonly #cell = new Cell<ConversationsSnapshot>({ items: [], unread: 0, mentions: 0, hasMore: false, state: "loading" });
  readonly #views = new Map<string, Cell<ConversationView | undefined>>();
  /** How many pages were asked for. */
  #asked = 0;
  /** Of each line that something else than a page has told of: how many had been asked for by then. An earlier page may not know it. */
  readonly #told = new Map<string, number>();
  /** The same of each line's newest entry: a page merges with it, and a list without the line may be too old. */
  readonly #moved = new Map<string, number>();
  #next: string | undefined;
  /** What is unread behind the loaded pages, by conversation, and in those that the server did not name. A line that is loaded counts itself. */
  #beyond = new Map<string, Beyond>();
  #rest: Beyond = { unread: 0, mentions: 0 };
  /** Somebody looks at them, and the user has no such conversation. */
  readonly #unknown = new Set<string>();
  #isRead = false;
  #wantsAll = false;
  #timer: (() => void) | undefined;
  #muteTimer: (() => void) | undefined;
  #reading: Promise<void> | undefined;
  #isDirty = false;

  constructor(core: Core, http: HttpListener, events: ListEvents) {
    this.#core = core;
    this.#http = http;
    this.#events = events;
    this.#list = new ConversationList(core.me);
  }

  readonly get = (): ConversationsSnapshot => this.#cell.get();

  readonly subscribe = (listener: () => void): (() => void) => this.#cell.subscribe(listener);

  viewOf(id: string): Cell<ConversationView | undefined> {
    let cell = this.#views.get(id);
    if (!cell) {
      cell = new Cell<ConversationView | undefined>(this.#list.view(id), (isUsed) => {
        if (isUsed && this.#isRead && this.#isMissing(id)) this.#schedule(0);
      });
      this.#views.set(id, cell);
    }
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
    this.#unknown.delete(entry.conversation);
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
    this.#unknown.delete(view.id);
    this.#list.put(view);
    this.#events.read(view);
    this.#refreshStale();
    this.#changed();
  }

  membership(id: string, isMember: boolean): void {
    if (this.#isOfAccount(id)) return;
    this.#told.set(id, this.#asked);
    this.#unknown.delete(id);
    this.#beyond.delete(id);
    if (isMember) this.#list.stale.add(id);
    else this.#list.remove(id);
    this.#refreshStale();
    this.#changed();
  }

  /** Everything may have changed. */
  refreshAll(): void {
    this.#wantsAll = true;
    this.#unknown.clear();
    this.#schedule(0);
  }

  clear(): void {
    this.#list.clear();
    this.#forgetBeyond();
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
    if (this.#next === undefined) this.#forgetBeyond();
    this.#changed();
  }

  async page(filter: ListFilter, after?: string, limit?: number): Promise<ConversationsPage> {
    const question = { filter, ...(after !== undefined && { after }), ...(limit !== undefined && { limit }) };
    // Of archived lines the `view` is kept right like that of any other line: the list only does not show them.
    const { conversations, next } = await (filter === "archived" ? this.#ask(question) : this.#core.asker.ask({ t: "conversations", ...question }));
    this.#changed();
    return { conversations, ...(next != null && { next }) };
  }

  async search(text: string, page: { readonly filter?: ListFilter; readonly after?: string; readonly limit?: number } = {}): Promise<ConversationsPage> {
    const { conversations, next, users } = await this.#core.asker.ask({ t: "conversations", search: text, ...page });
    this.#events.users(users ?? []);
    return { conversations, ...(next != null && { next }) };
  }

  async readAll(): Promise<void> {
    const heads = this.#list.views.map(({ id, last_seq }) => [id, last_seq] as const);
    const beyond = [...this.#beyond.keys()];
    for (;;) {
      const { more } = (await this.#http.call("POST", "/v1/users/me/read-all")) as { readonly more?: boolean };
      if (more !== true) break;
    }
    for (const [id, seq] of heads) this.#list.read(id, seq);
    for (const id of beyond) this.#beyond.delete(id);
    this.#rest = { unread: 0, mentions: 0 };
    this.#refreshStale();
    this.#changed();
  }

  /** Whether somebody looks at a line that is not there, and may be had. */
  #isMissing(id: string): boolean {
    return this.#views.get(id)?.isUsed === true && !this.#list.view(id) && !this.#unknown.has(id) && !this.#isOfAccount(id);
  }

  get #missing(): readonly string[] {
    return [...this.#views.keys()].filter((id) => this.#isMissing(id));
  }

  #forgetBeyond(): void {
    this.#beyond.clear();
    this.#rest = { unread: 0, mentions: 0 };
  }

  /** What is unread behind the loaded pages. Of what is told meanwhile the lines are read anyhow. */
  async #readBeyond(): Promise<void> {
    const asked = ++this.#asked;
    const { unread, mentions, lines } = await this.#core.asker.ask({ t: "unread" });
    this.#beyond = new Map(lines.filter(({ conversation }) => !this.#isNews(conversation, asked)).map(({ conversation, muted, ...line }) =>
      [conversation, { unread: muted === true ? 0 : line.unread, mentions: line.mentions }]));
    this.#rest = {
      unread: unread - lines.reduce((sum, line) => sum + (line.muted === true ? 0 : line.unread), 0),
      mentions: mentions - lines.reduce((sum, line) => sum + line.mentions, 0),
    };
  }

  /** Whether something was told of a line since this question. */
  #isNews(id: string, asked: number): boolean {
    return Math.max(this.#told.get(id) ?? 0, this.#moved.get(id) ?? 0) >= asked;
  }

  /** Asks for lines one by one; one that the user does not have is removed. */
  async #readSingles(ids: readonly string[]): Promise<void> {
    for (const id of ids.slice(0, SINGLES_MAX)) {
      const asked = this.#asked + 1;
      try {
        await this.#ask({ conversation: id });
      } catch (error) {
        if (!(error instanceof TidingsError) || error.retry || !ABSENT.has(error.code)) throw error;
        if (this.#isNews(id, asked)) continue;
        this.#list.remove(id);
        this.#unknown.add(id);
      }
    }
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
      const isWanting = (): boolean => this.#wantsAll || this.#list.stale.size > 0 || this.#missing.length > 0;
      for (let round = 0; round < ROUNDS_MAX && isWanting(); round++) await this.#readOnce();
      if (!this.#wantsAll) this.#list.stale.clear();
    } catch (error) {
      this.#wantsAll = false;
      this.#report(error);
    }
  }

  #report(error: unknown): void {
    if (!(error instanceof TidingsError)) throw error;
    // That the session has ended is told by the status.
    if (this.#core.link.status.get().state !== "ended") this.#core.emitter.emit("error", error);
  }

  /** Reads pages from the first on, as many as are loaded, when all may have changed; otherwise the lines that are stale or missing. */
  async #readOnce(): Promise<void> {
    if (this.#wantsAll) await this.#readPages();
    else await this.#readStale();
    this.#isRead = true;
    this.#changed();
  }

  async #readStale(): Promise<void> {
    // The latest active lines, most likely the stale ones, stand on the first page.
    if (this.#list.stale.size > 0) {
      const { conversations } = await this.#ask({ limit: PAGE_LIMIT });
      for (const { id } of conversations) this.#unknown.delete(id);
    }
    await this.#readSingles([...this.#list.stale]);
    await this.#readSingles(this.#missing);
  }

  async #readPages(): Promise<void> {
    this.#wantsAll = false;
    const stale = new Set(this.#list.stale);
    const known = new Set(this.#list.views.map(({ id }) => id));
    const asked = this.#asked + 1;
    const loaded = Math.max(PAGE_LIMIT, this.#list.size);
    const seen = new Set<string>();
    let after: string | undefined;
    do {
      const page = await this.#ask({ limit: PAGE_LIMIT, ...(after !== undefined && { after }) });
      for (const { id } of page.conversations) seen.add(id);
      after = page.next ?? undefined;
    } while (after !== undefined && seen.size < loaded);
    if (this.#list.views.some(({ id, archived }) => archived === true && !seen.has(id))) {
      const page = await this.#ask({ limit: PAGE_LIMIT, filter: "archived" });
      for (const { id } of page.conversations) seen.add(id);
    }
    if (after === undefined) this.#forgetBeyond();
    else await this.#readBeyond().catch((error: unknown) => this.#report(error)); // the list is shown all the same
    this.#next = after;
    const isNews = (id: string): boolean => this.#isNews(id, asked);
    for (const id of stale) if (!isNews(id) && !seen.has(id) && after === undefined) this.#list.stale.delete(id); // the server's list has no such line
    // Lines that came or changed while the pages were read may be missing in them, and those that somebody looks at may stand behind them: they
    // stay, and are looked for again.
    const isKept = (id: string): boolean => isNews(id) || this.#views.get(id)?.isUsed === true;
    const unsure = this.#list.views.map(({ id }) => id).filter((id) => known.has(id) && !seen.has(id) && isKept(id));
    for (const id of unsure) this.#list.stale.add(id);
    this.#list.keepOnly(new Set([...seen, ...unsure, ...this.#list.views.map(({ id }) => id).filter((id) => !known.has(id))]));
  }

  /** Asks for a page, and takes its lines, but for those of which something newer was told meanwhile. */
  async #ask(question: { readonly after?: string; readonly limit?: number; readonly filter?: ListFilter; readonly conversation?: string }): Promise<ConversationsFrame> {
    const asked = ++this.#asked;
    const page = await this.#core.asker.ask({ t: "conversations", ...question });
    for (const view of page.conversations) {
      if ((this.#told.get(view.id) ?? 0) >= asked) continue;
      this.#list.put(view);
      this.#events.read(view);
    }
    this.#events.users(page.users ?? []);
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
    const beyond = [...this.#beyond].filter(([id]) => !this.#list.view(id)).map(([, line]) => line);
    const sum = (lines: readonly Beyond[], what: keyof Beyond): number => lines.reduce((count, line) => count + line[what], 0);
    this.#cell.set({
      items,
      unread: sum(items.filter(({ muted }) => !muted), "unread") + sum(beyond, "unread") + this.#rest.unread,
      mentions: sum(items, "mentions") + sum(beyond, "mentions") + this.#rest.mentions,
      hasMore: this.#next !== undefined,
      state: this.#isRead ? "ready" : "loading",
    });
  }
}

function byActivity(a: ConversationView, b: ConversationView): number {
  return Number(b.pinned_at != null) - Number(a.pinned_at != null) || b.last_at - a.last_at || (a.id < b.id ? -1 : 1);
}
