// A session over server-sent events, for networks that let no WebSocket through: what the server says comes as the body of one long
// response, what the client says goes by requests beside it (docs/sse.md).
import { CLOSE_CODES } from "./close-codes.js";
import type { Clock } from "./clock.js";
import { EventParser, type ServerEvent } from "./events.js";
import { Posts } from "./posts.js";
import { BROKEN, type AttemptHandlers, type OpenedTransport, type Transport } from "./transport.js";

// A stream that has been quiet for so many of its keep-alive intervals is dead.
const QUIET_INTERVALS_MAX = 2.5;
/** The close code for what the error frame before it tells. */
const AS_TOLD = 4999;
// What a request to a session that has ended is answered with: why, if it ended for good, or only that it is no more.
const ENDED_FOR_GOOD: readonly string[] = ["replaced", "kicked", "user_suspended"];
const SESSION_GONE = "session_gone";
// A request's answer may overtake the event that says why the session has ended.
const LATE_CLOSE_MS_MAX = 3_000;

export interface EventStreamOptions {
  /** The server's address, without a path. */
  readonly base: string;
  readonly fetch: typeof fetch;
  readonly clock: Clock;
}

/** Sessions over event streams. */
export function eventStreams(options: EventStreamOptions): Transport {
  return { name: "event-stream", open: (handlers) => new EventStream(options, handlers) };
}

class EventStream implements OpenedTransport {
  readonly #options: EventStreamOptions;
  readonly #handlers: AttemptHandlers;
  readonly #abort = new AbortController();
  readonly #posts: Posts;
  #hasBind = false;
  #isOver = false;
  #quietMsMax: number | undefined;
  #cancelWatch: () => void = () => undefined;

  constructor(options: EventStreamOptions, handlers: AttemptHandlers) {
    this.#options = options;
    this.#handlers = handlers;
    this.#posts = new Posts({ fetch: options.fetch, clock: options.clock, lost: (why, code) => this.#lost(why, code) });
    queueMicrotask(() => {
      if (!this.#isOver) handlers.opened();
    });
  }

  send(text: string): void {
    if (this.#isOver) return;
    if (this.#hasBind) {
      this.#posts.add(text);
      return;
    }
    this.#hasBind = true;
    void this.#read(text).catch((error: unknown) => this.#end(BROKEN, String(error)));
  }

  drop(): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#cancelWatch();
    void this.#posts.end().finally(() => this.#abort.abort());
  }

  async #read(bind: string): Promise<void> {
    const { t: _, token, ...identity } = JSON.parse(bind) as { readonly [name: string]: string };
    const { fetch: fetcher, base } = this.#options; // a browser's `fetch` refuses to be called as a method
    const answer = await fetcher(`${base}/v1/stream?${new URLSearchParams(identity).toString()}`, {
      headers: { authorization: `Bearer ${token}`, accept: "text/event-stream" },
      cache: "no-store",
      signal: this.#abort.signal,
    });
    const isStream = answer.headers.get("content-type")?.startsWith("text/event-stream") === true;
    if (!answer.ok) return this.#refused(answer);
    if (!isStream || !answer.body) return this.#end(BROKEN, "what answered is no event stream");
    if (this.#isOver) return;
    this.#handlers.reached();
    const [reader, decoder, parser] = [answer.body.getReader(), new TextDecoder(), new EventParser()];
    for (;;) {
      const { value, done } = await reader.read();
      if (done || this.#isOver) break;
      this.#watch();
      for (const event of parser.take(decoder.decode(value, { stream: true }))) this.#take(event);
    }
    this.#end(BROKEN, "the stream broke");
  }

  #take({ name, data }: ServerEvent): void {
    if (this.#isOver) return;
    switch (name) {
      case "message":
        this.#handlers.text(data);
        break;
      case "open": {
        const { stream, secret, keep_alive_ms } = JSON.parse(data) as { readonly stream: string; readonly secret: string; readonly keep_alive_ms: number };
        this.#quietMsMax = keep_alive_ms * QUIET_INTERVALS_MAX;
        this.#watch();
        this.#posts.begin({ url: `${this.#options.base}/v1/stream/${encodeURIComponent(stream)}`, secret });
        break;
      }
      case "probe":
        this.#posts.add('{"t":"ping"}');
        break;
      case "close": {
        const { code, reason } = JSON.parse(data) as { readonly code: number; readonly reason: string };
        this.#end(code, reason);
        break;
      }
      default: // a newer server has more
    }
  }

  /** The session takes no frames any more: ends as the server says, on the stream or here. */
  #lost(why: string, code: string | undefined): void {
    if (this.#isOver) return;
    if (code !== undefined && ENDED_FOR_GOOD.includes(code)) return this.#end(closeNumberOf(code) ?? AS_TOLD, code);
    if (code !== SESSION_GONE) return this.#end(BROKEN, why);
    this.#cancelWatch();
    this.#quietMsMax = undefined; // what comes until then does not prolong it
    this.#cancelWatch = this.#options.clock.setTimer(LATE_CLOSE_MS_MAX, () => this.#end(BROKEN, why));
  }

  /** Refused before there was a stream: told as an error frame and a close, as a WebSocket would. */
  async #refused(answer: Response): Promise<void> {
    const problem = await answer.json().catch(() => undefined) as { readonly code?: unknown; readonly detail?: unknown; readonly retry?: unknown } | undefined;
    const [code, message] = [problem?.code, String(problem?.detail ?? "")];
    // A page of a proxy, or a server that has no event streams: says nothing about the session.
    const isOfServer = typeof code === "string" && (code !== "not_found" || message.startsWith("no user")) && code !== "method_not_allowed";
    if (!isOfServer) return this.#end(BROKEN, `an event stream was answered with ${answer.status}`);
    if (this.#isOver) return;
    const seconds = Number(answer.headers.get("retry-after") ?? Number.NaN);
    this.#handlers.reached();
    this.#handlers.text(
      JSON.stringify({ t: "error", code, message, retry: problem?.retry === true, ...(Number.isFinite(seconds) && { retry_after_ms: seconds * 1000 }) }),
    );
    this.#end(closeNumberOf(code) ?? AS_TOLD, code);
  }

  #watch(): void {
    if (this.#quietMsMax === undefined) return;
    this.#cancelWatch();
    this.#cancelWatch = this.#options.clock.setTimer(this.#quietMsMax, () => this.#end(BROKEN, "the stream was quiet for too long"));
  }

  #end(code: number, reason: string): void {
    if (this.#isOver) return;
    this.#isOver = true;
    this.#cancelWatch();
    this.#abort.abort();
    this.#handlers.closed(code, reason);
  }
}

/** The number of the close that says the same as a refusal's code. */
function closeNumberOf(code: string | undefined): number | undefined {
  return [...CLOSE_CODES].find(([number, ending]) => number >= 4000 && ending.code === code)?.[0];
}
