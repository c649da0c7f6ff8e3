import { TidingsError } from "../errors.js";
import { Cell, type Observable } from "../observable.js";
import type { Presence } from "../tidings.js";
import type { PresenceChange } from "../wire/server-frames.js";
import type { Core } from "./core.js";

/** Watches that outlive connections: after each connect all are asked for again. */
export class PresenceBook implements Presence {
  readonly #core: Core;
  readonly #cells = new Map<string, Cell<PresenceChange | undefined>>();
  /** By user and group: how many watch. */
  readonly #watches = new Map<string, { readonly user: string; readonly conversation: string | undefined; count: number }>();

  constructor(core: Core) {
    this.#core = core;
  }

  watch(users: readonly string[], conversation?: string): () => void {
    const fresh = users.filter((user) => {
      const name = `${conversation ?? ""} ${user}`;
      const watch = this.#watches.get(name);
      if (watch) watch.count += 1;
      else this.#watches.set(name, { user, conversation, count: 1 });
      return watch === undefined;
    });
    if (fresh.length > 0) void this.#ask(fresh, conversation);
    let isOver = false;
    return () => {
      if (isOver) return;
      isOver = true;
      this.#unwatch(users, conversation);
    };
  }

  of(user: string): Observable<PresenceChange | undefined> {
    let cell = this.#cells.get(user);
    if (!cell) this.#cells.set(user, (cell = new Cell<PresenceChange | undefined>(undefined)));
    return cell;
  }

  take(changes: readonly PresenceChange[]): void {
    for (const change of changes) (this.of(change.user) as Cell<PresenceChange | undefined>).set(change);
    this.#core.emitter.emit("presence", changes);
  }

  /** A new session watches nobody. */
  up(): void {
    const byConversation = new Map<string | undefined, string[]>();
    for (const { user, conversation } of this.#watches.values()) {
      byConversation.set(conversation, [...(byConversation.get(conversation) ?? []), user]);
    }
    for (const [conversation, users] of byConversation) void this.#ask(users, conversation);
  }

  async #ask(users: readonly string[], conversation: string | undefined): Promise<void> {
    if (!this.#core.link.isUp) return; // asked for when there is a session
    try {
      const frame = { t: "watch_presence" as const, users, ...(conversation !== undefined && { conversation }) };
      const { changes } = await this.#core.link.request(frame);
      this.take(changes);
    } catch (error) {
      if (error instanceof TidingsError) {
        if (error.code !== "connection_lost") this.#core.emitter.emit("error", error);
      } else throw error;
    }
  }

  #unwatch(users: readonly string[], conversation: string | undefined): void {
    for (const user of users) {
      const name = `${conversation ?? ""} ${user}`;
      const watch = this.#watches.get(name);
      if (watch && --watch.count === 0) this.#watches.delete(name);
    }
    const still = new Set([...this.#watches.values()].map(({ user }) => user));
    const gone = users.filter((user) => !still.has(user));
    for (const user of gone) this.#cells.get(user)?.set(undefined);
    if (gone.length > 0 && this.#core.link.isUp) {
      this.#core.link.request({ t: "unwatch_presence", users: gone }).catch(() => undefined); // a new session watches nobody anyhow
    }
  }
}
