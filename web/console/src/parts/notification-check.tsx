// Why a message may not have reached a user: what the server knows, one finding for each step on the way.
import { useState } from "preact/hooks";
import { ask, askIfThere, path, withQuery } from "../state/api.js";
import { count, dateTime, plural } from "../state/format.js";
import type { ConversationPage, ConversationView, DeadLetterPage, DeviceDetails, Entry, MemberPage, MessageReceipts, Paged, PresenceViews, UserProfile } from "../state/types.js";
import { useAction } from "../state/use-ask.js";
import { TextField } from "./form.js";
import { Card, Failure, Finding } from "./layout.js";

interface Told {
  readonly tone: "good" | "warn" | "bad" | "plain";
  readonly text: string;
}

const PAGES_MAX = 20;
const PAGE = 100;

interface Known {
  readonly user: UserProfile;
  readonly presence: PresenceViews | undefined;
  readonly devices: readonly DeviceDetails[] | undefined;
}

export function NotificationCheck({ user, presence, devices }: Known) {
  const [conversation, setConversation] = useState("");
  const [seq, setSeq] = useState("");
  const [found, setFound] = useState<readonly Told[]>();
  const { isRunning, failure, run, setFailure } = useAction();
  const look = (): void => {
    if (conversation.trim() === "" || !/^[1-9]\d*$/u.test(seq.trim())) {
      setFailure("Name the conversation by its id, and the message by its number there.");
      return;
    }
    void run(async () => setFound(await explain({ user, presence, devices }, conversation.trim(), Number(seq))));
  };
  return (
    <Card title="Why did a message not reach this user?" note="from what the server knows now">
      <form class="stack" noValidate onSubmit={(event) => { event.preventDefault(); look(); }}>
        <div class="fields">
          <TextField label="Conversation" value={conversation} placeholder="demo, or alice~bob" onInput={setConversation} />
          <TextField label="Message number" type="number" value={seq} onInput={setSeq} />
        </div>
        <div class="row"><button type="submit" class="plain" disabled={isRunning}>{isRunning ? "Looking…" : "Look"}</button></div>
        <Failure text={failure} />
        <div role="status">{found && <ul class="findings">{found.map(({ tone, text }) => <Finding key={text} tone={tone}>{text}</Finding>)}</ul>}</div>
      </form>
    </Card>
  );
}

async function explain(known: Known, conversation: string, seq: number): Promise<readonly Told[]> {
  const message = await askIfThere<Entry>(path`/v1/conversations/${conversation}/messages/${seq}`);
  if (!message) return [{ tone: "bad", text: `There is no entry ${seq} in a conversation ${conversation}: it was never accepted, or retention has removed it.` }];
  const view = await findConversation(known.user.id, conversation);
  if (!view) return [await aboutAbsence(known.user.id, conversation)];
  const receipts = await askIfThere<MessageReceipts>(path`/v1/conversations/${conversation}/messages/${seq}/receipts`).catch(() => undefined);
  const letters = await deadLettersAbout(known.user.id, conversation, seq);
  return [...aboutMessage(message, known.user.id), ...aboutReading(view, receipts, known.user.id, seq), ...aboutSessions(known, message), ...aboutOfflinePush(known.user, view, message), ...letters];
}

/** Every page of a list until something is found in it. */
async function findIn<P extends Paged, T>(load: (after: string | undefined) => Promise<P>, find: (page: P) => T | undefined): Promise<T | undefined> {
  let after: string | undefined;
  for (let read = 0; read < PAGES_MAX; read += 1) {
    const page = await load(after);
    const found = find(page);
    if (found !== undefined || page.next === undefined || page.next === null) return found;
    after = page.next;
  }
  return undefined;
}

/** The user's own view of the conversation, archived ones, too. */
async function findConversation(user: string, conversation: string): Promise<ConversationView | undefined> {
  for (const filter of [undefined, "archived"]) {
    const load = (after: string | undefined): Promise<ConversationPage> => ask(withQuery(path`/v1/users/${user}/conversations`, { filter, after, limit: PAGE }));
    const found = await findIn(load, ({ conversations }) => conversations.find(({ id }) => id === conversation));
    if (found) return found;
  }
  return undefined;
}

/** Why a conversation is not in the user's list. */
async function aboutAbsence(user: string, conversation: string): Promise<Told> {
  const load = (after: string | undefined): Promise<MemberPage> => ask(withQuery(path`/v1/conversations/${conversation}/members`, { after, limit: PAGE }));
  const member = await findIn(load, ({ members }) => members.find((one) => one.user === user));
  if (member) return { tone: "warn", text: `${user} is a member of ${conversation}, and has hidden it from the list until the next message comes.` };
  return { tone: "bad", text: `${user} is no member of ${conversation} now, so the entry is not handed to this user.` };
}

function aboutMessage({ seq, at, from, kind, silent, recalled }: Entry, user: string): readonly Told[] {
  const told: Told[] = [{ tone: "good", text: `Entry ${seq} was committed at ${dateTime(at)}.` }];
  if (kind !== "message") told.push({ tone: "plain", text: `It is no message but a notice (${kind}): nobody is notified of it.` });
  if (from === user) told.push({ tone: "plain", text: "The user sent it: own messages are neither counted as unread nor notified." });
  if (recalled) told.push({ tone: "warn", text: "It was taken back: it has no body any more." });
  if (silent === true) told.push({ tone: "warn", text: "It is silent: neither counted as unread nor notified while the user is away." });
  return told;
}

function aboutReading({ read_seq: read, cleared_seq: cleared }: ConversationView, receipts: MessageReceipts | undefined, user: string, seq: number): readonly Told[] {
  const mine = receipts?.receipts?.find((one) => one.user === user);
  if (read >= seq) return [{ tone: "good", text: `The user has read it: the read mark is at ${count(read)}.` }];
  if (mine?.delivered === true) return [{ tone: "good", text: "A client of the user has stored it. It is not read yet." }];
  if (cleared !== undefined && cleared >= seq) return [{ tone: "warn", text: `The user has cleared the history up to ${count(cleared)}: the message is no longer shown.` }];
  const told: Told = mine ? { tone: "bad", text: "No client of the user has said that it has the message." } : { tone: "plain", text: "Whether a client has it is not known: the conversation keeps no receipts by member." };
  return [told, { tone: "plain", text: `It is unread: the read mark is at ${count(read)}.` }];
}

function aboutSessions({ presence, devices }: Known, { at }: Entry): readonly Told[] {
  const told: Told[] = [];
  const stored = presence?.stored ?? [];
  const memory = presence?.memory ?? [];
  const since = stored.filter((session) => session.since <= at).length;
  if (stored.length === 0) {
    const seen = presence?.last_seen;
    told.push({ tone: "warn", text: `The user is not connected${seen ? `, since ${dateTime(seen)}` : " and never was"}: the message waits until a client resumes.` });
  } else if (since > 0) {
    told.push({ tone: "good", text: `${since} of ${stored.length} sessions were open when it was sent: it was handed to them.` });
  } else {
    told.push({ tone: "plain", text: `The sessions of now were opened after it was sent: they got it when they resumed, if their cursors are from before.` });
  }
  if (stored.some(({ session }) => !memory.some((held) => held.session === session))) {
    told.push({ tone: "bad", text: "A registered session is held by no node: compare and repair under Presence." });
  }
  const waiting = (devices ?? []).reduce((sum, { pending }) => sum + pending, 0);
  if (waiting > 0) told.push({ tone: "warn", text: `The user's devices have ${plural(waiting, "push", "pushes")} to acknowledge.` });
  return told;
}

function aboutOfflinePush(user: UserProfile, { muted, muted_until: until, mentions }: ConversationView, { silent }: Entry): readonly Told[] {
  const told: Told[] = [];
  if (muted) told.push({ tone: "warn", text: `The user has muted the conversation${until ? ` until ${dateTime(until)}` : ""}: no offline push${mentions > 0 ? " but for mentions" : ""}.` });
  const quiet = user.do_not_disturb;
  if (quiet) {
    const isNow = isWithin(quiet);
    told.push({ tone: isNow ? "warn" : "plain", text: `No offline push goes out from ${quiet.start} to ${quiet.end} (${quiet.time_zone})${isNow ? ": that is now" : ""}.` });
  }
  if (told.length === 0 && silent !== true) told.push({ tone: "good", text: "Neither a mute nor a do-not-disturb window keeps an offline push back." });
  return told;
}

function isWithin({ start, end, time_zone: zone }: NonNullable<UserProfile["do_not_disturb"]>): boolean {
  try {
    const now = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", timeZone: zone, hourCycle: "h23" }).format(Date.now());
    return start <= end ? now >= start && now < end : now >= start || now < end;
  } catch {
    return false;
  }
}

/** What the webhook or a provider did not take of this message. */
async function deadLettersAbout(user: string, conversation: string, seq: number): Promise<readonly Told[]> {
  const load = (after: string | undefined): Promise<DeadLetterPage> => ask(withQuery("/v1/notifications/dead-letters", { user, after, limit: PAGE }));
  const found = await findIn(load, ({ dead_letters: letters }) => letters.find((letter) => letter.conversation === conversation && letter.seq === seq));
  if (!found) return [{ tone: "good", text: "No dead letter is about it." }];
  return [{ tone: "bad", text: `Its notification by ${found.channel} was given up${found.cause === undefined ? "" : ` (${found.cause})`}. It is dead letter ${found.id}.` }];
}
