// The frames of a session over an event stream, on their way to the server: one request after the other, each with a number, so
// that one whose answer was lost can be repeated and is still taken once.
import { backoffMs } from "./backoff.js";
import { pause, type Clock } from "./clock.js";

// What a request may hold (docs/sse.md).
const FRAMES_MAX = 256;
const BYTES_MAX = 192 * 1024;
const ANSWER_MS_MAX = 15_000;
const ATTEMPTS_MAX = 6;

/** Where frames go to, as the event `open` says. */
export interface PostAddress {
  readonly url: string;
  readonly secret: string;
}

export interface PostsOptions {
  readonly fetch: typeof fetch;
  readonly clock: Clock;
  /** The server no longer has the session, or cannot be reached. `code` is the server's, if it answered. */
  readonly lost: (why: string, code?: string) => void;
}

type Lost = { readonly is: "lost"; readonly why: string; readonly code?: string };
type Outcome = { readonly is: "taken" } | Lost | { readonly is: "again"; readonly why: string; readonly afterMs?: number };

export class Posts {
  readonly #options: PostsOptions;
  readonly #frames: string[] = [];
  #address: PostAddress | undefined;
  #number = 0;
  #isSending = false;
  #isOver = false;

  constructor(options: PostsOptions) {
    this.#options = options;
  }

  /** Sends to this address from now on. */
  begin(address: PostAddress): void {
    this.#address = address;
    void this.#send();
  }

  add(frame: string): void {
    this.#frames.push(frame);
    void this.#send();
  }

  /** Sends what waits once more, and nothing afterwards. */
  async end(): Promise<void> {
    this.#isOver = true;
    if (!this.#address || this.#isSending || this.#frames.length === 0) return;
    await this.#once(this.#address, this.#number + 1, this.#batch());
  }

  async #send(): Promise<void> {
    if (this.#isSending || this.#isOver || !this.#address) return;
    this.#isSending = true;
    // Frames of the same moment go together.
    await Promise.resolve();
    while (this.#frames.length > 0 && !this.#isOver) {
      this.#number += 1;
      const lost = await this.#repeat(this.#address, this.#number, this.#batch());
      if (lost && !this.#isOver) {
        this.#isOver = true;
        this.#options.lost(lost.why, lost.code);
      }
    }
    this.#isSending = false;
  }

  /** Until the server has the frames. Answers why it has not. */
  async #repeat(address: PostAddress, number: number, body: string): Promise<Lost | undefined> {
    const { clock } = this.#options;
    for (let failures = 0; ; failures++) {
      const outcome = await this.#once(address, number, body);
      if (outcome.is === "taken") return undefined;
      if (outcome.is === "lost") return outcome;
      if (failures + 1 >= ATTEMPTS_MAX || this.#isOver) return { is: "lost", why: outcome.why };
      await pause(clock, outcome.afterMs ?? backoffMs(failures, clock.random()));
    }
  }

  async #once({ url, secret }: PostAddress, number: number, body: string): Promise<Outcome> {
    const { fetch: fetcher, clock } = this.#options;
    const abort = new AbortController();
    const cancel = clock.setTimer(ANSWER_MS_MAX, () => abort.abort());
    try {
      const answer = await fetcher(`${url}?number=${number}`, {
        method: "POST",
        headers: { authorization: `Bearer ${secret}`, "content-type": "application/x-ndjson" },
        body,
        signal: abort.signal,
      });
      return outcomeOf(answer, await answer.text());
    } catch (error) {
      return { is: "again", why: String(error) };
    } finally {
      cancel();
    }
  }

  /** As many frames as a request may hold, one at least. */
  #batch(): string {
    let bytes = 0;
    let count = 0;
    for (const frame of this.#frames) {
      bytes += new TextEncoder().encode(frame).length + 1;
      if (count > 0 && (bytes > BYTES_MAX || count === FRAMES_MAX)) break;
      count += 1;
    }
    return this.#frames.splice(0, count).join("\n");
  }
}

function outcomeOf(answer: Response, text: string): Outcome {
  if (answer.ok) return { is: "taken" };
  const why = `the server answered frames with ${answer.status}`;
  const mayPass = answer.status === 429 || answer.status >= 500;
  if (!mayPass) {
    const code = codeOf(text);
    return { is: "lost", why, ...(code !== undefined && { code }) };
  }
  const seconds = Number(answer.headers.get("retry-after") ?? Number.NaN);
  return { is: "again", why, ...(Number.isFinite(seconds) && { afterMs: seconds * 1000 }) };
}

/** The code of a problem of the server; a proxy answers with a page of its own. */
function codeOf(text: string): string | undefined {
  try {
    const { code } = JSON.parse(text) as { readonly code?: unknown };
    return typeof code === "string" ? code : undefined;
  } catch {
    return undefined;
  }
}
