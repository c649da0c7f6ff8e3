// What outlives the page, seen from the client: told of what changes, and asked once at the start.
import type { Core } from "./core.js";
import type { ListKeeper } from "./list-keeper.js";
import type { Outbox } from "./outbox.js";
import type { Timelines } from "./timelines.js";

export interface Kept {
  readonly core: Core;
  readonly timelines: Timelines;
  readonly outbox: Outbox;
  readonly list: ListKeeper;
}

export interface Keeper {
  /** Puts back what was stored, and answers with its cursor. */
  start(kept: Kept): string | undefined;
  timelineChanged(conversation: string): void;
  outboxChanged(): void;
  listChanged(): void;
  cursorMoved(cursor: string): void;
  /** Of several tabs this one has the connection: it sends what others have left unsent, or what the tab `gone` has. */
  adopt(gone?: string): Promise<void>;
  /** Everything is of no use any more, but for what is not sent. */
  forget(): void;
  close(): Promise<void>;
}

/** Keeps nothing beyond the page. */
export const forgetfulKeeper: Keeper = {
  start: () => undefined,
  timelineChanged: () => undefined,
  outboxChanged: () => undefined,
  listChanged: () => undefined,
  cursorMoved: () => undefined,
  adopt: () => Promise.resolve(),
  forget: () => undefined,
  close: () => Promise.resolve(),
};
