// What a message says, as text: nothing of it is markup, and nothing of it reaches beyond its bubble.
import { textOf, type Message } from "@tidings/client";
import { useState } from "preact/hooks";
import { Icon } from "../parts/icon.js";
import { useObservable } from "../state/cell.js";
import { useSession } from "../state/context.js";
import { EVERYBODY } from "../state/names.js";
import { splitByNames } from "../text.js";

// Longer bodies show their beginning first; the browser breaks a word of 64 KiB into lines slowly.
const CHARACTERS_SHOWN = 1_000;

export function Body({ message }: { readonly message: Message }) {
  const [isWhole, setWhole] = useState(false);
  const text = textOf(message);
  if (text === undefined) return <OtherBody type={message.type} body={message.body} />;
  const growing = message.state === "sent" ? message.growing : undefined;
  const isGrowing = growing === "open";
  // A message that grows is read as it is written, at its end.
  const isLong = !isGrowing && text.length > CHARACTERS_SHOWN * 1.5;
  const shown = isLong && !isWhole ? `${sliceWhole(text, CHARACTERS_SHOWN)}…` : text;
  return (
    <>
      <p class={`body ${isOnlyEmoji(text) ? "is-emoji" : ""} ${isGrowing ? "is-growing" : ""}`} dir="auto">
        <WithMentions text={shown} message={message} />
      </p>
      {isLong && (
        <button type="button" class="link" onClick={() => setWhole(!isWhole)}>
          {isWhole ? "Show less" : `Show all ${text.length.toLocaleString()} characters`}
        </button>
      )}
      {growing === "interrupted" && <p class="body is-note">It broke off here.</p>}
      {isGrowing && <Stop message={message} />}
    </>
  );
}

/** For an answer that this window writes. */
function Stop({ message }: { readonly message: Message }) {
  const { assistant } = useSession();
  const writing = useObservable(assistant.writing);
  if (message.state !== "sent" || !writing.has(`${message.conversation}/${message.seq}`)) return null;
  return <button type="button" class="stop" onClick={() => assistant.stop(message.conversation, message.seq)}><Icon name="stop" />Stop</button>;
}

function WithMentions({ text, message: { mentions: users, from } }: { readonly text: string; readonly message: Message }) {
  const { names, tidings } = useSession();
  const called = users.map((user) => names.of(user));
  useObservable<unknown>(called[0] ?? tidings.status); // names come late, and once
  if (users.length === 0) return <>{text}</>;
  // Whoever calls everybody calls the others.
  const mine = [tidings.user, ...(from === tidings.user ? [] : [EVERYBODY])].map((user) => `@${names.of(user).get()}`);
  const chunks = splitByNames(text, called.map((name) => name.get()));
  return <>{chunks.map((chunk, index) => (index % 2 === 1 ? <span key={index} class={`mention ${mine.includes(chunk) ? "is-me" : ""}`}>{chunk}</span> : chunk))}</>;
}

function OtherBody({ type, body }: { readonly type: string; readonly body: unknown }) {
  return (
    <p class="body is-other" dir="auto">
      <span class="body-type"><bdi>{type}</bdi></span>
      <code>{JSON.stringify(body).slice(0, CHARACTERS_SHOWN)}</code>
    </p>
  );
}

/** The beginning of a text that does not end within a character. */
function sliceWhole(text: string, characters: number): string {
  const end = text.charCodeAt(characters - 1);
  const isHalf = end >= 0xd800 && end <= 0xdbff;
  return text.slice(0, isHalf ? characters - 1 : characters);
}

function isOnlyEmoji(text: string): boolean {
  return text.length <= 16 && /^(\p{Extended_Pictographic}[\u{fe0f}\u{200d}\u{1f3fb}-\u{1f3ff}]*){1,3}$/u.test(text.trim());
}
