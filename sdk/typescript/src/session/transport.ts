// What carries a session's frames: a WebSocket, or an event stream with requests beside it. The session does not know which.

/** What carries a session: a WebSocket, or an event stream with requests beside it. */
export type TransportName = "websocket" | "event-stream";

export interface TransportHandlers {
  /** Frames can be sent from here on: the bind first. */
  opened(): void;
  text(data: unknown): void;
  /** Called once; never again after `drop`. */
  closed(code: number, reason: string): void;
}

export interface AttemptHandlers extends TransportHandlers {
  /** A server has answered: what it says now is about the session, not about the way to it. */
  reached(): void;
}

export interface OpenedTransport {
  send(text: string): void;
  /** Closes, and tells nothing more. */
  drop(code: number): void;
}

/** Opens a connection and tells what happens to it, each thing in a later turn of the event loop. */
export type OpenTransport<Handlers extends TransportHandlers = TransportHandlers> = (handlers: Handlers) => OpenedTransport;

export interface Transport {
  readonly name: TransportName;
  readonly open: OpenTransport<AttemptHandlers>;
}

/** The close code of a connection that ended without a goodbye. */
export const BROKEN = 1006;
