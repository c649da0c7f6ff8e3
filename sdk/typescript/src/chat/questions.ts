// What is asked about a conversation over HTTP, where no frame is for it.
import type {
  EntriesPage, Invite, JoinRequest, JoinRequestsPage, MadeInvite, Member, MembersPage, MessageReceipts, MessageVersion, ReactionsPage, Restriction, RestrictionKind, RestrictionsPage, UserReaction,
} from "../conversation.js";
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
    await this.#http.call("POST", this.#path("/members"), change);
  }

  async restrict(user: string, restriction: { readonly kind: RestrictionKind; readonly until?: number; readonly reason?: string }): Promise<void> {
    await this.#http.call("PUT", this.#path(path`/restrictions/${user}`), restriction);
  }

  async liftRestriction(user: string, kind: RestrictionKind): Promise<void> {
    await this.#http.call("DELETE", this.#path(path`/restrictions/${user}` + query({ kind })));
  }

  async restrictions(page: Page & { readonly kind?: RestrictionKind }): Promise<RestrictionsPage> {
    const answer = await this.#get("/restrictions" + query({ ...page }));
    return { restrictions: listOf<Restriction>(answer, "restrictions"), ...nextOf(answer) };
  }

  async handOver(to: string): Promise<void> {
    await this.#http.call("POST", this.#path("/owner"), { to });
  }

  async createInvite(invite: { readonly expires_at?: number; readonly uses_max?: number }): Promise<MadeInvite> {
    return (await this.#http.call("POST", this.#path("/invites"), invite)) as MadeInvite;
  }

  async invites(): Promise<readonly Invite[]> {
    return listOf<Invite>(await this.#get("/invites"), "invites");
  }

  async revokeInvite(id: string): Promise<void> {
    await this.#http.call("DELETE", this.#path(path`/invites/${id}`));
  }

  async askToJoin(text: string | undefined): Promise<void> {
    await this.#http.call("POST", this.#path("/join-requests"), { ...(text !== undefined && { text }) });
  }

  async joinRequest(user: string): Promise<JoinRequest> {
    return (await this.#get(path`/join-requests/${user}`)) as JoinRequest;
  }

  async joinRequests(page: Page): Promise<JoinRequestsPage> {
    const answer = await this.#get("/join-requests" + query({ ...page }));
    return { requests: listOf<JoinRequest>(answer, "requests"), ...nextOf(answer) };
  }

  async approveJoinRequest(user: string): Promise<void> {
    await this.#http.call("POST", this.#path(path`/join-requests/${user}/approve`));
  }

  async refuseJoinRequest(user: string, reason: string | undefined): Promise<void> {
    await this.#http.call("POST", this.#path(path`/join-requests/${user}/refuse`), { ...(reason !== undefined && { reason }) });
  }

  async mute(muted: boolean, until: number | undefined): Promise<void> {
    await this.#http.call("PUT", path`/v1/users/me/conversations/${this.#id}/mute`, { muted, ...(until !== undefined && { until }) });
  }

  #get(rest: string): Promise<unknown> {
    return this.#http.call("GET", this.#path(rest));
  }

  #path(rest: string): string {
    return path`/v1/conversations/${this.#id}` + rest;
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
