// Puts the parts together for the place where it runs.
import { Client } from "./chat/client.js";
import { HttpListener } from "./chat/http.js";
import { randomId } from "./chat/ids.js";
import { forgetfulKeeper, type Keeper } from "./chat/stored.js";
import { readStored, StoringKeeper, type Stored } from "./chat/storing-keeper.js";
import { CLIENT_CODES, TidingsError } from "./errors.js";
import { backoffMs } from "./session/backoff.js";
import { pageMemory, TransportChoice, type ChoiceMemory } from "./session/choice.js";
import { claimsOf } from "./session/claims.js";
import { pause, systemClock, type Clock } from "./session/clock.js";
import { eventStreams } from "./session/event-stream.js";
import type { Link, WakeableLink } from "./session/link.js";
import { Session } from "./session/session.js";
import { webSockets, type WebSocketConstructor } from "./session/socket.js";
import type { TransportName } from "./session/transport.js";
import { hasPage, isPageSeen, onNetwork, onPageSeen, ownFetch, ownWebSocket, streamsBodies, tabChannels } from "./platform.js";
import { memoryStorage } from "./storage/memory.js";
import type { KeyValueStorage } from "./storage/storage.js";
import { tabSupport, type TabSupport } from "./tabs/browser.js";
import { ownDevice, sharedDevice } from "./tabs/device.js";
import { SharedLink } from "./tabs/shared-link.js";
import type { ConnectOptions, Tidings } from "./tidings.js";
import { listenersOf } from "./urls.js";

/**
 * Opens a session of the user whom the token is for, and keeps it. Resolves when the session is live for the first time, or at once when
 * the storage holds what the user saw last; rejects when the server refuses it for good, or the token provider answers `null`.
 */
export async function connect(options: ConnectOptions): Promise<Tidings> {
  return connectWith(options, { clock: systemClock, tabs: tabSupport() });
}

/** What `connect` takes from where it runs; a test brings its own. */
export interface Runtime {
  readonly clock: Clock;
  readonly tabs: TabSupport | undefined;
}

export async function connectWith(options: ConnectOptions, { clock, tabs }: Runtime): Promise<Tidings> {
  const listeners = listenersOf(options.url);
  const fetch = options.fetch ?? globalFetch();
  const transports = options.transports ?? (options.fetch || streamsBodies() ? ["websocket", "event-stream"] : ["websocket"]);
  const WebSocket = transports.includes("websocket") ? (options.WebSocket ?? globalSocket()) : undefined;
  const first = await firstToken(options, clock);
  const user = claimsOf(first).sub;
  if (user === undefined) throw new TidingsError("unauthorized", "the token is no JWT that names its user (`sub`)");

  const http = new HttpListener(listeners.http, options.token, fetch, clock);
  http.know(first);
  const token = tokenSource(first, options.token, http);
  const { stored, storage, failure } = await openStorage(options.storage, user);

  const name = `tidings ${listeners.http} ${user}`;
  const sharing = (options.shareTabs ?? (options.WebSocket === undefined && hasPage())) ? tabs : undefined;
  const device = await deviceOf(options, name, sharing !== undefined, tabs, clock);
  const choice = choose(transports, { WebSocket, listeners, fetch, clock, memory: pageMemory(name) });
  const openSession = (cursor: string | undefined): Session =>
    new Session({
      openTransport: (handlers) => choice.open(handlers),
      token,
      cursor,
      clock,
      identity: {
        deviceId: device.id,
        deviceKind: options.deviceKind ?? "web",
        appVersion: options.appVersion,
        push: options.push ?? false,
        compact: options.compact ?? false,
      },
    });
  const tab = randomId();
  const keeper: Keeper = storage && stored ? new StoringKeeper({ user, tab, storage, stored, mayWriteState: () => shared?.isLeader ?? true }) : forgetfulKeeper;
  const shared =
    sharing &&
    new SharedLink({
      name,
      tab,
      support: sharing,
      clock,
      cursor: stored?.cursor,
      openSession,
      onLead: () => void keeper.adopt(),
      onTabGone: (gone) => void keeper.adopt(gone),
    });
  const link: WakeableLink = shared ?? openSession(stored?.cursor);
  const client = new Client({ user, deviceId: device.id, link, http, clock, keeper, onClose: [device.end, wakeWithPage(link)] });
  link.start();
  if (failure) queueMicrotask(() => client.report("storage", failure));
  if (stored?.cursor === undefined) {
    await untilFirstUp(link).catch(async (error: unknown) => {
      await client.close();
      throw error;
    });
  }
  return client;
}

interface Ways {
  readonly WebSocket: WebSocketConstructor | undefined;
  readonly listeners: { readonly http: string; readonly socket: string };
  readonly fetch: typeof globalThis.fetch;
  readonly clock: Clock;
  readonly memory: ChoiceMemory;
}

function choose(names: readonly TransportName[], { WebSocket, listeners, fetch: fetcher, clock, memory }: Ways): TransportChoice {
  const [first, second] = names.map((name) =>
    name === "websocket" && WebSocket ? webSockets(WebSocket, listeners.socket) : eventStreams({ base: listeners.http, fetch: fetcher, clock }),
  );
  if (!first) throw new TypeError("`transports` names none");
  return new TransportChoice(first, second, clock, memory);
}

function globalSocket(): WebSocketConstructor {
  const found = ownWebSocket();
  if (!found) throw new TypeError('no global WebSocket: give `connect` the option `WebSocket`, such as the class of the package "ws"');
  return found;
}

function globalFetch(): typeof globalThis.fetch {
  const found = ownFetch();
  if (!found) throw new TypeError("no global fetch: give `connect` the option `fetch`");
  return found;
}

async function firstToken({ token }: ConnectOptions, clock: Clock): Promise<string> {
  for (let failures = 0; ; failures++) {
    let first: string | null;
    try {
      first = await token();
    } catch {
      await pause(clock, backoffMs(failures, clock.random()));
      continue;
    }
    if (typeof first === "string") return first;
    throw new TidingsError(CLIENT_CODES.signedOut, "the token provider answered null: the user is signed out");
  }
}

/** The token that told whose session it is opens it; each further one is asked for. */
function tokenSource(first: string, ask: () => Promise<string | null>, http: HttpListener): () => Promise<string | null> {
  let unused: string | undefined = first;
  return async () => {
    const token = unused ?? (await ask());
    unused = undefined;
    if (typeof token !== "string") return null; // `undefined`, too, is no token
    http.know(token);
    return token;
  };
}

interface OpenedStorage {
  readonly storage?: KeyValueStorage;
  readonly stored?: Stored;
  readonly failure?: TidingsError;
}

async function openStorage(storage: KeyValueStorage | undefined, user: string): Promise<OpenedStorage> {
  if (!storage) return {};
  try {
    return { storage, stored: await readStored(storage, user) };
  } catch (cause) {
    // A private window, or a profile that is broken: the client works, and keeps nothing.
    const failure = new TidingsError(CLIENT_CODES.storageFailed, `the client goes on in memory: ${String(cause)}`, { cause });
    const memory = memoryStorage();
    return { storage: memory, stored: await readStored(memory, user), failure };
  }
}

async function deviceOf(options: ConnectOptions, name: string, isShared: boolean, tabs: TabSupport | undefined, clock: Clock): Promise<{ id: string; end: () => void }> {
  if (options.deviceId !== undefined) return { id: options.deviceId, end: () => undefined };
  if (isShared) return { id: sharedDevice(name), end: () => undefined };
  return ownDevice(name, tabs?.openChannel ?? tabChannels(), clock);
}

/**
 * A page that comes to the front, or back to the network, looks at once whether its connection lives. The server learns whether somebody
 * looks at the page; an app without one says so itself, by `attend`.
 */
function wakeWithPage(link: WakeableLink): () => void {
  const wake = (): void => {
    if (isPageSeen()) link.wake();
  };
  const tell = (): void => link.attend(isPageSeen() ? "foreground" : "background");
  if (hasPage()) tell();
  const ends = [
    onNetwork(wake),
    onPageSeen(() => {
      tell();
      wake();
    }),
  ];
  return () => ends.forEach((end) => end());
}

function untilFirstUp(link: Link): Promise<void> {
  return new Promise((resolve, reject) => {
    const look = (): void => {
      const status = link.status.get();
      if (status.state === "online") resolve();
      else if (status.state === "ended") reject(status.error);
      else return;
      end();
    };
    const end = link.status.subscribe(look);
    look();
  });
}
