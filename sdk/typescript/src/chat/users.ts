import { TidingsError } from "../errors.js";
import { Cell, type Observable } from "../observable.js";
import type { BlockedUser, BlocksPage, Users } from "../tidings.js";
import type { UserCard } from "../wire/entries.js";
import type { Core } from "./core.js";
import { path, query, type HttpListener } from "./http.js";
import { listOf, nextOf } from "./questions.js";

// Users that are asked for within a moment are one request.
const ASK_AFTER_MS = 10;
const USERS_PER_REQUEST = 200;

/** Names and pictures of users. Pages bring those that they show; others are asked for together, when somebody looks. */
export class UserBook implements Users {
  readonly #core: Core;
  readonly #http: HttpListener;
  readonly #cells = new Map<string, Cell<UserCard | undefined>>();
  readonly #wanted = new Set<string>();
  #timer: (() => void) | undefined;

  constructor(core: Core, http: HttpListener) {
    this.#core = core;
    this.#http = http;
  }

  of(user: string): Observable<UserCard | undefined> {
    return this.#cell(user);
  }

  async block(user: string): Promise<void> {
    await this.#http.call("PUT", path`/v1/users/me/blocks/${user}`);
  }

  async unblock(user: string): Promise<void> {
    await this.#http.call("DELETE", path`/v1/users/me/blocks/${user}`);
  }

  async blocked(page: { readonly after?: string; readonly limit?: number } = {}): Promise<BlocksPage> {
    const answer = await this.#http.call("GET", "/v1/users/me/blocks" + query({ ...page }));
    return { users: listOf<BlockedUser>(answer, "users"), ...nextOf(answer) };
  }

  know(cards: readonly UserCard[]): void {
    for (const card of cards) {
      const { id, name, avatar } = card;
      const cell = this.#cell(id);
      const known = cell.get();
      this.#wanted.delete(id);
      if (!known || known.name !== name || known.avatar !== avatar) cell.set(card);
    }
  }

  /** What changed while there was no session was not told. */
  up(): void {
    for (const [id, cell] of this.#cells) if (cell.isUsed) this.#want(id);
  }

  close(): void {
    this.#timer?.();
  }

  #cell(user: string): Cell<UserCard | undefined> {
    let cell = this.#cells.get(user);
    if (!cell) {
      cell = new Cell<UserCard | undefined>(undefined, (isUsed) => {
        if (isUsed && this.#cells.get(user)?.get() === undefined) this.#want(user);
      });
      this.#cells.set(user, cell);
    }
    return cell;
  }

  #want(user: string): void {
    this.#wanted.add(user);
    this.#timer ??= this.#core.clock.setTimer(ASK_AFTER_MS, () => {
      this.#timer = undefined;
      void this.#ask();
    });
  }

  async #ask(): Promise<void> {
    const users = [...this.#wanted];
    this.#wanted.clear();
    for (let first = 0; first < users.length; first += USERS_PER_REQUEST) {
      const some = users.slice(first, first + USERS_PER_REQUEST);
      try {
        const found = listOf<UserCard>(await this.#http.call("POST", "/v1/users/query", { users: some }), "users");
        const names = new Map(found.map(({ id, name, avatar }) => [id, { id, ...(name != null && { name }), ...(avatar != null && { avatar }) }]));
        // Who does not exist is shown by the id.
        this.know(some.map((id) => names.get(id) ?? { id }));
      } catch (error) {
        if (!(error instanceof TidingsError)) throw error; // asked for again after the next connect
      }
    }
  }
}
