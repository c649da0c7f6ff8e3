import { connect, type Tidings } from "@tidings/client";
import WebSocket from "ws";
import type { Server } from "./server.js";

/** A user's client of the real server. */
export function open(server: Server, user: string): Promise<Tidings> {
  return connect({ url: server.url, token: async () => server.token(user), WebSocket });
}
