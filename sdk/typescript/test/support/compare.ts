// A client's list and timelines beside the models of its conversations.
import type { Conversation, Message, SentMessage, Tidings } from "../../src/index.js";
import type { ConversationModel, Line, Shown } from "./chat-model.js";

export interface Compared {
  readonly id: string;
  chat: Conversation;
  readonly model: ConversationModel;
}

/** What the client shows otherwise than the models say. */
export function differences(client: Tidings, rooms: readonly Compared[]): readonly string[] {
  const found: string[] = [];
  const check = (what: string, shown: unknown, expected: unknown): void => {
    const [a, b] = [JSON.stringify(shown), JSON.stringify(expected)];
    if (a !== b) found.push(`${what}:\n  shown    ${a}\n  expected ${b}`);
  };
  const { items, unread, mentions } = client.conversations.get();
  const listed = rooms.filter(({ model }) => model.isListed);
  check("the list", items.map(({ id }) => id).sort(), listed.map(({ id }) => id).sort());
  const order = items.map(({ pinned_at, last_at }) => [Number(pinned_at != null), last_at] as const);
  check("the list's order", order, [...order].sort(([a, at], [b, bt]) => b - a || bt - at));
  const lines = listed.map(({ model }) => model.line);
  check("all unread", unread, lines.reduce((sum, line) => sum + (line.isMuted ? 0 : line.unread), 0));
  check("all mentions", mentions, lines.reduce((sum, line) => sum + line.mentions, 0));
  for (const { id, model, chat } of rooms) {
    const view = items.find((item) => item.id === id);
    if (view && model.isListed) {
      const last = view.last_message;
      const line: Line = {
        unread: view.unread, mentions: view.mentions, isPinned: view.pinned_at != null, isMarked: view.marked_unread ?? false,
        isMuted: view.muted, title: view.title,
        last: last && shownOf({
          ...last, from: last.from ?? undefined, mentions: last.mentions ?? [], silent: last.silent ?? false, version: last.version ?? 1, reactions: last.reactions ?? [],
          edited: last.edited_at == null ? undefined : { at: last.edited_at, ...(last.edited_by != null && { by: last.edited_by }) }, replyTo: last.reply_to,
          recalled: last.recalled, pinned: last.pinned,
        }),
      };
      check(`the line of ${id}`, line, model.line);
    }
    if (!model.isMember) continue;
    const { marks } = chat.receipts.get();
    const read = [...model.marks].map(([user]) => [user, marks.get(user)?.read ?? 0]);
    check(`the marks of ${id}`, read, [...model.marks]);
    const { items: shown, state, hasOlder } = chat.messages.get();
    check(`the state of ${id}`, state, "ready");
    const messages = shown.filter((item): item is Message => item.is === "message");
    const sent = messages.filter((message): message is SentMessage => message.state === "sent");
    check(`what ${id} has not sent`, messages.filter(({ state }) => state === "pending").map(({ body }) => body), []);
    const all = model.timeline;
    const low = hasOlder ? (sent[0]?.seq ?? Infinity) : 0;
    const expected = all.filter(({ seq }) => seq >= low);
    check(`the numbers of ${id}`, sent.map(({ seq }) => seq), expected.map(({ seq }) => seq));
    for (const message of sent) check(`${id}, ${message.seq}`, shownOf(message), expected.find(({ seq }) => seq === message.seq));
    check(`the keys of ${id} are different`, new Set(shown.map(({ key }) => key)).size, shown.length);
    if (!hasOlder && model.cleared === 0 && id.startsWith("g-")) {
      const notices = shown.filter((item) => item.is === "notice").length;
      check(`the notices of ${id}`, notices, model.notices);
    }
  }
  return found;
}

type Comparable = Pick<SentMessage, "seq" | "at" | "from" | "body" | "mentions" | "silent" | "version" | "edited" | "recalled" | "reactions" | "pinned" | "replyTo">;

function shownOf(message: { readonly [Field in keyof Comparable]: Comparable[Field] | undefined }): Shown {
  const { seq, at, from, body, mentions, silent, version, edited, recalled, reactions, pinned, replyTo } = message as Comparable;
  const by = (mark: { readonly at: number; readonly by?: string | null } | undefined) => mark && { at: mark.at, ...(mark.by != null && { by: mark.by }) };
  return {
    seq, at, from, body, mentions, silent, version,
    edited: by(edited),
    recalled: by(recalled),
    reactions: reactions.map(({ key, users, count }) => [key, ...[...users].sort(), ...(count === users.length ? [] : [`of ${count}`])].join(" ")).sort(),
    pinned: pinned && (pinned.by ?? "the app"),
    replyTo: replyTo && { seq: replyTo.seq, from: replyTo.from ?? undefined, body: replyTo.body, recalled: replyTo.recalled ?? false },
  };
}
