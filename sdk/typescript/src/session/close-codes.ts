// How sessions end, and what follows: the table of docs/websocket.md.

/**
 * - `retry`: connect again and resume, after the server's time or a growing random one.
 * - `token`: the same with another token; with the same token the client stops.
 * - `fresh`: the cursor and what it stands for are dropped, then connect without one.
 * - `stop`: nothing until the app asks.
 * - `told`: the error frame before the close says whether to retry.
 */
export type Advice = "retry" | "token" | "fresh" | "stop" | "told";

export interface Ending {
  readonly code: string;
  readonly advice: Advice;
}

export const CLOSE_CODES: ReadonlyMap<number, Ending> = new Map<number, Ending>([
  [1002, { code: "malformed", advice: "stop" }],
  [1003, { code: "malformed", advice: "stop" }],
  [1007, { code: "malformed", advice: "stop" }],
  [4000, { code: "malformed", advice: "stop" }],
  [4001, { code: "unauthorized", advice: "token" }],
  [4002, { code: "bind_timeout", advice: "retry" }],
  [4003, { code: "replaced", advice: "stop" }],
  [4004, { code: "kicked", advice: "stop" }],
  [4005, { code: "limit_exceeded", advice: "stop" }],
  [4006, { code: "token_expired", advice: "token" }],
  [4007, { code: "heartbeat_timeout", advice: "retry" }],
  [4008, { code: "slow_reader", advice: "retry" }],
  [4009, { code: "draining", advice: "retry" }],
  [4010, { code: "not_bound", advice: "stop" }],
  [4011, { code: "queue_full", advice: "retry" }],
  [4012, { code: "store_unavailable", advice: "retry" }],
  [4013, { code: "node_unavailable", advice: "retry" }],
  [4014, { code: "cursor_invalid", advice: "fresh" }],
  [4015, { code: "not_found", advice: "stop" }],
  [4016, { code: "invalid_field", advice: "stop" }],
  [4017, { code: "forbidden", advice: "token" }],
  [4018, { code: "rate_limited", advice: "retry" }],
  [4019, { code: "already_bound", advice: "stop" }],
  [4020, { code: "internal", advice: "retry" }],
  [4021, { code: "user_suspended", advice: "stop" }],
]);

/** A number outside the table counts as a broken connection below 4000, and as told by the error frame from there on. */
export function endingOf(closeCode: number): Ending {
  return CLOSE_CODES.get(closeCode) ?? { code: "connection_lost", advice: closeCode >= 4000 ? "told" : "retry" };
}

/** The ending of an error frame whose close frame did not come. */
export function endingOfError(code: string, retry: boolean): Ending {
  for (const ending of CLOSE_CODES.values()) if (ending.code === code) return ending;
  return { code, advice: retry ? "retry" : "stop" };
}
