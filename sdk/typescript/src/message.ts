// What an app sees of a timeline.
import type { TidingsError } from "./errors.js";
import type { ExpiresAt, Mark, Reaction, ReplyQuote } from "./wire/entries.js";
import type { Json } from "./wire/json.js";

/** What a message has in whatever state. */
export interface MessageContent {
  /** Tells messages and notices apart. */
  readonly is: "message";
  /** Stays the same from pending to sent: a key for lists. */
  readonly key: string;
  /** The conversation that it stands in. */
  readonly conversation: string;
  /** Absent when the conversation itself (an app server) speaks. */
  readonly from: string | undefined;
  /** Of what an account says: the agent who wrote it, where this user may know. */
  readonly agent: string | undefined;
  /** Milliseconds since 1970 UTC; of what is not sent, by this device's clock. */
  readonly at: number;
  /** The app's kind of content, `text` for most. */
  readonly type: string;
  /** The content, as it is now. */
  readonly body: Json;
  /** The users whom it mentions; `@all` for everybody. */
  readonly mentions: readonly string[];
  /** It is neither counted as unread nor pushed to offline devices. */
  readonly silent: boolean;
  /** The id that its sender gave it. */
  readonly clientMsgId: string | undefined;
  /** The message that it answers, as that is now. */
  readonly replyTo: ReplyQuote | undefined;
}

/** A message that the server has. */
export interface SentMessage extends MessageContent {
  /** Tells the states of a message apart. */
  readonly state: "sent";
  /** Its number in the conversation's timeline: what `edit`, `react` and the like take. */
  readonly seq: number;
  /** 1, and one more with each edit. */
  readonly version: number;
  /** Who edited it last, and when. */
  readonly edited: Mark | undefined;
  /** The body was taken back: `body` is null. */
  readonly recalled: Mark | undefined;
  /** What users reacted with. */
  readonly reactions: readonly Reaction[];
  /** Who pinned it, and when. */
  readonly pinned: Mark | undefined;
  /** The message still grows, or its sender was lost. */
  readonly growing: "open" | "interrupted" | undefined;
  /** When it disappears: then `recalled` says `expired`. */
  readonly expires: ExpiresAt | undefined;
}

/** A message of this user that waits to be sent, or for the server's answer. */
export interface PendingMessage extends MessageContent {
  /** Tells the states of a message apart. */
  readonly state: "pending";
}

/** A message of this user that the server refused: `retry` or `discard` it by its `clientMsgId`. */
export interface RefusedMessage extends MessageContent {
  /** Tells the states of a message apart. */
  readonly state: "refused";
  /** Why. */
  readonly error: TidingsError;
}

/** A message in whatever state; `state` tells which fields it has. */
export type Message = SentMessage | PendingMessage | RefusedMessage;

/** A change of the conversation that stands in its timeline. */
export interface Notice {
  /** Tells messages and notices apart. */
  readonly is: "notice";
  /** A key for lists. */
  readonly key: string;
  /** The conversation that it stands in. */
  readonly conversation: string;
  /** Its number in the conversation's timeline. */
  readonly seq: number;
  /** What changed: who is a member, or the conversation's details. */
  readonly kind: "member_change" | "conversation_change";
  /** Who made the change; absent when the app server did. */
  readonly from: string | undefined;
  /** Milliseconds since 1970 UTC. */
  readonly at: number;
  /** The server's word for the change (docs/chat.md). */
  readonly type: string;
  /** What changed. */
  readonly body: Json;
}

/** What stands in a timeline; `is` tells which. */
export type TimelineItem = Message | Notice;

/** The text of a body `{"text": …}` or of a body that is a string, as most apps have it. */
export function textOf(message: { readonly body: Json }): string | undefined {
  const { body } = message;
  if (typeof body === "string") return body;
  if (body === null || typeof body !== "object" || Array.isArray(body)) return undefined;
  const text = (body as { readonly [name: string]: Json })["text"];
  return typeof text === "string" ? text : undefined;
}
