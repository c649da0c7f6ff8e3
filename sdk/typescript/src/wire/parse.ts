// Reads what a server sends. A frame whose `t` is unknown is skipped; a known one must have what this client relies on, so that
// nothing further in needs to doubt it.
import { SERVER_FRAMES, type ServerFrame } from "./server-frames.js";

export type Parsed =
  | { readonly is: "frame"; readonly frame: ServerFrame }
  | { readonly is: "unknown"; readonly t: string }
  | { readonly is: "broken"; readonly why: string };

type Fields = { readonly [name: string]: unknown };
type Check = (fields: Fields) => boolean;

const isObject = (value: unknown): value is Fields => typeof value === "object" && value !== null && !Array.isArray(value);
const isText = (value: unknown): value is string => typeof value === "string";
const isCount = (value: unknown): value is number => typeof value === "number" && Number.isSafeInteger(value) && value >= 0;
const isOptionalCount = (value: unknown): boolean => value === undefined || value === null || isCount(value);
const isListOf = (check: Check) => (value: unknown): boolean => Array.isArray(value) && value.every((item) => isObject(item) && check(item));
const isOptionalListOf = (check: Check) => (value: unknown): boolean => value === undefined || value === null || isListOf(check)(value);

const isEntry: Check = ({ conversation, seq, kind, at, type }) =>
  isText(conversation) && isCount(seq) && seq > 0 && isText(kind) && isCount(at) && isText(type);

const isView: Check = ({ id, kind, last_seq, last_at, read_seq, unread, mentions }) =>
  isText(id) && isText(kind) && isCount(last_seq) && isCount(last_at) && isCount(read_seq) && isCount(unread) && isCount(mentions);

const isRange: Check = ({ conversation, from_seq, to_seq }) => isText(conversation) && isCount(from_seq) && isCount(to_seq);
const isReceipt: Check = ({ conversation, seq, at }) => isText(conversation) && isCount(seq) && isCount(at);

const LEFT_OUT = ["conversation", "kind", "at", "type"] as const;

// Gives each entry what it leaves out because the entry before it has it: a session that asked for compact entries gets such.
function completeEntries(entries: unknown): void {
  if (!isListOf(() => true)(entries)) return;
  let before: Record<string, unknown> | undefined;
  for (const entry of entries as Record<string, unknown>[]) {
    if (before) {
      for (const name of LEFT_OUT) entry[name] ??= before[name];
      entry["seq"] ??= Number(before["seq"]) + 1;
    }
    before = entry;
  }
}

const CHECKS: { readonly [T in ServerFrame["t"]]: Check } = {
  bound: ({ session, user, heartbeat_ms, cursor, resume }) =>
    isText(session) && isText(user) && isCount(heartbeat_ms) && isText(cursor) && isObject(resume) &&
    typeof resume["complete"] === "boolean" && isOptionalListOf(isRange)(resume["ranges"]),
  error: ({ code, message, retry, ref }) => isText(code) && isText(message) && typeof retry === "boolean" && isOptionalCount(ref),
  messages: ({ entries, cursor }) => isListOf(isEntry)(entries) && isText(cursor),
  sent: ({ results }) => isListOf(isReceipt)(results),
  ok: ({ ref }) => isOptionalCount(ref),
  pong: () => true,
  appended: ({ ref, offset }) => isOptionalCount(ref) && isCount(offset),
  read: ({ conversation, user, seq }) => isText(conversation) && isText(user) && isCount(seq),
  typing: ({ conversation, user }) => isText(conversation) && isText(user),
  signal: ({ conversation, type }) => isText(conversation) && isText(type),
  membership: ({ conversation, member }) => isText(conversation) && typeof member === "boolean",
  presence: ({ changes }) => isListOf(({ user, online }) => isText(user) && typeof online === "boolean")(changes),
  push: ({ push, type }) => isCount(push) && isText(type),
  popup: ({ show }) => show === undefined || show === null || (isObject(show) && isText(show["decision"])),
  history: ({ conversation, entries, more }) => isText(conversation) && isListOf(isEntry)(entries) && typeof more === "boolean",
  conversations: ({ conversations }) => isListOf(isView)(conversations),
  reconnect: ({ after_ms }) => isCount(after_ms),
  receipts: ({ conversation, marks, moved }) =>
    isText(conversation) && isOptionalListOf(({ user }) => isText(user))(marks) &&
    isOptionalListOf(({ from_seq, to_seq, count }) => isCount(from_seq) && isCount(to_seq) && isCount(count))(moved),
  unread: ({ unread, mentions, lines }) =>
    isCount(unread) && isCount(mentions) &&
    isListOf(({ conversation, unread: of, mentions: named }) => isText(conversation) && isCount(of) && isCount(named))(lines),
  user: ({ user }) => isObject(user) && isText(user["id"]),
  conversation: ({ conversation }) => isObject(conversation) && isView(conversation),
  stream: ({ conversation, seq, offset, text }) => isText(conversation) && isCount(seq) && isCount(offset) && isText(text),
};

const KNOWN: ReadonlySet<string> = new Set(SERVER_FRAMES);

export function parseServerFrame(text: unknown): Parsed {
  if (!isText(text)) return { is: "broken", why: "the server sent a message that is no text" };
  let fields: unknown;
  try {
    fields = JSON.parse(text);
  } catch {
    return { is: "broken", why: "the server sent a message that is no JSON" };
  }
  if (!isObject(fields) || !isText(fields["t"])) return { is: "broken", why: "the server sent JSON that is no frame" };
  const t = fields["t"];
  if (!KNOWN.has(t)) return { is: "unknown", t };
  if (t === "messages") completeEntries(fields["entries"]);
  const check = CHECKS[t as ServerFrame["t"]];
  if (!check(fields)) return { is: "broken", why: `the server sent a frame "${t}" without what it must have` };
  return { is: "frame", frame: fields as unknown as ServerFrame };
}
