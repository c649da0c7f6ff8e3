// Texts from data: times, previews, what a body says.
import { textOf, type Entry, type Json } from "@tidings/client";

const clock = new Intl.DateTimeFormat(undefined, { hour: "numeric", minute: "2-digit" });
const weekday = new Intl.DateTimeFormat(undefined, { weekday: "long" });
const shortWeekday = new Intl.DateTimeFormat(undefined, { weekday: "short" });
const date = new Intl.DateTimeFormat(undefined, { day: "numeric", month: "long", year: "numeric" });
const shortDate = new Intl.DateTimeFormat(undefined, { day: "2-digit", month: "2-digit", year: "2-digit" });
const full = new Intl.DateTimeFormat(undefined, { dateStyle: "long", timeStyle: "medium" });

const PREVIEW_CHARACTERS_MAX = 160;

export const timeText = (at: number): string => clock.format(at);
export const fullTimeText = (at: number): string => full.format(at);

function daysAgo(at: number): number {
  const start = (time: number): number => new Date(time).setHours(0, 0, 0, 0);
  return Math.round((start(Date.now()) - start(at)) / 86_400_000);
}

export function dayText(at: number): string {
  const days = daysAgo(at);
  if (days === 0) return "Today";
  if (days === 1) return "Yesterday";
  return days > 1 && days < 7 ? weekday.format(at) : date.format(at);
}

export function listTimeText(at: number): string {
  const days = daysAgo(at);
  if (days <= 0) return clock.format(at);
  return days < 7 ? shortWeekday.format(at) : shortDate.format(at);
}

/** One line of a body. */
export function previewOf(type: string, body: Json | undefined): string {
  const text = body === undefined ? undefined : textOf({ body });
  if (text === undefined) return type === "text" ? "Message" : type;
  return text.slice(0, PREVIEW_CHARACTERS_MAX * 2).replace(/\s+/gu, " ").trim().slice(0, PREVIEW_CHARACTERS_MAX);
}

/** What the list shows of a conversation's newest message. */
export function previewOfEntry(entry: Entry | undefined): string {
  if (!entry) return "";
  if (entry.recalled || entry.kind === "recall") return "Message taken back";
  if (entry.kind === "message") return previewOf(entry.type, entry.body);
  if (entry.kind === "edit") return entry.body === null ? "Message edited" : previewOf(entry.type, entry.body);
  if (entry.kind === "member_change") return "Members changed";
  if (entry.kind === "conversation_change") return "Conversation changed";
  if (entry.kind === "reactions") return "New reaction";
  if (entry.kind === "pins") return "Pins changed";
  return "";
}

/** The users whose names a text calls, as `@Name`. */
export function mentionsIn(text: string, names: ReadonlyMap<string, string>): string[] {
  const called = new Set(splitByNames(text, [...names.values()]).filter((_, index) => index % 2 === 1));
  return [...names].filter(([, name]) => called.has(`@${name}`)).map(([user]) => user);
}

// A letter of a word that goes on: `@allison` and `me@all.example` do not call `all`. Scripts that put no space between words have none.
const WORD = "(?![\\p{scx=Han}\\p{scx=Hira}\\p{scx=Kana}\\p{scx=Thai}\\p{scx=Laoo}\\p{scx=Khmr}\\p{scx=Mymr}])[\\p{L}\\p{M}\\p{N}_]";

/** A text in chunks: those of odd index call a name. Of names that begin alike the longest counts. */
export function splitByNames(text: string, names: readonly string[]): string[] {
  if (names.length === 0) return [text];
  const longestFirst = [...names].sort((a, b) => b.length - a.length);
  const pattern = longestFirst.map((name) => name.replace(/[\\^$.*+?()[\]{}|]/gu, "\\$&")).join("|");
  return text.split(new RegExp(`(?<!${WORD})(@(?:${pattern}))(?!${WORD})`, "u"));
}
