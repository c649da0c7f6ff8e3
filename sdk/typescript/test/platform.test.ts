// What the client asks of where it runs: in one file, and each part by itself.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { base64urlBytes } from "../src/base64url.js";
import { copyOf, hasPage, isPageSeen, onNetwork, onPageSeen, randomBytes, textOfBytes, webStorage } from "../src/platform.js";
import { listenersOf } from "../src/urls.js";
import { repositoryFile } from "./support/repository.js";

const SOURCES = repositoryFile("sdk/typescript/src");
const OF_BROWSERS = /(?<![.\w"'`])(document|window|navigator|location|localStorage|sessionStorage|indexedDB|IDBKeyRange|BroadcastChannel|globalThis|crypto|structuredClone|TextDecoder|atob|btoa|reportError)(?=[.(\s;)])/u;
// An event stream is read where bodies stream, which is where all of this is.
const WHERE_BODIES_STREAM = "session/event-stream.ts";

/** Runs `act` where these globals have these values; undefined: where they are missing. */
function where<Result>(globals: { readonly [name: string]: unknown }, act: () => Result): Result {
  const had = Object.keys(globals).map((name) => [name, Object.getOwnPropertyDescriptor(globalThis, name)] as const);
  for (const [name, value] of Object.entries(globals)) Object.defineProperty(globalThis, name, { value, configurable: true, writable: true });
  try {
    return act();
  } finally {
    for (const [name, descriptor] of had) {
      if (descriptor) Object.defineProperty(globalThis, name, descriptor);
      else Reflect.deleteProperty(globalThis, name);
    }
  }
}

test("one file alone names the globals of browsers", () => {
  const found: string[] = [];
  for (const name of readdirSync(SOURCES, { recursive: true, encoding: "utf8" })) {
    if (!name.endsWith(".ts") || name === "platform.ts" || name === WHERE_BODIES_STREAM) continue;
    const code = readFileSync(`${SOURCES}/${name}`, "utf8").replace(/\/\*[\s\S]*?\*\//gu, "").replace(/\/\/.*|"[^"\n]*"/gu, "");
    for (const line of code.split("\n")) if (OF_BROWSERS.test(line) && !line.includes("typeof globalThis.fetch")) found.push(`${name}: ${line.trim()}`);
  }
  assert.deepEqual(found, []);
});

test("a window without a document is no page, as in React Native", () => {
  where({ window: globalThis, navigator: { product: "ReactNative" }, document: undefined, localStorage: {} }, () => {
    assert.deepEqual([hasPage(), isPageSeen(), webStorage("localStorage")], [false, true, undefined]);
    onPageSeen(assert.fail)();
    onNetwork(assert.fail)();
  });
});

test("storage that a browser refuses is none", () => {
  const document = { addEventListener: () => undefined };
  where({ document, localStorage: { getItem: () => null } }, () => assert.ok(webStorage("localStorage")));
  where({ document }, () => {
    Object.defineProperty(globalThis, "localStorage", { configurable: true, get: () => assert.fail("SecurityError") });
    assert.equal(webStorage("localStorage"), undefined);
    Reflect.deleteProperty(globalThis, "localStorage");
  });
});

test("names, texts and copies need neither crypto nor TextDecoder nor structuredClone", () => {
  const act = (): void => {
    const [one, other] = [randomBytes(12), randomBytes(12)];
    assert.equal(one.length, 12);
    assert.notDeepEqual(one, other);
    assert.equal(textOfBytes(new TextEncoder().encode("grüße, 你好, 😀 %41")), "grüße, 你好, 😀 %41");
    const value = { list: [1, { a: "b" }] };
    assert.deepEqual(copyOf(value), value);
    assert.notEqual(copyOf(value), value);
  };
  act();
  where({ crypto: undefined, TextDecoder: undefined, structuredClone: undefined }, act);
});

test("base64url is read as Node reads it, and nothing else is", () => {
  for (let length = 0; length < 70; length++) {
    const bytes = Uint8Array.from({ length }, (_, index) => (index * 89 + length * 31) & 0xff);
    assert.deepEqual(base64urlBytes(Buffer.from(bytes).toString("base64url")), bytes);
  }
  for (const text of ["a", "ab+d", "ab/d", "abc=", "ab d", "aböd"]) assert.throws(() => base64urlBytes(text), TypeError);
});

test("any address of a server names both of its listeners", () => {
  const cases: readonly (readonly [string, string, string])[] = [
    ["https://chat.example.com", "https://chat.example.com", "wss://chat.example.com/v1/connect"],
    ["http://127.0.0.1:8080/", "http://127.0.0.1:8080", "ws://127.0.0.1:8080/v1/connect"],
    ["wss://chat.example.com/v1/connect", "https://chat.example.com", "wss://chat.example.com/v1/connect"],
    ["WS://chat/below/v1/connect/", "http://chat/below", "ws://chat/below/v1/connect"],
    ["https://chat.example.com/below?x=1#y", "https://chat.example.com/below", "wss://chat.example.com/below/v1/connect"],
    ["http://[::1]:8080", "http://[::1]:8080", "ws://[::1]:8080/v1/connect"],
  ];
  for (const [url, http, socket] of cases) assert.deepEqual(listenersOf(url), { http, socket });
  for (const url of ["", "/", "chat.example.com", "ftp://chat.example.com", "https://"]) assert.throws(() => listenersOf(url), /no address of a server/u);
  where({ location: { href: "https://app.example.com/rooms/7?x" } }, () => {
    assert.deepEqual(listenersOf("/"), { http: "https://app.example.com", socket: "wss://app.example.com/v1/connect" });
    assert.deepEqual(listenersOf("/chat"), { http: "https://app.example.com/chat", socket: "wss://app.example.com/chat/v1/connect" });
  });
});
