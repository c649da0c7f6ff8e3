// What the tabs of one browser tell each other. Plain data: a broadcast channel copies it.
import { TidingsError } from "../errors.js";
import type { LinkEvent } from "../session/link.js";
import type { ConnectionStatus } from "../tidings.js";
import type { Attention, NoticeFrame, RequestFrame } from "../wire/client-frames.js";
import type { BoundFrame, ServerFrame } from "../wire/server-frames.js";

export interface PlainError {
  readonly code: string;
  readonly message: string;
  readonly retry: boolean;
  readonly retryAfterMs: number | undefined;
  readonly reason: string | undefined;
}

export type PlainStatus =
  | { readonly state: "connecting" }
  | { readonly state: "online"; readonly session: string }
  | { readonly state: "away"; readonly retryAt: number; readonly cause: PlainError }
  | { readonly state: "ended"; readonly error: PlainError };

export type PlainEvent =
  | { readonly type: "up"; readonly bound: BoundFrame; readonly from: string | undefined }
  | { readonly type: "down"; readonly cause: PlainError }
  | { readonly type: "frame"; readonly frame: ServerFrame }
  | { readonly type: "forget" }
  | { readonly type: "report"; readonly error: PlainError };

export type TabMessage = { readonly from: string } & (
  /** A tab that has come asks the one with the connection how things stand. */
  | { readonly is: "hello" }
  /** A tab has learnt which one has the connection: that one may have come later. */
  | { readonly is: "here" }
  /**
   * By the tab with the connection: when it becomes that, to who asks, and when it changes. `bound` while a session is live. Each
   * leader has a higher `term`, so that one that was suspended, and lost the lock meanwhile, is not believed.
   */
  | { readonly is: "state"; readonly term: number; readonly status: PlainStatus; readonly bound: BoundFrame | undefined; readonly to?: string }
  | { readonly is: "event"; readonly event: PlainEvent }
  | { readonly is: "request"; readonly id: number; readonly frame: RequestFrame }
  | { readonly is: "answer"; readonly to: string; readonly id: number; readonly answer?: unknown; readonly error?: PlainError }
  | { readonly is: "tell"; readonly frame: NoticeFrame }
  | { readonly is: "start" }
  /** Whether somebody looks at this tab: when that changes, and to a new leader. */
  | { readonly is: "attention"; readonly attention: Attention }
  /** Timers of a tab in the background are slow: those in front lend theirs. Answered with the state: the leader is alive. */
  | { readonly is: "wake" }
);

export function plainError({ code, message, retry, retryAfterMs, reason }: TidingsError): PlainError {
  return { code, message, retry, retryAfterMs, reason };
}

export function errorOf({ code, message, retry, retryAfterMs, reason }: PlainError): TidingsError {
  return new TidingsError(code, message, { retry, retryAfterMs, reason });
}

export function plainStatus(status: ConnectionStatus): PlainStatus {
  if (status.state === "away") return { ...status, cause: plainError(status.cause) };
  if (status.state === "ended") return { ...status, error: plainError(status.error) };
  return status;
}

export function statusOf(status: PlainStatus): ConnectionStatus {
  if (status.state === "away") return { ...status, cause: errorOf(status.cause) };
  if (status.state === "ended") return { ...status, error: errorOf(status.error) };
  return status;
}

export function plainEvent(event: LinkEvent): PlainEvent {
  if (event.type === "down") return { ...event, cause: plainError(event.cause) };
  if (event.type === "report") return { ...event, error: plainError(event.error) };
  return event;
}

export function eventOf(event: PlainEvent): LinkEvent {
  if (event.type === "down") return { ...event, cause: errorOf(event.cause) };
  if (event.type === "report") return { ...event, error: errorOf(event.error) };
  return event;
}
