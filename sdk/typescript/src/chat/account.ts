// An account that answers, as one of its agents sees it.
import type { Account, AccountListOptions, ConversationsPage } from "../tidings.js";
import type { Asker } from "./asker.js";

export class AccountDesk implements Account {
  readonly id: string;
  readonly #asker: Asker;

  constructor(id: string, asker: Asker) {
    this.id = id;
    this.#asker = asker;
  }

  async conversations({ assignedTo, filter, after, limit }: AccountListOptions = {}): Promise<ConversationsPage> {
    const { conversations, next } = await this.#asker.ask({
      t: "conversations",
      account: this.id,
      ...(assignedTo !== undefined && { assigned_to: assignedTo }),
      ...(filter !== undefined && { filter }),
      ...(after !== undefined && { after }),
      ...(limit !== undefined && { limit }),
    });
    return { conversations, ...(next != null && { next }) };
  }
}
