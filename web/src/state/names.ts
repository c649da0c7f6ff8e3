import type { Observable, Tidings } from "@tidings/client";
import { Cell } from "./cell.js";

/** What stands for all members in a message's mentions. No user has this id. */
export const EVERYBODY = "@all";

/** Users' names for display; the id until the card has come, and where there is none. */
export class Names {
  readonly #tidings: Tidings;
  readonly #cells = new Map<string, Cell<string>>();

  constructor(tidings: Tidings, known: readonly { readonly id: string; readonly name: string }[]) {
    this.#tidings = tidings;
    this.#cells.set(EVERYBODY, new Cell("all"));
    for (const { id, name } of known) this.#cells.set(id, new Cell(name));
  }

  of(user: string): Observable<string> {
    let cell = this.#cells.get(user);
    if (!cell) {
      this.#cells.set(user, (cell = new Cell(user)));
      void this.#ask(user, cell);
    }
    return cell;
  }

  async #ask(user: string, cell: Cell<string>): Promise<void> {
    try {
      const card = (await this.#tidings.http("GET", `/v1/users/${encodeURIComponent(user)}`)) as { readonly name?: string };
      if (card.name) cell.set(card.name);
    } catch {
      this.#cells.delete(user); // asked again when the name is next drawn
    }
  }
}
