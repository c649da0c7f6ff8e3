// An entry of a timeline, and what became of it. Bodies are text nodes, whatever they hold.
import { useState } from "preact/hooks";
import { ask, change, path } from "../state/api.js";
import { dateTime, inline } from "../state/format.js";
import { may } from "../state/own-key.js";
import { href } from "../state/route.js";
import type { BodyVersions, Entry, MessageReceipts } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";
import { confirmed } from "./confirm.js";
import { Badge, Failure, Loaded, Time } from "./layout.js";

const CHARACTERS_MAX = 4_000;

/** What a body says: its `text`, or its JSON. */
export function bodyText(body: unknown): string {
  const text = typeof body === "object" && body !== null ? (body as { text?: unknown }).text : undefined;
  const whole = typeof text === "string" && Object.keys(body as object).length === 1 ? text : inline(body);
  return whole.length > CHARACTERS_MAX ? `${whole.slice(0, CHARACTERS_MAX)}…` : whole;
}

// More are counted.
const MENTIONS_SHOWN_MAX = 3;

function namesOf(users: readonly string[]): string {
  const more = users.length - MENTIONS_SHOWN_MAX;
  return users.slice(0, MENTIONS_SHOWN_MAX).join(", ") + (more > 0 ? ` and ${more} more` : "");
}

const NOTICES: { readonly [kind: string]: string } = {
  edit: "edits", recall: "takes back", member_change: "members change", conversation_change: "the card changes", reactions: "reactions change", pins: "pins change",
};

type Detail = "receipts" | "versions" | "json";

export function EntryRow({ entry, isWanted, onChanged }: { readonly entry: Entry; readonly isWanted: boolean; readonly onChanged: () => void }) {
  const [detail, setDetail] = useState<Detail>();
  const isMessage = entry.kind === "message";
  const { recalled, edited_at: editedAt, stream } = entry;
  const toggle = (wanted: Detail, name: string) => (
    <button type="button" class="link" aria-expanded={detail === wanted} onClick={() => setDetail(detail === wanted ? undefined : wanted)}>{name}</button>
  );
  return (
    <li class={isMessage ? "entry" : "entry is-notice"} {...(isWanted && { "aria-current": true as const })}>
      <span class="entry-seq">{entry.seq}</span>
      <div>
        <div class="entry-head">
          {entry.from ? <a class="link" href={href("users", entry.from)}><bdi>{entry.from}</bdi></a> : <strong>the app</strong>}
          <time class="soft" dateTime={new Date(entry.at).toISOString()}>{dateTime(entry.at)}</time>
          {!isMessage && <Badge>{NOTICES[entry.kind] ?? entry.kind}{entry.target ? ` ${entry.target}` : ""}</Badge>}
          {isMessage && entry.type !== "text" && <Badge><bdi>{entry.type}</bdi></Badge>}
          {entry.reply_to && <Badge>answers {entry.reply_to.seq}</Badge>}
          {entry.mentions && entry.mentions.length > 0 && <Badge tone="accent">mentions <bdi>{namesOf(entry.mentions)}</bdi></Badge>}
          {entry.silent === true && <Badge>silent</Badge>}
          {editedAt ? <Badge tone="warn">edited <Time at={editedAt} /></Badge> : null}
          {recalled && <Badge tone="bad">recalled by {recalled.by ? <bdi>{recalled.by}</bdi> : "the app"}</Badge>}
          {entry.pinned && <Badge tone="accent">pinned</Badge>}
          {stream && <Badge tone="warn">{stream === "open" ? "still growing" : "interrupted"}</Badge>}
        </div>
        {!recalled && entry.body !== null && entry.body !== undefined && <div class="entry-body">{bodyText(entry.body)}</div>}
        {entry.reactions && entry.reactions.length > 0 && (
          <ul class="reactions" aria-label="Reactions">
            {entry.reactions.map(({ key, count, users }) => <li key={key}><span class="badge" title={users.join(", ")}><bdi>{key}</bdi> {count}</span></li>)}
          </ul>
        )}
        <div class="entry-tools">
          {isMessage && toggle("receipts", "Receipts")}
          {isMessage && may("moderation") && entry.version && entry.version > 1 ? toggle("versions", "Versions") : null}
          {toggle("json", "JSON")}
          {isMessage && !recalled && may("moderation") && <Recall entry={entry} onDone={onChanged} />}
        </div>
        {detail === "receipts" && <Receipts entry={entry} />}
        {detail === "versions" && <Versions entry={entry} />}
        {detail === "json" && <pre tabIndex={0}>{JSON.stringify(entry, undefined, 2)}</pre>}
      </div>
    </li>
  );
}

function Recall({ entry: { conversation, seq, from }, onDone }: { readonly entry: Entry; readonly onDone: () => void }) {
  const { isRunning, failure, run } = useAction();
  const recall = async (): Promise<void> => {
    const isSure = await confirmed({
      title: `Take back message ${seq}?`,
      text: `The message of ${from ?? "the app"} in ${conversation} loses its body for all members, on all their devices, and all versions of it. Members see that it was taken back by the app. This cannot be undone.`,
      action: "Take it back",
      isDangerous: true,
    });
    if (!isSure) return;
    if (await run(() => change(`Take back message ${seq} of ${conversation}`, { method: "DELETE", path: path`/v1/conversations/${conversation}/messages/${seq}` }))) onDone();
  };
  return (
    <>
      <button type="button" class="link failure" disabled={isRunning} onClick={() => void recall()}>Take back…</button>
      <Failure text={failure} />
    </>
  );
}

function Receipts({ entry: { conversation, seq } }: { readonly entry: Entry }) {
  const asked = useAsk(() => ask<MessageReceipts>(path`/v1/conversations/${conversation}/messages/${seq}/receipts`), [conversation, seq]);
  return (
    <Loaded asked={asked}>
      {({ delivered, read, members, receipts }) => (
        <div class="stack">
          <p>Of {members} members {delivered} have it, and {read} have read it.</p>
          {receipts && <p class="row">{receipts.map((one) => <Badge key={one.user} tone={one.read ? "good" : one.delivered ? "accent" : "plain"}><bdi>{one.user}</bdi> {one.read ? "read" : one.delivered ? "has it" : "not yet"}</Badge>)}</p>}
        </div>
      )}
    </Loaded>
  );
}

function Versions({ entry: { conversation, seq } }: { readonly entry: Entry }) {
  const asked = useAsk(() => ask<BodyVersions>(path`/v1/conversations/${conversation}/messages/${seq}/versions`), [conversation, seq]);
  return (
    <Loaded asked={asked}>
      {({ versions }) => (
        <ul class="stack">
          {versions.map(({ version, at, by, body }) => <li key={version}><span class="soft">{version}, {dateTime(at)}, by {by ? <bdi>{by}</bdi> : "the app"}</span><div class="entry-body">{bodyText(body)}</div></li>)}
        </ul>
      )}
    </Loaded>
  );
}
