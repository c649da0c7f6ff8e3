import { BROKEN, type AttemptHandlers, type OpenedTransport, type Transport } from "./transport.js";

/** What the client uses of a WebSocket: browsers' own and the class of `ws` both fit. */
export interface SocketLike {
  /** 1 while it is open. */
  readonly readyState: number;
  /** Called when it has opened. */
  onopen: ((event: never) => void) | null;
  /** Called with `data`, the text of a message. */
  onmessage: ((event: never) => void) | null;
  /** Called with `code` and `reason` when it is over. */
  onclose: ((event: never) => void) | null;
  /** Called when it broke; `onclose` follows. */
  onerror: ((event: never) => void) | null;
  /** Sends a message. */
  send(text: string): void;
  /** Closes it. */
  close(code?: number, reason?: string): void;
}

/** A class of WebSockets. */
export type WebSocketConstructor = new (url: string) => SocketLike;

const OPEN = 1;

/** Sessions over WebSockets. */
export function webSockets(WebSocket: WebSocketConstructor, url: string): Transport {
  return { name: "websocket", open: (handlers) => openSocket(WebSocket, url, handlers) };
}

function openSocket(WebSocket: WebSocketConstructor, url: string, handlers: AttemptHandlers): OpenedTransport {
  let isOver = false;
  const end = (code: number, reason: string): void => {
    if (isOver) return;
    isOver = true;
    handlers.closed(code, reason);
  };
  let socket: SocketLike;
  try {
    socket = new WebSocket(url);
  } catch (error) {
    // An address that no socket can have, or a page that may open none: told as a connection that broke.
    queueMicrotask(() => end(BROKEN, String(error)));
    return { send: () => undefined, drop: () => void (isOver = true) };
  }
  socket.onopen = () => {
    if (isOver) return;
    handlers.reached();
    handlers.opened();
  };
  socket.onmessage = (event: { readonly data?: unknown }) => {
    if (!isOver) handlers.text(event.data);
  };
  socket.onclose = (event: { readonly code?: number; readonly reason?: unknown }) => {
    end(event.code ?? BROKEN, typeof event.reason === "string" ? event.reason : "");
  };
  // A close event follows; without a handler the package `ws` would throw.
  socket.onerror = () => undefined;
  return {
    send: (text) => {
      if (!isOver && socket.readyState === OPEN) socket.send(text);
    },
    drop: (code) => {
      isOver = true;
      try {
        socket.close(code);
      } catch {
        // A socket that never opened may refuse; it is let go either way.
      }
    },
  };
}
