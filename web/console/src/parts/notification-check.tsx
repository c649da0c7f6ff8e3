// Why a message did, or did not, reach a user: the server's own account.
import { useState } from "preact/hooks";
import { ask, path, withQuery } from "../state/api.js";
import { dateTime } from "../state/format.js";
import type { MessageNotifications, NotificationOutcome } from "../state/types.js";
import { useAction } from "../state/use-ask.js";
import { TextField } from "./form.js";
import { Badge, Card, Failure, Finding, Table, type Tone } from "./layout.js";

const GOOD: readonly NotificationOutcome[] = ["read", "acknowledged", "active", "accepted", "replayed"];
const BAD: readonly NotificationOutcome[] = ["refused", "token_gone", "expired", "not_a_member", "not_set_up", "no_device"];
const OPEN: readonly NotificationOutcome[] = ["waiting", "retried", "unacknowledged"];

export function outcomeTone(outcome: NotificationOutcome): Exclude<Tone, "accent"> {
  if (GOOD.includes(outcome)) return "good";
  if (BAD.includes(outcome)) return "bad";
  return OPEN.includes(outcome) ? "warn" : "plain";
}

/** A stable name as words. */
export function words(name: string): string {
  return name.replaceAll("_", " ");
}

export function NotificationCheck({ user }: { readonly user: string }) {
  const [conversation, setConversation] = useState("");
  const [seq, setSeq] = useState("");
  const [found, setFound] = useState<MessageNotifications>();
  const { isRunning, failure, run, setFailure } = useAction();
  const look = (): void => {
    setFound(undefined);
    if (conversation.trim() === "" || !/^[1-9]\d*$/u.test(seq.trim())) {
      setFailure("Name the conversation by its id, and the message by its number there.");
      return;
    }
    const where = path`/v1/conversations/${conversation.trim()}/messages/${seq.trim()}/notifications`;
    void run(async () => setFound(await ask<MessageNotifications>(withQuery(where, { user }))));
  };
  return (
    <Card title="Why did a message not reach this user?" note="what was decided, and what became of each channel">
      <form class="stack" noValidate onSubmit={(event) => { event.preventDefault(); look(); }}>
        <div class="fields">
          <TextField label="Conversation" value={conversation} placeholder="demo, or alice~bob" onInput={setConversation} />
          <TextField label="Message number" type="number" value={seq} onInput={setSeq} />
        </div>
        <div class="row"><button type="submit" class="plain" disabled={isRunning}>{isRunning ? "Looking…" : "Look"}</button></div>
        <Failure text={failure} />
        <div class="stack" role="status">{found && <Account found={found} />}</div>
      </form>
    </Card>
  );
}

function Account({ found: { summary, outcome, steps, sent_at: sent } }: { readonly found: MessageNotifications }) {
  return (
    <>
      <ul class="findings">
        <Finding tone={outcomeTone(outcome)}>{summary}</Finding>
        <Finding tone="plain">It was sent on {dateTime(sent)}.</Finding>
      </ul>
      {steps.length > 0 && (
        <Table
          label="Steps"
          columns={[{ title: "When" }, { title: "Channel" }, { title: "Outcome" }, { title: "Device" }, { title: "Until" }, { title: "Rule" }, { title: "Cause" }]}
          rows={steps.map(({ at, channel, outcome: what, device, until, rule, cause }, index) => ({
            key: index,
            cells: [
              at ? dateTime(at) : "now", channel ? words(channel) : "–", <Badge tone={outcomeTone(what)}>{words(what)}</Badge>,
              <bdi>{device ?? "–"}</bdi>, until ? dateTime(until) : "–", <bdi>{rule ?? "–"}</bdi>, cause ? <span class="failure"><bdi>{cause}</bdi></span> : "–",
            ],
          }))}
        />
      )}
    </>
  );
}
