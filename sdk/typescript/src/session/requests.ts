import { CLIENT_CODES, TidingsError } from "../errors.js";
import type { RequestFrame } from "../wire/client-frames.js";
import type { ServerFrame } from "../wire/server-frames.js";
import type { Clock } from "./clock.js";

// A server that is there answers within a moment; one that has taken a request and says nothing is asked again.
const ANSWER_MS_MAX = 30_000;

const EXPECTED: { readonly [T in RequestFrame["t"]]: ServerFrame["t"] } = {
  send: "sent",
  edit: "sent",
  recall: "sent",
  stream_begin: "sent",
  stream_end: "sent",
  history: "history",
  conversations: "conversations",
  unread: "unread",
  receipts: "receipts",
  watch_presence: "presence",
  popup: "popup",
  read: "ok",
  unwatch_presence: "ok",
  popup_events: "ok",
  refresh: "ok",
  react: "ok",
  pin: "ok",
  preferences: "ok",
  assign: "ok",
  ping: "pong",
};

interface Waiting {
  readonly t: RequestFrame["t"];
  readonly resolve: (answer: unknown) => void;
  readonly reject: (error: TidingsError) => void;
  readonly cancelTimer: () => void;
}

/** The requests of one session that wait for their answers, by `ref`. */
export class Requests {
  readonly #waiting = new Map<number, Waiting>();
  readonly #clock: Clock;
  #refs = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A `ref`, and the promise of its answer. */
  open(t: RequestFrame["t"]): { readonly ref: number; readonly answer: Promise<unknown> } {
    const ref = ++this.#refs;
    const answer = new Promise<unknown>((resolve, reject) => {
      const cancelTimer = this.#clock.setTimer(ANSWER_MS_MAX, () => {
        this.#waiting.delete(ref);
        reject(new TidingsError(CLIENT_CODES.timeout, `the server did not answer "${t}" in time`, { retry: true }));
      });
      this.#waiting.set(ref, { t, resolve, reject, cancelTimer });
    });
    return { ref, answer };
  }

  /** Hands a frame to whom it answers; false: it answers nobody. */
  take(frame: ServerFrame): boolean {
    if (frame.t === "sent") {
      for (const result of frame.results) {
        if (result.ref != null) this.#settle(result.ref, frame.t, result);
      }
      return true;
    }
    const ref = "ref" in frame ? frame.ref : undefined;
    if (ref == null) return false;
    if (frame.t === "error") {
      const { code, message, retry, retry_after_ms, reason } = frame;
      this.#take(ref)?.reject(new TidingsError(code, message, { retry, retryAfterMs: retry_after_ms ?? undefined, reason }));
    } else {
      this.#settle(ref, frame.t, frame);
    }
    return true; // also what answers a request that was given up
  }

  /** It is not known what became of any of them. */
  lose(cause: TidingsError): void {
    const refs = [...this.#waiting.keys()];
    for (const ref of refs) {
      const message = `the connection was lost before the answer came: ${cause.message}`;
      this.#take(ref)?.reject(new TidingsError(CLIENT_CODES.connectionLost, message, { retry: true, cause }));
    }
  }

  #settle(ref: number, t: ServerFrame["t"], answer: unknown): void {
    const waiting = this.#take(ref);
    if (!waiting) return;
    if (EXPECTED[waiting.t] === t) waiting.resolve(answer);
    else waiting.reject(new TidingsError(CLIENT_CODES.protocol, `the server answered "${waiting.t}" with "${t}"`));
  }

  #take(ref: number): Waiting | undefined {
    const waiting = this.#waiting.get(ref);
    this.#waiting.delete(ref);
    waiting?.cancelTimer();
    return waiting;
  }
}
