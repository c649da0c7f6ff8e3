// The outboxes in the app's own databases: how far the server is with each, and what was refused.
import { useEffect } from "preact/hooks";
import { Badge, Card, Foreign, Loaded, Page, Reload, Table, Time, type Tone } from "../parts/layout.js";
import { ask } from "../state/api.js";
import { count, milliseconds } from "../state/format.js";
import type { OutboxSource, RefusedOutboxRow } from "../state/types.js";
import { useAsk } from "../state/use-ask.js";

const FOLLOW_EVERY_MS = 2_000;
const TONES: Readonly<Record<OutboxSource["state"], Tone>> = { followed: "good", waiting: "warn", unreachable: "bad" };

interface Sources {
  readonly sources: readonly OutboxSource[];
}

export function OutboxesPage() {
  const asked = useAsk(() => ask<Sources>("/v1/outbox-sources"), []);
  useEffect(() => {
    const timer = setInterval(asked.reload, FOLLOW_EVERY_MS);
    return () => clearInterval(timer);
  }, [asked.reload]);
  return (
    <Page title="Outboxes" about="What your own transactions have written into your own databases, and the server stores once they have committed.">
      <Loaded asked={asked}>
        {({ sources }) => (
          <>
            <Card title="All outboxes" actions={<Reload asked={asked} />}>
              <Table
                label="Outboxes"
                empty="No outbox is followed. The server's settings name them: [[outbox_source]]."
                columns={[{ title: "Name" }, { title: "State" }, { title: "Waiting", isNumber: true }, { title: "Lag", isNumber: true }, { title: "Refused", isNumber: true }, { title: "Stored", isNumber: true }, { title: "Last error" }]}
                rows={sources.map((source) => ({
                  key: source.name,
                  cells: [
                    source.name, <Badge tone={TONES[source.state]}>{source.state}</Badge>, count(source.waiting), milliseconds(source.lag_ms), count(source.refused), count(source.done),
                    source.last_error ? <span class="failure"><bdi>{source.last_error}</bdi></span> : "–",
                  ],
                }))}
              />
            </Card>
            {sources.filter((source) => source.refused_rows.length > 0).map((source) => <RefusedRows key={source.name} source={source} />)}
          </>
        )}
      </Loaded>
    </Page>
  );
}

function RefusedRows({ source }: { readonly source: OutboxSource }) {
  const cells = (row: RefusedOutboxRow) => [String(row.id), row.operation, <Foreign>{row.conversation ?? "–"}</Foreign>, <Time at={row.at} />, <>{row.code} <span class="failure"><bdi>{row.detail}</bdi></span></>];
  return (
    <Card title={`Refused rows of ${source.name}`}>
      <p>Each holds up its own conversation alone, until your database is told what becomes of it: <code>tidings_retry(id, request)</code> or <code>tidings_skip(id)</code>.</p>
      <Table
        label={`Refused rows of ${source.name}`}
        empty=""
        columns={[{ title: "Row", isNumber: true }, { title: "Operation" }, { title: "Conversation" }, { title: "When" }, { title: "Why" }]}
        rows={source.refused_rows.map((row) => ({ key: String(row.id), cells: cells(row) }))}
      />
    </Card>
  );
}
