// Notifications that were given up, of every channel: why, and what to do with them.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { Outcome, Tabs } from "../parts/form.js";
import { Badge, Card, Failure, Reload, Time } from "../parts/layout.js";
import { outcomeTone, words } from "../parts/notification-check.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { change, withQuery } from "../state/api.js";
import { inline, plural } from "../state/format.js";
import { may } from "../state/own-key.js";
import { href } from "../state/route.js";
import type { DeadLetter, DeadLetterPage } from "../state/types.js";
import { useAction } from "../state/use-ask.js";

const DEAD_LETTERS = "/v1/notifications/dead-letters";
const CHANNELS = { "": "All", webhook: "Webhook", apns: "APNs", fcm: "FCM", web_push: "Web Push", huawei: "Huawei" } as const;
type Channel = keyof typeof CHANNELS;

/** What is replayed or deleted: one letter, or all that are shown. */
interface Chosen {
  readonly which: string;
  readonly body: Readonly<Record<string, unknown>>;
}

export function DeadLetters() {
  const [channel, setChannel] = useState<Channel>("");
  const page = usePages<DeadLetterPage>(withQuery(DEAD_LETTERS, { channel }));
  const { isRunning, failure, run } = useAction();
  const [outcome, setOutcome] = useState<string>();
  const all: Chosen = channel === "" ? { which: "all dead letters", body: {} } : { which: `all dead letters of ${CHANNELS[channel]}`, body: { channel } };
  const one = ({ id }: DeadLetter): Chosen => ({ which: `dead letter ${id}`, body: { ids: [id] } });

  const replay = async ({ which, body }: Chosen): Promise<void> => {
    const isSure = await confirmed({
      title: `Replay ${which}?`,
      text: `The server tries ${which} again, unless the person has read the message meanwhile or is no longer to be notified of it. Your own server may have taken a part before: it tells them apart by their ids. What fails again becomes a dead letter again.`,
      action: "Replay",
    });
    if (!isSure) return;
    await run(async () => {
      const { replayed } = await change<{ readonly replayed: number }>(`Replay ${which}`, { method: "POST", path: `${DEAD_LETTERS}/replay`, body });
      setOutcome(`Tried again: ${plural(replayed, "notification")}.`);
    });
    page.reload();
  };
  const remove = async ({ which, body }: Chosen): Promise<void> => {
    const isSure = await confirmed({ title: `Delete ${which}?`, text: `Nobody is notified of ${which}, and they can no longer be replayed. The messages themselves stay. This cannot be undone.`, action: "Delete", isDangerous: true });
    if (!isSure) return;
    await run(async () => {
      const { deleted } = await change<{ readonly deleted: number }>(`Delete ${which}`, { method: "POST", path: `${DEAD_LETTERS}/delete`, body });
      setOutcome(`Deleted: ${plural(deleted, "dead letter")}.`);
    });
    page.reload();
  };

  const isEmpty = (page.data?.dead_letters.length ?? 0) === 0;
  return (
    <Card
      title="Dead letters"
      note="given up after the last attempt"
      actions={
        <>
          <Tabs label="Channel" tabs={Object.entries(CHANNELS) as unknown as readonly (readonly [Channel, string])[]} chosen={channel} onChoose={setChannel} />
          <Reload asked={page} />
        </>
      }
    >
      <div class="stack">
        <Failure text={failure} />
        <Outcome text={outcome} />
        <PagedTable
          pages={page}
          label="Dead letters"
          empty="No notification was given up."
          columns={[{ title: "Id" }, { title: "Channel" }, { title: "Why the last attempt failed" }, { title: "Attempts", isNumber: true }, { title: "Given up" }, { title: "Notification" }, { title: "" }]}
          rows={({ dead_letters: shown }) => shown.map((letter) => ({
            key: letter.id,
            cells: [
              letter.id,
              words(letter.channel),
              <><Badge tone={outcomeTone(letter.outcome)}>{words(letter.outcome)}</Badge> <span class="failure">{letter.cause}</span></>,
              letter.attempts,
              <Time at={letter.failed_at} />,
              <Event letter={letter} />,
              <span class="row">
                <button type="button" class="plain small" disabled={isRunning || !may("admin")} aria-label={`Replay dead letter ${letter.id}`} onClick={() => void replay(one(letter))}>Replay…</button>
                <button type="button" class="danger small" disabled={isRunning || !may("admin")} aria-label={`Delete dead letter ${letter.id}`} onClick={() => void remove(one(letter))}>Delete…</button>
              </span>,
            ],
          }))}
        />
        <div class="row">
          <button type="button" class="plain" disabled={isRunning || isEmpty || !may("admin")} onClick={() => void replay(all)}>Replay all…</button>
          <button type="button" class="danger" disabled={isRunning || isEmpty || !may("admin")} onClick={() => void remove(all)}>Delete all…</button>
        </div>
      </div>
    </Card>
  );
}

function Event({ letter: { event, conversation, seq, push, users, device_id: device } }: { readonly letter: DeadLetter }) {
  const about = (
    <>
      {conversation !== undefined && <a class="link" href={`${href("conversations", conversation)}?seq=${seq}`}><bdi>{conversation}</bdi> {seq}</a>}
      {push !== undefined && <a class="link" href={href("pushes", push)}>push {push}</a>}
      {users.length === 1 && users[0] !== undefined && <> for <a class="link" href={href("users", users[0])}><bdi>{users[0]}</bdi></a></>}
      {device && <> on <bdi>{device}</bdi></>}
    </>
  );
  if (!event) return about;
  return (
    <>
      {about}
      <details>
        <summary>{inline(event["event"] ?? "notification")}</summary>
        <pre tabIndex={0}>{JSON.stringify(event, undefined, 2)}</pre>
      </details>
    </>
  );
}
