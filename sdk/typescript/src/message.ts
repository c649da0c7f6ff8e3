// What an app sees of a timeline.
import type { TidingsError } from "./errors.js";
import type { Mark, Reaction, ReplyQuote } from "./wire/entries.js";
import type { Json } from "./wire/json.js";

interface MessageContent {
  readonly is: "message";
  /** Stays the same from pending to sent: a key for lists. */
  readonly key: string;
  readonly conversation: string;
  /** Absent when the conversation itself (an app server) speaks. */
  readonly from: string | undefined;
  /** Milliseconds since 1970 UTC; of what is not sent, by this device's clock. */
  readonly at: number;
  readonly type: string;
  readonly body: Json;
  readonly mentions: readonly string[];
  readonly silent: boolean;
  readonly clientMsgId: string | undefined;
  readonly replyTo: ReplyQuote | undefined;
}

/** A message that the server has. */
export interface SentMessage extends MessageContent {
  readonly state: "sent";
  readonly seq: number;
  /** 1, and one more with each edit. */
  readonly version: number;
  readonly edited: Mark | undefined;
  /** The body was taken back: `body` is null. */
  readonly recalled: Mark | undefined;
  readonly reactions: readonly Reaction[];
  readonly pinned: Mark | undefined;
  /** The message still grows, or its sender was lost. */
  readonly growing: "open" | "interrupted" | undefined;
}

/** A message of this user that waits to be sent, or for the server's answer. */
export interface PendingMessage extends MessageContent {
  readonly state: "pending";
}

/** A message of this user that the server refused: `retry` or `discard` it by its `clientMsgId`. */
export interface RefusedMessage extends MessageContent {
  readonly state: "refused";
  readonly error: TidingsError;
}

export type Message = SentMessage | PendingMessage | RefusedMessage;

/** A change of the conversation that stands in its timeline. */
export interface Notice {
  readonly is: "notice";
  readonly key: string;
  readonly conversation: string;
  readonly seq: number;
  readonly kind: "member_change" | "conversation_change";
  readonly from: string | undefined;
  readonly at: number;
  readonly type: string;
  readonly body: Json;
}

export type TimelineItem = Message | Notice;

/** The text of a body `{"text": …}` or of a body that is a string, as most apps have it. */
export function textOf(message: { readonly body: Json }): string | undefined {
  const { body } = message;
  if (typeof body === "string") return body;
  if (body === null || typeof body !== "object" || Array.isArray(body)) return undefined;
  const text = (body as { readonly [name: string]: Json })["text"];
  return typeof text === "string" ? text : undefined;
}
