/** A refusal of the server, or a failure of this client, with a stable `code`. */
export class TidingsError extends Error {
  /** What `String(error)` begins with. */
  override readonly name = "TidingsError";
  /** A code of the server (docs/websocket.md, docs/http.md), or one of `CLIENT_CODES`. */
  readonly code: string;
  /** Whether the same request may succeed later. */
  readonly retry: boolean;
  /** When to try again, in milliseconds from now, if the server said so. */
  readonly retryAfterMs: number | undefined;
  /** The code of your own that your hook gave when it refused (`refused_by_hook`). */
  readonly reason: string | undefined;

  constructor(code: string, message: string, options: { retry?: boolean; retryAfterMs?: number | undefined; reason?: string | undefined; cause?: unknown } = {}) {
    super(message, options.cause === undefined ? undefined : { cause: options.cause });
    this.code = code;
    this.retry = options.retry ?? false;
    this.retryAfterMs = options.retryAfterMs;
    this.reason = options.reason;
  }
}

/** Codes that this client makes itself; all others come from the server. */
export const CLIENT_CODES = {
  /** The connection broke before the answer came. What is queued is sent again; what is only asked is not. */
  connectionLost: "connection_lost",
  /** No answer came in time. */
  timeout: "timeout",
  /** The app closed the client. */
  closed: "closed",
  /** The token provider answered `null`: the user is signed out. */
  signedOut: "signed_out",
  /** The token provider failed. */
  tokenFailed: "token_failed",
  /** More unsent messages wait than the client keeps. */
  outboxFull: "outbox_full",
  /** The app discarded the message before it was sent. */
  discarded: "discarded",
  /** The browser refused to store more; the client goes on in memory. */
  storageFull: "storage_full",
  /** The storage failed otherwise; the client goes on in memory. */
  storageFailed: "storage_failed",
  /** The user, or the browser's settings, do not let this page show notifications. */
  notificationsDenied: "notifications_denied",
  /** No push service for this page: an old browser, a page without HTTPS, or one of iOS that is not on the home screen. */
  notificationsUnsupported: "notifications_unsupported",
  /** The browser could not subscribe or unsubscribe otherwise: `cause` says why. */
  notificationsFailed: "notifications_failed",
  /** The server's answer does not fit the protocol. */
  protocol: "protocol",
} as const;
