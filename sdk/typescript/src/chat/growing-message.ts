import type { GrowingMessage } from "../conversation.js";
import type { SendReceipt } from "../wire/entries.js";
import type { Json, JsonObject } from "../wire/json.js";
import type { Core } from "./core.js";

/** The writer's side of a message that grows. */
export class GrowingSend implements GrowingMessage {
  readonly conversation: string;
  readonly seq: number;
  readonly #core: Core;
  readonly #body: Json;
  readonly #endListening: () => void;
  #text: string;
  #offset: number;
  /** Chunks may have been lost with a connection: the end then carries the whole body. */
  #isBroken = false;

  constructor(core: Core, receipt: SendReceipt, body: Json) {
    this.#core = core;
    this.conversation = receipt.conversation;
    this.seq = receipt.seq;
    this.#body = body;
    this.#text = textOf(body);
    this.#offset = sizeOf(this.#text);
    this.#endListening = core.link.listen((event) => {
      if (event.type === "down") this.#isBroken = true;
    });
  }

  append(text: string): void {
    if (text === "") return;
    this.#text += text;
    if (!this.#core.link.isUp) this.#isBroken = true;
    if (this.#isBroken) return;
    const { conversation, seq } = this;
    this.#core.link.tell({ t: "stream_append", conversation, seq, offset: this.#offset, text });
    this.#offset += sizeOf(text);
  }

  async end(body?: Json): Promise<SendReceipt> {
    this.#endListening();
    const { conversation, seq } = this;
    const whole = body ?? (this.#isBroken ? this.#whole() : undefined);
    return this.#core.asker.ask({ t: "stream_end", conversation, seq, ...(whole !== undefined && { body: whole }) });
  }

  #whole(): Json {
    if (typeof this.#body === "string") return this.#text;
    return isObject(this.#body) ? { ...this.#body, text: this.#text } : { text: this.#text };
  }
}

function isObject(value: Json): value is JsonObject {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

function textOf(body: Json): string {
  if (typeof body === "string") return body;
  const text = isObject(body) ? body["text"] : undefined;
  return typeof text === "string" ? text : "";
}

const sizeOf = (text: string): number => new TextEncoder().encode(text).length;
