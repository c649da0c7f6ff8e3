// What the webhook takes, and what it did not take.
import { useState } from "preact/hooks";
import { useObservable } from "../../../src/state/cell.js";
import { collected } from "../metrics/collector.js";
import { Outcome } from "../parts/form.js";
import { confirmed } from "../parts/confirm.js";
import { Badge, Card, Facts, Failure, Finding, Page, Reload, Time } from "../parts/layout.js";
import { PagedTable, usePages } from "../parts/paged-table.js";
import { Plot } from "../parts/plot.js";
import { ask, change, withQuery } from "../state/api.js";
import { count, inline, plural } from "../state/format.js";
import type { DeadLetter, DeadLetterPage, SettingView } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";

const DEAD_LETTERS = "/v1/notifications/dead-letters";
const OF_WEBHOOK = { channel: "webhook" };

export function WebhookPage() {
  return (
    <Page title="Webhook" about="Notifications for members who are not connected, as the server posts them to your own server.">
      <State />
      <DeadLetters />
    </Page>
  );
}

function State() {
  const { newest, history } = useObservable(collected);
  const settings = useAsk(() => ask<{ readonly settings: readonly SettingView[] }>("/v1/admin/settings"), []);
  const setting = (name: string): string | undefined => settings.data?.settings.find((one) => one.name === name)?.value;
  const url = setting("webhook.url");
  const value = (name: string): number => newest?.value(`tidings_webhook_${name}`) ?? 0;
  const isFailing = value("failing") > 0;
  return (
    <>
      <Card title="State" note={url === undefined ? undefined : `posted to ${JSON.parse(url) as string}`}>
        <div class="stack">
          <ul class="findings">
            {settings.data && url === undefined && <Finding tone="plain">No webhook is set, so nothing is posted. The setting is webhook.url.</Finding>}
            {url !== undefined && isFailing && <Finding tone="bad">The breaker is open: the webhook takes nothing, and the server tries with one notification at a time.</Finding>}
            {url !== undefined && !isFailing && <Finding tone="good">The breaker is closed: notifications are posted as they come.</Finding>}
            {value("parked") > 0 && <Finding tone="warn">{plural(value("parked"), "notification")} to be tried again, with those behind them of the same conversations.</Finding>}
            {value("dead_total") > 0 && <Finding tone="warn">{plural(value("dead_total"), "notification")} given up since this node started. They are dead letters.</Finding>}
          </ul>
          <Facts
            facts={[
              ["Taken", count(value("delivered_total"))], ["Failed attempts", count(value("retries_total"))], ["Given up", count(value("dead_total"))],
              ["Behind the log", count(value("lag"))], ["Attempts at most", setting("webhook.attempts_max") ?? "–"], ["Time-out", `${setting("webhook.timeout_ms") ?? "–"} ms`],
            ]}
          />
        </div>
      </Card>
      {history.length > 0 && (
        <Plot
          title="Behind the log, and waiting for another attempt"
          at={history.map(({ at }) => at)}
          format={count}
          series={[{ label: "lag", values: history.map(({ outboxLag }) => outboxLag) }, { label: "parked", values: history.map(({ outboxParked }) => outboxParked) }]}
        />
      )}
    </>
  );
}

function DeadLetters() {
  const page = usePages<DeadLetterPage>(withQuery(DEAD_LETTERS, OF_WEBHOOK));
  const { isRunning, failure, run } = useAction();
  const [outcome, setOutcome] = useState<string>();

  const replay = async (letters: readonly DeadLetter[] | undefined): Promise<void> => {
    const which = letters === undefined ? "all dead letters of the webhook" : `dead letter ${letters.map(({ id }) => id).join(", ")}`;
    const isSure = await confirmed({
      title: letters === undefined ? "Replay all dead letters?" : "Replay this dead letter?",
      text: `The server posts ${which} to the webhook again. Your own server may have taken a part of them before: it tells them apart by their ids. What fails again becomes a dead letter again.`,
      action: letters === undefined ? "Replay all" : "Replay",
    });
    if (!isSure) return;
    await run(async () => {
      const body = letters === undefined ? OF_WEBHOOK : { ids: letters.map(({ id }) => id) };
      const { replayed } = await change<{ readonly replayed: number }>(`Replay ${which}`, { method: "POST", path: `${DEAD_LETTERS}/replay`, body });
      setOutcome(`Tried again: ${plural(replayed, "notification")}.`);
    });
    page.reload();
  };

  const letters = page.data?.dead_letters ?? [];
  return (
    <Card
      title="Dead letters"
      note="oldest first"
      actions={
        <>
          <Reload asked={page} />
          <button type="button" class="plain" disabled={isRunning || letters.length === 0} onClick={() => void replay(undefined)}>Replay all…</button>
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
          columns={[{ title: "Id" }, { title: "Why the last attempt failed" }, { title: "Attempts", isNumber: true }, { title: "Given up" }, { title: "Notification" }, { title: "" }]}
          rows={({ dead_letters: shown }) => shown.map((letter) => ({
            key: letter.id,
            cells: [
              letter.id,
              <span class="failure">{letter.cause}</span>,
              letter.attempts,
              <Time at={letter.failed_at} />,
              <Event letter={letter} />,
              <button type="button" class="plain small" disabled={isRunning} aria-label={`Replay dead letter ${letter.id}`} onClick={() => void replay([letter])}>Replay…</button>,
            ],
          }))}
        />
      </div>
    </Card>
  );
}

function Event({ letter: { event, conversation } }: { readonly letter: DeadLetter }) {
  return (
    <details>
      <summary>{inline(event?.["event"] ?? "notification")} <Badge><bdi>{conversation}</bdi></Badge></summary>
      <pre tabIndex={0}>{JSON.stringify(event, undefined, 2)}</pre>
    </details>
  );
}
