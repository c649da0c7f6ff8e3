// The states of a session, what happens to it, and what it wants done. All plain data.
import type { TidingsError } from "../errors.js";
import type { ConnectionStatus } from "../tidings.js";
import type { ClientFrame } from "../wire/client-frames.js";
import type { BoundFrame, ErrorFrame, ServerFrame } from "../wire/server-frames.js";

/** What the bind says besides token and cursor. */
export interface Identity {
  readonly deviceId: string;
  readonly deviceKind: string;
  readonly appVersion: string | undefined;
  readonly push: boolean;
  readonly compact: boolean;
}

/** Where the connection is. Each attempt has an `epoch`, so that what is left of an older one is known and ignored. */
export type Phase =
  | { readonly at: "idle" }
  | { readonly at: "token" }
  | { readonly at: "opening"; readonly token: string }
  | { readonly at: "binding"; readonly token: string }
  | {
      readonly at: "live";
      readonly token: string;
      readonly since: number;
      readonly heardAt: number;
      readonly bound: BoundFrame;
      /** The token that was sent to replace `token`, until the server has answered. */
      readonly refreshing: string | undefined;
    }
  | { readonly at: "waiting"; readonly until: number; readonly isServersTime: boolean }
  | { readonly at: "ended"; readonly error: TidingsError };

export interface SessionState {
  readonly identity: Identity;
  readonly phase: Phase;
  readonly epoch: number;
  /** Attempts in a row that did not hold. */
  readonly failures: number;
  readonly cursor: string | undefined;
  /** A token that was refused, and how many were in a row. */
  readonly refused: { readonly token: string; readonly code: string; readonly count: number } | undefined;
  /** What the server said before it closed. */
  readonly goodbye: ErrorFrame | undefined;
  readonly reconnectAfterMs: number | undefined;
}

export type SessionEvent =
  /** The app wants a session: at the start, after `ended`, or without waiting. */
  | { readonly type: "start" }
  /** The network may be back: a wait ends, unless the server set it. */
  | { readonly type: "wake" }
  | { readonly type: "token"; readonly epoch: number; readonly token: string | null }
  | { readonly type: "token_failed"; readonly epoch: number; readonly error: TidingsError }
  | { readonly type: "opened"; readonly epoch: number }
  | { readonly type: "frame"; readonly epoch: number; readonly frame: ServerFrame }
  /** A frame that this client does not know. */
  | { readonly type: "heard"; readonly epoch: number }
  /** Bytes that are no frame. */
  | { readonly type: "garbage"; readonly epoch: number; readonly why: string }
  | { readonly type: "closed"; readonly epoch: number; readonly code: number; readonly reason: string }
  | { readonly type: "timer"; readonly name: TimerName }
  | { readonly type: "stop" };

/** `handshake` bounds opening and binding, `beat` keeps the session alive, `retry` ends a wait, `refresh` precedes the token's end. */
export type TimerName = "handshake" | "beat" | "retry" | "refresh";

export type Effect =
  | { readonly do: "fetch_token"; readonly epoch: number }
  | { readonly do: "open"; readonly epoch: number }
  | { readonly do: "send"; readonly frame: ClientFrame }
  /** Lets go of the socket: nothing more is heard of it. */
  | { readonly do: "drop"; readonly code: number }
  | { readonly do: "set_timer"; readonly name: TimerName; readonly ms: number }
  | { readonly do: "clear_timer"; readonly name: TimerName }
  | { readonly do: "status"; readonly status: ConnectionStatus }
  /** The session is live; `from` is the cursor that it was resumed with. */
  | { readonly do: "up"; readonly bound: BoundFrame; readonly from: string | undefined }
  | { readonly do: "down"; readonly cause: TidingsError }
  /** The stored messages are of no use any more. */
  | { readonly do: "forget" }
  | { readonly do: "deliver"; readonly frame: ServerFrame }
  | { readonly do: "report"; readonly error: TidingsError };

/** What comes from outside at each step, so that a run can be repeated. */
export interface Surroundings {
  readonly now: number;
  /** In [0, 1). */
  readonly random: number;
}

export type Step = readonly [SessionState, readonly Effect[]];
