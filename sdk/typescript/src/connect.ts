import { Client } from "./chat/client.js";
import { HttpDoor } from "./chat/http.js";
import { randomId } from "./chat/ids.js";
import { forgetfulKeeper } from "./chat/stored.js";
import { CLIENT_CODES, TidingsError } from "./errors.js";
import { backoffMs } from "./session/backoff.js";
import { claimsOf } from "./session/claims.js";
import { pause, systemClock } from "./session/clock.js";
import type { Link } from "./session/link.js";
import { Session } from "./session/session.js";
import type { SocketLike, WebSocketConstructor } from "./session/socket.js";
import type { ConnectOptions, Tidings } from "./tidings.js";
import { doorsOf } from "./urls.js";

/**
 * Opens a session of the user whom the token is for, and keeps it. Resolves when the session is live for the first time; rejects when
 * the server refuses it for good, or the token provider answers `null`.
 */
export async function connect(options: ConnectOptions): Promise<Tidings> {
  const clock = systemClock;
  const doors = doorsOf(options.url);
  const WebSocket = options.WebSocket ?? globalSocket();
  const first = await firstToken(options);
  const user = claimsOf(first).sub ?? "";

  let isFirst = true;
  const http = new HttpDoor(doors.http, options.token, options.fetch ?? fetch, clock);
  http.know(first);
  const token = async (): Promise<string | null> => {
    // The token that told whose session it is opens it.
    const next = isFirst ? first : ((await options.token()) ?? null);
    isFirst = false;
    if (next !== null) http.know(next);
    return next;
  };
  const session = new Session({
    url: doors.socket,
    token,
    cursor: undefined,
    WebSocket,
    clock,
    identity: {
      deviceId: options.deviceId ?? randomId(),
      deviceKind: options.deviceKind ?? "web",
      appVersion: options.appVersion,
      push: options.push ?? false,
    },
  });
  const client = new Client({ user, link: session, http, clock, keeper: forgetfulKeeper });
  session.start();
  await untilFirstUp(session);
  return client;
}

function globalSocket(): WebSocketConstructor {
  const found: unknown = (globalThis as { readonly WebSocket?: unknown }).WebSocket;
  if (typeof found !== "function") {
    throw new TypeError('no global WebSocket: give `connect` the option `WebSocket`, such as the class of the package "ws"');
  }
  return found as new (url: string) => SocketLike;
}

async function firstToken({ token }: ConnectOptions): Promise<string> {
  for (let failures = 0; ; failures++) {
    try {
      const first = await token();
      if (typeof first === "string") return first;
    } catch {
      await pause(systemClock, backoffMs(failures, systemClock.random()));
      continue;
    }
    throw new TidingsError(CLIENT_CODES.signedOut, "the token provider answered null: the user is signed out");
  }
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
