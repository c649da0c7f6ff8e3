// Keeps the client's state in a storage: changes are gathered and committed together, the cursor with the entries that it stands for.
//
//   user            whose state it is              cursor          up to where
//   list            lines of the list              outbox/<conversation>/<id>   what is not sent
//   timeline/<id>   the newest entries and their place
import { CLIENT_CODES, TidingsError } from "../errors.js";
import type { KeyValueStorage } from "../storage/storage.js";
import type { ConversationView } from "../wire/entries.js";
import { nameOf, type OutboxItem } from "./outbox.js";
import type { Slot } from "./slots.js";
import type { Kept, Keeper } from "./stored.js";

const COMMIT_AFTER_MS = 200;
// The server is told what is stored at most so often.
const TELL_STORED_MS = 1_000;
const SLOTS_STORED_MAX = 100;
const LINES_STORED_MAX = 200;
// Of so many conversations, those that changed last.
const TIMELINES_STORED_MAX = 50;

interface StoredTimeline {
  readonly high: number;
  readonly hasOlder: boolean;
  readonly slots: readonly Slot[];
}

export interface Stored {
  readonly cursor: string | undefined;
  readonly list: readonly ConversationView[];
  /** By name: in the order of their sends. */
  readonly outbox: ReadonlyMap<string, OutboxItem>;
  readonly timelines: ReadonlyMap<string, StoredTimeline>;
}

/** Reads what was stored of this user; what another user left behind is removed. */
export async function readStored(storage: KeyValueStorage, user: string): Promise<Stored> {
  const values = await storage.read("");
  if (values.size > 0 && values.get("user") !== user) {
    await storage.clear();
    return { cursor: undefined, list: [], outbox: new Map(), timelines: new Map() };
  }
  const under = <T>(prefix: string): [string, T][] =>
    [...values].flatMap(([name, value]) => (name.startsWith(prefix) ? [[name.slice(prefix.length), value as T] as [string, T]] : []));
  return {
    cursor: values.get("cursor") as string | undefined,
    list: (values.get("list") as readonly ConversationView[] | undefined) ?? [],
    outbox: restoredOutbox(under<StoredItem>("outbox/")),
    timelines: new Map(under<StoredTimeline>("timeline/")),
  };
}

export interface StoringKeeperOptions {
  readonly user: string;
  /** Names this tab among those of the browser. */
  readonly tab: string;
  readonly storage: KeyValueStorage;
  readonly stored: Stored;
  /** Of several tabs the one with the connection stores entries and the cursor; each stores what it has not sent. */
  readonly mayWriteState: () => boolean;
}

export class StoringKeeper implements Keeper {
  readonly #user: string;
  readonly #tab: string;
  readonly #storage: KeyValueStorage;
  readonly #stored: Stored;
  readonly #mayWriteState: () => boolean;
  #kept: Kept | undefined;
  #cursor: string | undefined;
  #isCursorDirty = false;
  #isOutboxDirty = false;
  #isListDirty = false;
  #isForgotten = false;
  readonly #dirtyTimelines = new Set<string>();
  readonly #storedOutbox = new Set<string>();
  readonly #storedTimelines = new Set<string>();
  #cancelTimer: (() => void) | undefined;
  #committing: Promise<void> | undefined;
  #storedCursor: string | undefined;
  #toldCursor: string | undefined;
  #cancelTelling: (() => void) | undefined;
  #hasFailed = false;
  #endList: (() => void) | undefined;

  constructor({ user, tab, storage, stored, mayWriteState }: StoringKeeperOptions) {
    this.#user = user;
    this.#tab = tab;
    this.#storage = storage;
    this.#stored = stored;
    this.#mayWriteState = mayWriteState;
  }

  start(kept: Kept): string | undefined {
    const { cursor, list, outbox, timelines } = this.#stored;
    this.#kept = kept;
    this.#cursor = cursor;
    for (const name of outbox.keys()) this.#storedOutbox.add(name);
    for (const [id, { high, hasOlder, slots }] of timelines) {
      kept.timelines.of(id).restore(slots, high, hasOlder);
      this.#storedTimelines.add(id);
    }
    kept.list.restore(list);
    kept.outbox.restore([...outbox.values()]);
    this.#endList = kept.list.subscribe(() => this.listChanged());
    return cursor;
  }

  timelineChanged(conversation: string): void {
    this.#dirtyTimelines.add(conversation);
    this.#schedule();
  }

  /** Stored in this very turn's end: a person who has pressed "send" may close the page at once. */
  outboxChanged(): void {
    this.#isOutboxDirty = true;
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    this.#schedule(0);
  }

  listChanged(): void {
    this.#isListDirty = true;
    this.#schedule();
  }

  cursorMoved(cursor: string): void {
    this.#cursor = cursor;
    this.#isCursorDirty = true;
    this.#schedule();
  }

  forget(): void {
    this.#isForgotten = true;
    this.#cursor = undefined;
    this.#schedule();
  }

  async adopt(gone?: string): Promise<void> {
    try {
      const items = [...(await this.#storage.read("outbox/"))].map(([name, item]): [string, StoredItem] => [name.slice("outbox/".length), item as StoredItem]);
      const left = restoredOutbox(items.filter(([, { tab }]) => gone === undefined || tab === gone));
      for (const name of left.keys()) this.#storedOutbox.add(name);
      this.#kept?.outbox.restore([...left.values()]);
    } catch (cause) {
      this.#fail(cause);
    }
  }

  async close(): Promise<void> {
    this.#endList?.();
    this.#cancelTimer?.();
    this.#cancelTimer = undefined;
    await this.#committing;
    await this.#commit();
    this.#cancelTelling?.();
    await this.#storage.close();
  }

  #schedule(afterMs = COMMIT_AFTER_MS): void {
    if (!this.#kept || this.#hasFailed || this.#cancelTimer || this.#committing) return;
    this.#cancelTimer = this.#kept.core.clock.setTimer(afterMs, () => {
      this.#cancelTimer = undefined;
      this.#committing = this.#commit().finally(() => {
        this.#committing = undefined;
        if (this.#isDirty) this.#schedule(this.#isOutboxDirty ? 0 : COMMIT_AFTER_MS);
      });
    });
  }

  get #isDirty(): boolean {
    return this.#isCursorDirty || this.#isOutboxDirty || this.#isListDirty || this.#isForgotten || this.#dirtyTimelines.size > 0;
  }

  async #commit(): Promise<void> {
    const kept = this.#kept;
    if (!kept || this.#hasFailed || !this.#isDirty) return;
    // Taken together in one turn: the cursor never says more than the timelines beside it.
    const changes = new Map<string, unknown>([["user", this.#user]]);
    this.#putOutbox(kept, changes);
    const cursor = this.#mayWriteState() ? this.#putState(kept, changes) : undefined;
    const wasForgotten = this.#isForgotten;
    this.#isForgotten = this.#isCursorDirty = this.#isListDirty = false;
    this.#dirtyTimelines.clear();
    try {
      if (wasForgotten && this.#mayWriteState()) await this.#removeTimelines(changes);
      await this.#storage.commit(changes);
      if (cursor !== undefined) this.#tellStored(cursor);
    } catch (cause) {
      this.#fail(cause);
    }
  }

  #putOutbox({ outbox }: Kept, changes: Map<string, unknown>): void {
    if (!this.#isOutboxDirty) return;
    this.#isOutboxDirty = false;
    const unsent = outbox.all.filter(({ state }) => state !== "settled");
    const now = new Set(unsent.map(nameOf));
    for (const name of this.#storedOutbox) if (!now.has(name)) changes.set(`outbox/${name}`, undefined);
    for (const item of unsent) changes.set(`outbox/${nameOf(item)}`, storable(item, this.#tab));
    this.#storedOutbox.clear();
    for (const name of now) this.#storedOutbox.add(name);
  }

  #putState({ timelines, list }: Kept, changes: Map<string, unknown>): string | undefined {
    changes.set("cursor", this.#cursor);
    if (this.#isListDirty || this.#isCursorDirty) changes.set("list", list.views.slice(0, LINES_STORED_MAX));
    for (const id of this.#dirtyTimelines) {
      const { high, hasOlder, slots, isKept, isJoined } = timelines.of(id);
      const isWhole = isKept && isJoined && high !== undefined && slots.length > 0;
      const newest = slots.slice(-SLOTS_STORED_MAX);
      const stored: StoredTimeline | undefined = isWhole ? { high, hasOlder: hasOlder || newest.length < slots.length, slots: newest } : undefined;
      if (stored) {
        changes.set(`timeline/${id}`, stored);
        this.#storedTimelines.delete(id);
        this.#storedTimelines.add(id);
      } else if (this.#storedTimelines.delete(id)) changes.set(`timeline/${id}`, undefined);
    }
    for (const oldest of this.#storedTimelines) {
      if (this.#storedTimelines.size <= TIMELINES_STORED_MAX) break;
      this.#storedTimelines.delete(oldest);
      changes.set(`timeline/${oldest}`, undefined);
    }
    return this.#cursor;
  }

  async #removeTimelines(changes: Map<string, unknown>): Promise<void> {
    for (const name of (await this.#storage.read("timeline/")).keys()) if (!changes.has(name)) changes.set(name, undefined);
  }

  /** The server counts what is stored as delivered. The newest cursor is told, now or when the second is over. */
  #tellStored(cursor: string): void {
    const { core } = this.#kept ?? {};
    if (!core || !this.#storage.isDurable) return;
    this.#storedCursor = cursor;
    if (this.#cancelTelling) return;
    const tell = (): void => {
      this.#cancelTelling = undefined;
      if (this.#storedCursor === this.#toldCursor || this.#storedCursor === undefined) return;
      this.#toldCursor = this.#storedCursor;
      core.link.tell({ t: "stored", cursor: this.#storedCursor });
      this.#cancelTelling = core.clock.setTimer(TELL_STORED_MS, tell);
    };
    tell();
  }

  /** What was committed before stays, and stays right: its cursor is that of its entries. */
  #fail(cause: unknown): void {
    this.#hasFailed = true;
    const isFull = cause instanceof Error && cause.name === "QuotaExceededError";
    const code = isFull ? CLIENT_CODES.storageFull : CLIENT_CODES.storageFailed;
    this.#kept?.core.emitter.emit("storage", new TidingsError(code, `the client goes on in memory: ${String(cause)}`, { cause }));
  }
}

// An error object does not survive a structured clone as what it is.
type StoredItem = Omit<OutboxItem, "error"> & { readonly error?: { readonly code: string; readonly message: string }; readonly tab?: string };

function storable(item: OutboxItem, tab: string): StoredItem {
  const { error, ...rest } = item;
  return { ...rest, tab, ...(error && { error: { code: error.code, message: error.message } }) };
}

function restored(item: StoredItem): OutboxItem {
  const { error, tab: _, ...rest } = item;
  return error ? { ...rest, error: new TidingsError(error.code, error.message) } : rest;
}

function restoredOutbox(items: readonly [string, StoredItem][]): ReadonlyMap<string, OutboxItem> {
  const all = items.map(([name, item]): [string, OutboxItem] => [name, restored(item)]);
  return new Map(all.sort(([, a], [, b]) => a.order - b.order));
}
