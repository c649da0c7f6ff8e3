// The pieces of a message that grows while it is read.
import type { Json, JsonObject } from "../wire/json.js";
import type { StreamFrame } from "../wire/server-frames.js";
import type { MessageSlot } from "./slots.js";

/** Adds a piece to a message; undefined: pieces before it are missing, so the message has to be read again. */
export function grow(slot: MessageSlot, piece: StreamFrame): MessageSlot | undefined {
  const { entry } = slot;
  if (entry.stream === undefined || entry.recalled) return slot; // it has ended: a late piece
  const text = growingText(entry.body);
  const bytes = new TextEncoder().encode(text);
  if (piece.offset > bytes.length) return undefined;
  const added = new TextEncoder().encode(piece.text);
  const known = bytes.length - piece.offset;
  if (known >= added.length) return slot; // it came before
  const news = new TextDecoder().decode(added.subarray(known));
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
