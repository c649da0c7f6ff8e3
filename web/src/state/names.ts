import type { Observable, Tidings } from "@tidings/client";
import { Cell } from "./cell.js";

/** What stands for all members in a message's mentions. No user has this id. */
export const EVERYBODY = "@all";

/** Users' names for display; the id until the card has come, and where there is none. */
export class Names {
  readonly #tidings: Tidings;
  readonly #known: ReadonlyMap<string, string>;
  readonly #names = new Map<string, Observable<string>>([[EVERYBODY, new Cell("all")]]);

  constructor(tidings: Tidings, known: readonly { readonly id: string; readonly name: string }[]) {
    this.#tidings = tidings;
    this.#known = new Map(known.map(({ id, name }) => [id, name]));
  }

  of(user: string): Observable<string> {
    let name = this.#names.get(user);
    if (!name) {
      const card = this.#tidings.users.of(user);
      name = { get: () => card.get()?.name ?? this.#known.get(user) ?? user, subscribe: card.subscribe };
      this.#names.set(user, name);
    }
    return name;
  }
}
