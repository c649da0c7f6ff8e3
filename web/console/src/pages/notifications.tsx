// By which channels people are notified, what came of them, and what was given up.
import { useObservable } from "../../../src/state/cell.js";
import { collected } from "../metrics/collector.js";
import { Card, Facts, Finding, Loaded, Page, Reload, Table } from "../parts/layout.js";
import { words } from "../parts/notification-check.js";
import { Plot } from "../parts/plot.js";
import { ask, withQuery } from "../state/api.js";
import { count, milliseconds, plural } from "../state/format.js";
import { href, type Route } from "../state/route.js";
import type { ChannelStats, SettingView } from "../state/types.js";
import { useAsk } from "../state/use-ask.js";
import { DeadLetters } from "./dead-letters.js";
import { PolicyPage } from "./notification-policy.js";

const HOUR_MS = 3_600_000;

export function NotificationsPage({ route }: { readonly route: Route }) {
  if (route.parts[1] === "policy") return <PolicyPage />;
  return (
    <Page
      title="Notifications"
      about="How people who are not looking are notified of messages. Why one person was or was not, their own page says."
      actions={<a class="plain" href={href("notifications", "policy")}>The policy</a>}
    >
      <Channels />
      <Webhook />
      <DeadLetters />
    </Page>
  );
}

/** Each channel over a day: whole hours, the one that runs included. */
function Channels() {
  const asked = useAsk(() => {
    const to = (Math.floor(Date.now() / HOUR_MS) + 1) * HOUR_MS;
    return ask<{ readonly channels: readonly ChannelStats[] }>(withQuery("/v1/notifications/stats", { from: to - 24 * HOUR_MS, to }));
  }, []);
  return (
    <Card title="Channels" note="in the last 24 hours; a message counts once for each person or device" actions={<Reload asked={asked} />}>
      <Loaded asked={asked}>
        {({ channels }) => (
          <Table
            label="Channels"
            empty="Nobody was notified by a channel in this time."
            columns={[{ title: "Channel" }, ...["Attempted", "Accepted", "Acknowledged", "Tried again", "Refused", "Token gone", "Expired", "Superseded", "Median", "99 %"].map((title) => ({ title, isNumber: true }))]}
            rows={channels.map((one) => ({
              key: one.channel,
              cells: [
                words(one.channel), ...[one.attempted, one.accepted, one.acknowledged, one.retried, one.refused, one.token_gone, one.expired, one.superseded].map(count),
                milliseconds(one.median_ms ?? undefined), milliseconds(one.p99_ms ?? undefined),
              ],
            }))}
          />
        )}
      </Loaded>
    </Card>
  );
}

/** Whether the webhook takes what is posted. */
function Webhook() {
  const { newest, history } = useObservable(collected);
  const settings = useAsk(() => ask<{ readonly settings: readonly SettingView[] }>("/v1/admin/settings"), []);
  const setting = (name: string): string | undefined => settings.data?.settings.find((one) => one.name === name)?.value;
  const url = setting("webhook.url");
  const value = (name: string): number => newest?.value(`tidings_webhook_${name}`) ?? 0;
  const isFailing = value("failing") > 0;
  return (
    <>
      <Card title="Webhook" note={url === undefined ? undefined : `posted to ${JSON.parse(url) as string}`}>
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
