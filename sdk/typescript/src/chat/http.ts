import { CLIENT_CODES, TidingsError } from "../errors.js";
import { claimsOf } from "../session/claims.js";
import type { Clock } from "../session/clock.js";

// A token that ends sooner may end on the way.
const LEFT_MS_MIN = 10_000;

/** The HTTP listener with the user's token, for what no frame is for. */
export class HttpListener {
  readonly #base: string;
  readonly #token: () => Promise<string | null>;
  readonly #fetch: typeof fetch;
  readonly #clock: Clock;
  #known: string | undefined;

  constructor(base: string, token: () => Promise<string | null>, fetcher: typeof fetch, clock: Clock) {
    this.#base = base;
    this.#token = token;
    this.#fetch = fetcher;
    this.#clock = clock;
  }

  /** The newest token that the session has fetched. */
  know(token: string): void {
    this.#known = token;
  }

  async call(method: string, path: string, body?: unknown): Promise<unknown> {
    const answer = await this.#once(method, path, body);
    if (answer.status !== 401) return read(answer);
    this.#known = undefined; // it was revoked, or its time was shorter than thought: once more with another
    return read(await this.#once(method, path, body));
  }

  async #once(method: string, path: string, body: unknown): Promise<Response> {
    const token = await this.#goodToken();
    const fetcher = this.#fetch; // a browser's `fetch` refuses to be called as a method
    try {
      return await fetcher(this.#base + path, {
        method,
        headers: { authorization: `Bearer ${token}`, ...(body !== undefined && { "content-type": "application/json" }) },
        ...(body !== undefined && { body: JSON.stringify(body) }),
      });
    } catch (cause) {
      throw new TidingsError(CLIENT_CODES.connectionLost, `${method} ${path}: ${String(cause)}`, { retry: true, cause });
    }
  }

  async #goodToken(): Promise<string> {
    const exp = this.#known === undefined ? undefined : claimsOf(this.#known).exp;
    if (this.#known !== undefined && (exp === undefined || exp * 1000 - this.#clock.now() > LEFT_MS_MIN)) return this.#known;
    const token = await this.#token();
    if (token === null) throw new TidingsError(CLIENT_CODES.signedOut, "the token provider answered null");
    this.#known = token;
    return token;
  }
}

async function read(answer: Response): Promise<unknown> {
  const text = await answer.text();
  let value: unknown;
  try {
    value = text === "" ? undefined : JSON.parse(text);
  } catch {
    value = undefined;
  }
  if (answer.ok) return value;
  const { code, detail, retry } = (value ?? {}) as { code?: unknown; detail?: unknown; retry?: unknown };
  const seconds = Number(answer.headers.get("retry-after") ?? Number.NaN);
  throw new TidingsError(typeof code === "string" ? code : "internal", typeof detail === "string" ? detail : `status ${answer.status}`, {
    retry: retry === true,
    retryAfterMs: Number.isFinite(seconds) ? seconds * 1000 : undefined,
  });
}

/** A path of names that may hold anything. */
export function path(parts: TemplateStringsArray, ...names: readonly (string | number)[]): string {
  return parts.reduce((whole, part, index) => whole + encodeURIComponent(String(names[index - 1] ?? "")) + part);
}

/** `?name=value…` of those that are given. */
export function query(values: { readonly [name: string]: string | number | undefined }): string {
  const given = Object.entries(values).flatMap(([name, value]) => (value === undefined ? [] : [`${name}=${encodeURIComponent(value)}`]));
  return given.length === 0 ? "" : `?${given.join("&")}`;
}
