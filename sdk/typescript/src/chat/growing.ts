// The chunks of a message that grows while it is read.
import { textOfBytes } from "../platform.js";
import type { Json, JsonObject } from "../wire/json.js";
import type { StreamFrame } from "../wire/server-frames.js";
import type { MessageSlot } from "./slots.js";

/** Adds a chunk to a message; undefined: chunks before it are missing, so the message has to be read again. */
export function grow(slot: MessageSlot, chunk: StreamFrame): MessageSlot | undefined {
  const { entry } = slot;
  if (entry.stream === undefined || entry.recalled) return slot; // it has ended: a late chunk
  const text = growingText(entry.body);
  const bytes = new TextEncoder().encode(text);
  if (chunk.offset > bytes.length) return undefined;
  const added = new TextEncoder().encode(chunk.text);
  const known = bytes.length - chunk.offset;
  if (known >= added.length) return slot; // it came before
  const news = textOfBytes(added.subarray(known));
  return { ...slot, entry: { ...entry, stream: "open", body: withText(entry.body, text + news) } };
}

function growingText(body: Json): string {
  if (typeof body === "string") return body;
  const text = isObject(body) ? body["text"] : undefined;
  return typeof text === "string" ? text : "";
}

function withText(body: Json, text: string): Json {
  if (typeof body === "string") return text;
  return isObject(body) ? { ...body, text } : { text };
}

function isObject(value: Json): value is JsonObject {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
