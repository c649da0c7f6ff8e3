// What this user has sent and the server does not have for sure: kept, sent in order within each conversation, each once.
//
//   queued ─sent→ asked ─answer→ settled        asked ─refusal→ refused ─retry→ queued
//     asked ─connection lost, or patience asked→ queued      (the same client_msg_id: a retry never doubles)
import { CLIENT_CODES, TidingsError } from "../errors.js";
import type { NewMessage } from "../wire/client-frames.js";
import type { Entry, SendReceipt } from "../wire/entries.js";
import type { Core } from "./core.js";
import { directPeer } from "./direct.js";
import { actorOf } from "./items.js";

const ITEMS_MAX = 1_000;
// One at a time in a conversation, so that a refusal for the moment cannot change the order; so many conversations at once.
const ASKED_MAX = 32;
const RETRY_MS = 500;
const RETRY_MS_MAX = 30_000;
const BODY_BYTES_MAX = 64 * 1024;

/** An item's name: an id is its sender's within one conversation, and a conversation's id has no `/`. */
export function nameOf({ conversation, id }: Pick<OutboxItem, "conversation" | "id">): string {
  return `${conversation}/${id}`;
}

export interface OutboxItem {
  readonly id: string;
  readonly conversation: string;
  readonly message: NewMessage;
  readonly at: number;
  /** Grows with each send of this user's browser, also within a millisecond. */
  readonly order: number;
  readonly state: "queued" | "asked" | "settled" | "refused";
  readonly error?: TidingsError;
  readonly receipt?: SendReceipt;
}

interface Promised {
  readonly resolve: (receipt: SendReceipt) => void;
  readonly reject: (error: TidingsError) => void;
}

export interface OutboxOwner {
  outboxChanged(conversation: string): void;
}

export class Outbox {
  readonly #core: Core;
  readonly #owner: OutboxOwner;
  /** Both by the item's name. */
  readonly #items = new Map<string, OutboxItem>();
  readonly #promises = new Map<string, Promised[]>();
  /** By conversation: what ends its pause, and how many refusals for the moment came in a row. */
  readonly #paused = new Map<string, () => void>();
  readonly #failures = new Map<string, number>();
  #asked = 0;
  #order = 0;
  #closed: TidingsError | undefined;

  constructor(core: Core, owner: OutboxOwner) {
    this.#core = core;
    this.#owner = owner;
  }

  /** In the order in which they were sent. */
  of(conversation: string): readonly OutboxItem[] {
    return [...this.#items.values()].filter((item) => item.conversation === conversation);
  }

  get all(): readonly OutboxItem[] {
    return [...this.#items.values()];
  }

  send(conversation: string, message: NewMessage & { readonly client_msg_id: string }): Promise<SendReceipt> {
    const id = message.client_msg_id;
    if (this.#closed) return Promise.reject(this.#closed);
    const name = nameOf({ conversation, id });
    const known = this.#items.get(name);
    const isAlike = known === undefined || JSON.stringify(known.message) === JSON.stringify(message);
    // The server has it, and the timeline is about to show it: the answer is what the server's would be.
    if (known?.receipt && isAlike) return Promise.resolve({ ...known.receipt, duplicate: true });
    const promise = new Promise<SendReceipt>((resolve, reject) => {
      if (known && !isAlike && known.state !== "refused") {
        reject(new TidingsError("client_msg_id_reused", `client_msg_id: "${id}" is that of another message of this conversation`));
      } else this.#promises.set(name, [...(this.#promises.get(name) ?? []), { resolve, reject }]);
    });
    // The message in the timeline tells the same: a promise that nobody looks at is no unhandled rejection.
    promise.catch(() => undefined);
    if (known && (isAlike || known.state !== "refused")) {
      if (isAlike) this.retry(conversation, id);
      return promise;
    }
    const item: OutboxItem = { id, conversation, message, at: this.#core.clock.now(), order: this.#nextOrder(), state: "queued" };
    const unsent = this.all.filter(({ state }) => state === "queued" || state === "asked").length;
    const bytes = new TextEncoder().encode(JSON.stringify(message.body)).length;
    this.#items.delete(name); // one that was refused: this stands last
    this.#items.set(name, item);
    if (unsent >= ITEMS_MAX) this.#refuse(item, new TidingsError(CLIENT_CODES.outboxFull, `${ITEMS_MAX} messages wait to be sent`));
    else if (bytes > BODY_BYTES_MAX) {
      this.#refuse(item, new TidingsError("limit_exceeded", `body: at most ${BODY_BYTES_MAX} bytes of JSON, these are ${bytes}`));
    } else this.#changed(conversation);
    this.flush();
    return promise;
  }

  /** Items of an earlier page, or of another tab that has gone. */
  restore(items: readonly OutboxItem[]): void {
    for (const item of items) {
      if (this.#items.has(nameOf(item))) continue;
      this.#items.set(nameOf(item), item.state === "refused" ? item : { ...item, state: "queued" });
      this.#changed(item.conversation);
    }
    this.flush();
  }

  retry(conversation: string, id: string): void {
    const item = this.#items.get(nameOf({ conversation, id }));
    if (item?.state !== "refused") return;
    const { error: _, ...kept } = item;
    this.#put({ ...kept, state: "queued" });
    this.flush();
  }

  /** Removes what was refused or not sent yet. */
  discard(conversation: string, id: string): boolean {
    const item = this.#items.get(nameOf({ conversation, id }));
    if (!item || (item.state !== "refused" && item.state !== "queued")) return false;
    this.#items.delete(nameOf(item));
    this.#promisesOf(nameOf(item)).forEach(({ reject }) => reject(new TidingsError(CLIENT_CODES.discarded, "the app discarded the message")));
    this.#changed(item.conversation);
    return true;
  }

  /** An entry of this user came: it settles the send that made it, also when the answer got lost. */
  see(entry: Entry): void {
    const { conversation, client_msg_id: id } = entry;
    const item = id == null ? undefined : this.#items.get(nameOf({ conversation, id }));
    if (item === undefined || entry.kind !== "message" || actorOf(entry) !== this.#core.me) return;
    if (item.state !== "settled") this.#settle(item, { conversation: entry.conversation, seq: entry.seq, at: entry.at });
  }

  /** Settled items that the timeline shows by itself now are needed no more. */
  dropSettled(conversation: string, isShown: (seq: number) => boolean): void {
    for (const item of this.of(conversation)) {
      if (item.state === "settled" && item.receipt && isShown(item.receipt.seq)) this.#items.delete(nameOf(item));
    }
  }

  /** Sends what can be sent now. */
  flush(): void {
    if (!this.#core.link.isUp) return;
    const busy = new Set<string>(this.#paused.keys());
    for (const item of this.#items.values()) {
      if (item.state === "asked") busy.add(item.conversation);
      if (item.state !== "queued" || busy.has(item.conversation) || this.#asked >= ASKED_MAX) continue;
      busy.add(item.conversation);
      void this.#ask(item);
    }
  }

  /** A new connection: what was paused may be sent at once. */
  unpause(): void {
    for (const cancel of this.#paused.values()) cancel();
    this.#paused.clear();
    this.flush();
  }

  /** Nothing is sent any more; what was not sent stays where it is stored. */
  close(error: TidingsError): void {
    this.#closed = error;
    for (const cancel of this.#paused.values()) cancel();
    for (const name of [...this.#promises.keys()]) this.#promisesOf(name).forEach(({ reject }) => reject(error));
  }

  async #ask(item: OutboxItem): Promise<void> {
    this.#asked += 1;
    this.#put({ ...item, state: "asked" });
    const peer = directPeer(item.conversation, this.#core.me);
    const destination = peer === undefined ? { conversation: item.conversation } : { to: peer };
    try {
      const receipt = await this.#core.link.request({ t: "send", ...destination, ...item.message });
      this.#answered(nameOf(item), receipt);
      this.#resume(item.conversation);
    } catch (error) {
      const now = this.#items.get(nameOf(item));
      if (now?.state === "asked") this.#fail(now, error);
    } finally {
      this.#asked -= 1;
      this.flush();
    }
  }

  #fail(item: OutboxItem, cause: unknown): void {
    const error = cause instanceof TidingsError ? cause : new TidingsError(CLIENT_CODES.protocol, String(cause));
    if (!error.retry) {
      this.#refuse(item, error);
      return;
    }
    this.#put({ ...item, state: "queued" });
    // Sent again when there is one. A link that says it is up all the same is given time, or it would be asked without an end.
    if (error.code === CLIENT_CODES.connectionLost && !this.#core.link.isUp) return;
    const failures = this.#failures.get(item.conversation) ?? 0;
    this.#failures.set(item.conversation, failures + 1);
    const ms = error.retryAfterMs ?? Math.min(RETRY_MS_MAX, RETRY_MS * 2 ** failures);
    const cancel = this.#core.clock.setTimer(ms, () => {
      this.#paused.delete(item.conversation);
      this.flush();
    });
    this.#paused.set(item.conversation, cancel);
  }

  #resume(conversation: string): void {
    this.#paused.get(conversation)?.();
    this.#paused.delete(conversation);
    this.#failures.delete(conversation);
  }

  #answered(name: string, receipt: SendReceipt): void {
    const item = this.#items.get(name);
    if (item && item.state !== "settled") this.#settle(item, receipt);
  }

  #settle(item: OutboxItem, receipt: SendReceipt): void {
    const { error: _, ...kept } = item;
    this.#put({ ...kept, state: "settled", receipt });
    this.#promisesOf(nameOf(item)).forEach(({ resolve }) => resolve(receipt));
  }

  #refuse(item: OutboxItem, error: TidingsError): void {
    this.#put({ ...item, state: "refused", error });
    this.#promisesOf(nameOf(item)).forEach(({ reject }) => reject(error));
  }

  #promisesOf(name: string): readonly Promised[] {
    const promised = this.#promises.get(name) ?? [];
    this.#promises.delete(name);
    return promised;
  }

  #nextOrder(): number {
    this.#order = Math.max(this.#order + 1, this.#core.clock.now() * 1_000);
    return this.#order;
  }

  #put(item: OutboxItem): void {
    this.#items.set(nameOf(item), item);
    this.#changed(item.conversation);
  }

  #changed(conversation: string): void {
    this.#owner.outboxChanged(conversation);
  }
}
