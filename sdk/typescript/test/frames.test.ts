// The frames of docs/asyncapi.json and the vectors in fixtures/ against the client's types: a frame of the server that this client
// does not know, or a field that it cannot send, fails here.
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { CLIENT_FRAMES, type ClientFrame } from "../src/wire/client-frames.js";
import { ENTRY_KINDS } from "../src/wire/entries.js";
import { parseServerFrame } from "../src/wire/parse.js";
import { SERVER_FRAMES } from "../src/wire/server-frames.js";
import { repositoryFile } from "./support/repository.js";
import { exampleOf, type Schema } from "./support/schemas.js";

interface Description {
  readonly channels: { readonly connect: { readonly messages: { readonly [name: string]: unknown } } };
  readonly components: {
    readonly schemas: { readonly [name: string]: Schema };
    readonly messages: { readonly [name: string]: { readonly name: string; readonly payload: Schema } };
  };
}

const description = JSON.parse(readFileSync(repositoryFile("docs/asyncapi.json"), "utf8")) as Description;
const named = (side: string) => Object.entries(description.components.messages).filter(([name]) => name.startsWith(`${side}_`));

test("every frame that a server sends is known", () => {
  const frames = named("server");
  assert.ok(frames.length >= 15, "the description has the server's frames");
  for (const [, { name }] of frames) assert.ok((SERVER_FRAMES as readonly string[]).includes(name), `the client does not know the frame "${name}"`);
});

test("every frame that a client may send can be sent", () => {
  const frames = named("client");
  assert.ok(frames.length >= 14, "the description has the client's frames");
  for (const [, { name }] of frames) assert.ok((CLIENT_FRAMES as readonly string[]).includes(name), `the client cannot send the frame "${name}"`);
});

test("a frame with all that the description requires is read, and one without it is not", () => {
  for (const [, { name, payload }] of named("server")) {
    const whole = exampleOf(payload, description.components.schemas);
    const parsed = parseServerFrame(JSON.stringify(whole));
    assert.equal(parsed.is, "frame", `${name}: ${JSON.stringify(parsed)} of ${JSON.stringify(whole)}`);
    const bare = parseServerFrame(JSON.stringify({ t: name }));
    if (name !== "pong" && name !== "popup" && name !== "ok" && name !== "receipts") assert.equal(bare.is, "broken", name);
  }
});

test("every kind of entry is known", () => {
  const kinds = description.components.schemas["EntryKind"]?.enum ?? [];
  assert.ok(kinds.includes("message"));
  // Of an entry of the kind "opaque" there is nothing to know but its number.
  for (const kind of kinds) assert.ok(kind === "opaque" || (ENTRY_KINDS as readonly string[]).includes(String(kind)), `the client does not know the kind "${kind}"`);
});

test("unknown frames are skipped, what is no frame is told", () => {
  assert.deepEqual(parseServerFrame('{"t":"of_a_newer_server","x":1}'), { is: "unknown", t: "of_a_newer_server" });
  for (const text of ["", "{", "[]", "null", "7", '"t"', "{}", '{"t":7}', '{"t":"messages"}', '{"t":"messages","entries":[{}],"cursor":"1"}']) {
    assert.equal(parseServerFrame(text).is, "broken", text);
  }
  assert.equal(parseServerFrame(new ArrayBuffer(2)).is, "broken");
});

test("the JSON frames among the vectors are read as their kind", () => {
  const folder = repositoryFile("fixtures/miop");
  let read = 0;
  for (const file of readdirSync(folder).filter((name) => name.endsWith(".json"))) {
    const { vectors } = JSON.parse(readFileSync(`${folder}/${file}`, "utf8")) as { vectors: readonly { kind?: string; fields?: { json_hex?: string } }[] };
    for (const { kind, fields } of vectors) {
      if (kind !== "chat" || fields?.json_hex === undefined) continue;
      const text = Buffer.from(fields.json_hex, "hex").toString();
      const t = /^\{"t":"(\w+)"/.exec(text)?.[1];
      if (t === undefined) assert.equal(parseServerFrame(text).is, "broken", text);
      else if ((SERVER_FRAMES as readonly string[]).includes(t)) assert.equal(parseServerFrame(text).is, t === "ping" ? "unknown" : "frame", text);
      else assert.ok((CLIENT_FRAMES as readonly string[]).includes(t), text);
      read += 1;
    }
  }
  assert.ok(read >= 5, `${read} vectors were read`);
});

// One of each frame with every field that this client may write; the compiler holds them to their types.
const WRITTEN: readonly ClientFrame[] = [
  { t: "bind", token: "x", device_id: "d", device_kind: "web", app_version: "1", push: true, compact: true, cursor: "c" },
  { t: "send", ref: 1, conversation: "g", body: 1, type: "text", client_msg_id: "m", mentions: ["a"], silent: true, skip_push: true, reply_to: 1 },
  { t: "send", ref: 1, to: "ben", body: 1 },
  { t: "read", ref: 1, conversation: "g", seq: 1 },
  { t: "history", ref: 1, conversation: "g", from_seq: 1, to_seq: 2, from_time: 1, to_time: 2, cursor: "c", limit: 5 },
  { t: "conversations", ref: 1, after: "x", limit: 5, filter: "unread" },
  { t: "conversations", ref: 1, account: "news", assigned_to: "@nobody" },
  { t: "conversations", ref: 1, conversation: "g" },
  { t: "conversations", ref: 1, search: "house" },
  { t: "unread", ref: 1 },
  { t: "receipts", ref: 1, conversation: "g" },
  { t: "watch_presence", ref: 1, users: ["a"], conversation: "g" },
  { t: "unwatch_presence", ref: 1, users: ["a"] },
  { t: "popup", ref: 1, question: { placement: "home" } },
  { t: "popup_events", ref: 1, events: [] },
  { t: "refresh", ref: 0, token: "x" },
  { t: "ping" },
  { t: "edit", ref: 1, conversation: "g", seq: 1, body: 1, type: "text", mentions: [], if_version: 1, client_msg_id: "m" },
  { t: "recall", ref: 1, conversation: "g", seq: 1 },
  { t: "react", ref: 1, conversation: "g", seq: 1, key: "👍", remove: true },
  { t: "pin", ref: 1, conversation: "g", seq: 1, remove: true },
  { t: "preferences", ref: 1, conversation: "g", pinned: true, archived: true, hidden: true, title: null, marked_unread: true, clear_to_seq: 1 },
  { t: "assign", ref: 1, conversation: "g", assigned_to: null, if_assigned_to: null },
  { t: "stream_begin", ref: 1, conversation: "g", body: 1 },
  { t: "stream_end", ref: 1, conversation: "g", seq: 1, body: 1 },
  { t: "typing", conversation: "g" },
  { t: "signal", conversation: "g", type: "stop", body: 1 },
  { t: "ack", pushes: [1] },
  { t: "stored", cursor: "c" },
  { t: "attention", state: "background" },
  { t: "stream_append", conversation: "g", seq: 1, offset: 0, text: "x" },
  { t: "unbind" },
];

test("every field that the client writes is one that the server takes: it refuses others", () => {
  assert.deepEqual(new Set(WRITTEN.map(({ t }) => t)), new Set(CLIENT_FRAMES));
  for (const frame of WRITTEN) {
    const message = description.components.messages[`client_${frame.t}`];
    if (!message) continue;
    const taken = exampleOf(message.payload, description.components.schemas) as object;
    for (const field of Object.keys(frame)) assert.ok(field in taken, `${frame.t}.${field}`);
  }
});

test("an entry that leaves out what the one before it has, too, is completed", () => {
  const first = { conversation: "g", seq: 7, kind: "message", at: 5, from: "ada", type: "text", body: "hi" };
  const whole = [first, { ...first, seq: 8, from: "ben", body: null }, { ...first, seq: 12, at: 6, body: 1 }];
  const entries = [first, { from: "ben", body: null }, { seq: 12, at: 6, from: "ada", body: 1 }];
  const read = parseServerFrame(JSON.stringify({ t: "messages", cursor: "1.0.0.0", entries }));
  assert.deepEqual(read, { is: "frame", frame: { t: "messages", cursor: "1.0.0.0", entries: whole } });
  const alone = parseServerFrame(JSON.stringify({ t: "messages", cursor: "1.0.0.0", entries: [{ from: "ben", body: null }] }));
  assert.equal(alone.is, "broken", "nothing is before the first entry");
});
