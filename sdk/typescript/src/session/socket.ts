/** What the client uses of a WebSocket: browsers' own and the class of `ws` both fit. */
export interface SocketLike {
  readonly readyState: number;
  onopen: ((event: never) => void) | null;
  onmessage: ((event: never) => void) | null;
  onclose: ((event: never) => void) | null;
  onerror: ((event: never) => void) | null;
  send(text: string): void;
  close(code?: number, reason?: string): void;
}

export type WebSocketConstructor = new (url: string) => SocketLike;

export interface SocketHandlers {
  opened(): void;
  text(data: unknown): void;
  /** Called once; never again after `drop`. */
  closed(code: number, reason: string): void;
}

export interface OpenedSocket {
  send(text: string): void;
  /** Closes, and tells nothing more. */
  drop(code: number): void;
}

const OPEN = 1;
const BROKEN = 1006;

/** Opens a socket and tells what happens to it, each thing in a later turn of the event loop. */
export function openSocket(WebSocket: WebSocketConstructor, url: string, handlers: SocketHandlers): OpenedSocket {
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
    if (!isOver) handlers.opened();
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
