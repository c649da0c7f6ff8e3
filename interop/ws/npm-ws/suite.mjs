// The WebSocket listener with npm's `ws`.
import { createRequire } from "node:module";
import WebSocket from "ws";
import { Inbox, assert, cases } from "../../harness/session.mjs";
import { run } from "../../harness/tap.mjs";

const { version } = createRequire(import.meta.url)("ws/package.json");
const { TIDINGS_WS, SUITE, TOKEN_ADA, TOKEN_BEN, TOKEN_CY } = process.env;

function connect(url) {
  const socket = new WebSocket(url);
  const inbox = new Inbox();
  socket.on("message", (data, isBinary) => {
    assert(!isBinary, "only text is sent");
    inbox.put(data.toString());
  });
  const closed = new Promise((resolve) =>
    socket.on("close", (code, reason) => {
      inbox.end(code, reason.toString());
      resolve(code);
    }),
  );
  const link = {
    socket,
    send: (text) => socket.send(text),
    receive: () => inbox.take(),
    cut: () => (socket.terminate(), closed),
    close: (code, reason) => (socket.close(code, reason), closed),
  };
  return new Promise((resolve, reject) => {
    socket.on("open", () => resolve(link));
    socket.on("error", reject);
  });
}

const pings = async (ada) => {
  for (const payload of [Buffer.alloc(0), Buffer.from("x"), Buffer.alloc(125, 7)]) {
    const pong = new Promise((resolve) => ada.link.socket.once("pong", resolve));
    ada.link.socket.ping(payload);
    assert(payload.equals(await pong), "a pong of the same payload");
  }
};

const parts = async (ada, ben, to) => {
  const text = JSON.stringify({ t: "send", ref: 77, to, body: "in parts: 😀" });
  const before = ben.entries.length;
  const bytes = Buffer.from(text);
  for (let n = 0; n < bytes.length; n += 5) {
    // A character may be cut by two parts.
    ada.link.socket.send(bytes.subarray(n, n + 5), { binary: false, fin: n + 5 >= bytes.length });
    if (n === 10) ada.link.socket.ping("between");
  }
  assert((await ben.have(before + 1)).at(-1).body === "in parts: 😀", "put together");
};

const people = { name: SUITE, ada: TOKEN_ADA, ben: TOKEN_BEN, cy: TOKEN_CY };
const all = await cases(connect, TIDINGS_WS, people, [
  ["a ping of the protocol is answered with its payload", pings],
  ["a message in parts, with a ping between, is one", parts],
]);
process.exit(await run(`ws ${version}, Node ${process.versions.node}`, all));
