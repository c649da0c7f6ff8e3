import { Client } from "../../src/chat/client.js";
import { HttpListener } from "../../src/chat/http.js";
import { forgetfulKeeper, type Keeper } from "../../src/chat/stored.js";
import { eventStreams } from "../../src/session/event-stream.js";
import { Session } from "../../src/session/session.js";
import { webSockets } from "../../src/session/socket.js";
import type { OpenTransport, TransportName } from "../../src/session/transport.js";
import { FakeServer } from "./fake-server.js";
import { unsignedToken } from "./tokens.js";
import { VirtualClock } from "./virtual-clock.js";

export interface Started {
  readonly clock: VirtualClock;
  readonly server: FakeServer;
  readonly session: Session;
  readonly client: Client;
  readonly tokens: () => number;
}

function openTransport(server: FakeServer, name: TransportName): OpenTransport {
  const transport = name === "websocket" ? webSockets(server.WebSocket, "ws://fake/v1/connect") : eventStreams({ base: "http://fake", fetch: server.fetch, clock: server.clock });
  return (handlers) => transport.open({ ...handlers, reached: () => undefined });
}

/** A client of a fake server, with a connection that is up unless the server refuses it. */
export async function start(options: {
  readonly server?: FakeServer;
  readonly user?: string;
  readonly token?: () => Promise<string | null>;
  readonly keeper?: Keeper;
  readonly cursor?: string;
  readonly random?: () => number;
  readonly transport?: TransportName;
  readonly fetch?: typeof fetch;
} = {}): Promise<Started> {
  const server = options.server ?? new FakeServer(new VirtualClock(options.random));
  const { clock } = server;
  const user = options.user ?? "ada";
  let asked = 0;
  const token = (): Promise<string | null> => {
    asked += 1;
    return options.token?.() ?? Promise.resolve(unsignedToken({ sub: user }));
  };
  const deviceId = "d1";
  const session = new Session({
    openTransport: openTransport(server, options.transport ?? "websocket"),
    token,
    cursor: options.cursor,
    clock,
    identity: { deviceId, deviceKind: "web", appVersion: undefined, push: false, compact: false },
  });
  const http = new HttpListener("http://fake", token, options.fetch ?? fetch, clock);
  const client = new Client({ user, deviceId, link: session, http, clock, keeper: options.keeper ?? forgetfulKeeper });
  session.start();
  await clock.pass(20);
  return { clock, server, session, client, tokens: () => asked };
}
