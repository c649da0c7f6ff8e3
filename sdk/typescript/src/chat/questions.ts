// What is asked about a conversation over HTTP, where no frame is for it.
import type { EntriesPage, Member, MembersPage, MessageReceipts, MessageVersion, ReactionsPage, UserReaction } from "../conversation.js";
import type { Entry, Role } from "../wire/entries.js";
import { path, query, type HttpListener } from "./http.js";

interface Page {
  readonly after?: string;
  readonly limit?: number;
}

export class Questions {
  readonly #http: HttpListener;
  readonly #id: string;

  constructor(http: HttpListener, id: string) {
    this.#http = http;
    this.#id = id;
  }

  async replies(seq: number, page: Page): Promise<EntriesPage> {
    const answer = await this.#get(path`/messages/${seq}/replies` + query({ ...page }));
    return { entries: listOf<Entry>(answer, "entries"), ...nextOf(answer) };
  }

  async pins(): Promise<readonly Entry[]> {
    return listOf<Entry>(await this.#get("/pins"), "entries");
  }

  async versions(seq: number): Promise<readonly MessageVersion[]> {
    return listOf<MessageVersion>(await this.#get(path`/messages/${seq}/versions`), "versions");
  }

  async reactions(seq: number, page: Page & { readonly key?: string }): Promise<ReactionsPage> {
    const answer = await this.#get(path`/messages/${seq}/reactions` + query({ ...page }));
    return { reactions: listOf<UserReaction>(answer, "reactions"), ...nextOf(answer) };
  }

  async receipts(seq: number): Promise<MessageReceipts> {
    return (await this.#get(path`/messages/${seq}/receipts`)) as MessageReceipts;
  }

  async members(page: Page): Promise<MembersPage> {
    const answer = await this.#get("/members" + query({ ...page }));
    return { members: listOf<Member>(answer, "members"), ...nextOf(answer) };
  }

  async changeMembers(change: { readonly add?: readonly string[]; readonly remove?: readonly string[]; readonly role?: Role }): Promise<void> {
    await this.#http.call("POST", path`/v1/conversations/${this.#id}` + "/members", change);
  }

  async mute(muted: boolean, until: number | undefined): Promise<void> {
    await this.#http.call("PUT", path`/v1/users/me/conversations/${this.#id}/mute`, { muted, ...(until !== undefined && { until }) });
  }

  #get(rest: string): Promise<unknown> {
    return this.#http.call("GET", path`/v1/conversations/${this.#id}` + rest);
  }
}

export function listOf<T>(answer: unknown, name: string): readonly T[] {
  const list = (answer as { readonly [name: string]: unknown } | undefined)?.[name];
  return Array.isArray(list) ? (list as readonly T[]) : [];
}

export function nextOf(answer: unknown): { readonly next?: string } {
  const next = (answer as { readonly next?: unknown } | undefined)?.next;
  return typeof next === "string" ? { next } : {};
}
