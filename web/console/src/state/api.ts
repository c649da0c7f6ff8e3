// Every call to the server: with the key, and with each failure in words.
import { recordChange } from "./changes.js";
import { credentials, signOut, type Credentials } from "./credentials.js";
import { ownKey } from "./own-key.js";
import { noteAway } from "./reachability.js";
import type { ApiKey } from "./types.js";

const TIMEOUT_MS = 30_000;

/** The server refused: `code` is stable, `message` begins with the field's path if one is wrong. */
export class RefusedError extends Error {
  constructor(readonly status: number, readonly code: string, message: string, readonly retryAfterS: number | undefined) {
    super(message);
  }
}

/** No answer came: the banner tells of it. */
export class AwayError extends Error {
  constructor() {
    super("The server does not answer.");
  }
}

interface Problem {
  readonly code?: string;
  readonly detail?: string;
}

export interface Request {
  readonly method: "GET" | "POST" | "PUT" | "PATCH" | "DELETE";
  readonly path: string;
  readonly body?: unknown;
  readonly headers?: Readonly<Record<string, string>>;
}

/** A path with its ids, each escaped. */
export function path(parts: TemplateStringsArray, ...ids: readonly (string | number)[]): string {
  return parts.map((part, index) => part + (index < ids.length ? encodeURIComponent(ids[index] ?? "") : "")).join("");
}

/** A path with the parameters that have a value. */
export function withQuery(base: string, query: Readonly<Record<string, string | number | undefined>>): string {
  const given = Object.entries(query).filter(([, value]) => value !== undefined && value !== "");
  return given.length === 0 ? base : `${base}${base.includes("?") ? "&" : "?"}${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

/** A header holds bytes: those of a name in any script go as UTF-8. */
function headerText(text: string): string {
  return String.fromCharCode(...new TextEncoder().encode(text));
}

async function problemOf(answer: Response): Promise<RefusedError> {
  const problem = (await answer.json().catch(() => ({}))) as Problem;
  const retryAfter = Number(answer.headers.get("retry-after") ?? Number.NaN);
  const detail = problem.detail ?? `The server answered ${answer.status} ${answer.statusText}.`;
  return new RefusedError(answer.status, problem.code ?? "", detail, Number.isFinite(retryAfter) ? retryAfter : undefined);
}

async function exchange(given: Credentials, request: Request): Promise<unknown> {
  const answer = await answerTo(given, request);
  return answer.status === 204 ? undefined : answer.json().catch(() => Promise.reject(new AwayError()));
}

async function answerTo({ key }: Credentials, { method, path: where, body, headers }: Request): Promise<Response> {
  let answer: Response;
  try {
    answer = await fetch(where, {
      method,
      headers: { authorization: `Bearer ${headerText(key)}`, ...(body !== undefined && { "content-type": "application/json" }), ...headers },
      ...(body !== undefined && { body: JSON.stringify(body) }),
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch {
    noteAway();
    throw new AwayError();
  }
  if (!answer.ok) throw await problemOf(answer);
  return answer;
}

function current(): Credentials {
  const given = credentials.get();
  if (!given) throw new AwayError();
  return given;
}

function checkKey(error: unknown): void {
  if (error instanceof RefusedError && error.status === 401) signOut("The server no longer accepts the key. Type in the one that is valid now.");
}

/** Asks for something. It changes nothing. */
export async function ask<T>(where: string, body?: unknown): Promise<T> {
  const method = body === undefined ? "GET" : "POST";
  try {
    return (await exchange(current(), { method, path: where, ...(body !== undefined && { body }) })) as T;
  } catch (error) {
    checkKey(error);
    throw error;
  }
}

/** Asks for a text, such as an export. */
export async function askText(where: string): Promise<string> {
  try {
    const answer = await answerTo(current(), { method: "GET", path: where });
    return await answer.text().catch(() => Promise.reject(new AwayError()));
  } catch (error) {
    checkKey(error);
    throw error;
  }
}

/** The answer of something that may not be there: `undefined` for `not_found`. */
export async function askIfThere<T>(where: string): Promise<T | undefined> {
  try {
    return await ask<T>(where);
  } catch (error) {
    if (error instanceof RefusedError && error.status === 404) return undefined;
    throw error;
  }
}

/** Changes something. `what` names the change for this tab's log; the server's audit log names the operator. */
export async function change<T>(what: string, request: Request): Promise<T> {
  const who = current();
  const record = (outcome: string, isDone: boolean): void =>
    recordChange({ at: Date.now(), operator: who.operator, what, request: `${request.method} ${request.path}`, outcome, isDone });
  try {
    const headers = { "tidings-author": headerText(who.operator), ...request.headers };
    const answer = (await exchange(who, { ...request, headers })) as T;
    record("done", true);
    return answer;
  } catch (error) {
    record(error instanceof AwayError ? "no answer: it may have happened or not" : `refused: ${reason(error)}`, false);
    checkKey(error);
    throw error;
  }
}

/** Tries a key. `undefined`: the server takes it; otherwise why not, in words. */
export async function whyKeyIsRefused(given: Credentials): Promise<string | undefined> {
  try {
    ownKey.set((await exchange(given, { method: "GET", path: "/v1/admin/keys/me" })) as ApiKey);
    return undefined;
  } catch (error) {
    if (error instanceof RefusedError && error.status === 401) {
      return "The server does not accept this key. It takes the value of its setting api_key (TIDINGS_API_KEY), one of api_keys, or a key that was made with these and has not expired.";
    }
    if (error instanceof RefusedError && error.status === 403) return "This is a user's token. The console needs an API key.";
    if (error instanceof RefusedError && error.status === 404) {
      return "A proxy keeps /v1/admin/ back here. Open the console at an address of the server that is not for clients.";
    }
    return reason(error);
  }
}

export function reason(error: unknown): string {
  if (error instanceof RefusedError && error.code === "rate_limited") {
    return `${error.message}${error.retryAfterS === undefined ? "" : ` (${error.retryAfterS} s)`}`;
  }
  return error instanceof Error ? error.message : String(error);
}
