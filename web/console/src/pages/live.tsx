// What the node does now, and did in the last ten minutes.
import type { ComponentChildren } from "preact";
import { useEffect, useMemo } from "preact/hooks";
import { useObservable } from "../../../src/state/cell.js";
import { collected } from "../metrics/collector.js";
import { LANES, slowestP99, totalIn, totalOut, totalRefused, type Figures } from "../metrics/figures.js";
import { Badge, Card, Loaded, Page, Table, Time } from "../parts/layout.js";
import { Plot, type PlotSeries } from "../parts/plot.js";
import { ask } from "../state/api.js";
import { bytes, cores, count, milliseconds, percent, plural, rate, span } from "../state/format.js";
import { may } from "../state/own-key.js";
import type { NodesAnswer, NodeView } from "../state/types.js";
import { useAsk } from "../state/use-ask.js";

const NODES_EVERY_MS = 5_000;
const QUEUES_SHOWN = 8;

export function LivePage() {
  const { newest, history } = useObservable(collected);
  const now = history.at(-1);
  const started = newest?.value("process_start_time_seconds") ?? 0;
  return (
    <Page title="Live" about={started > 0 ? `${location.host}, up for ${span(Date.now() - started * 1_000)}. Read every other second.` : location.host}>
      {now ? <Tiles now={now} /> : <p class="nothing" role="status">Reading the first figures…</p>}
      {now && <Plots history={history} />}
      <div class="columns">
        {now && <Lanes now={now} />}
        {now && <Queues now={now} />}
        {now && now.hook.asked + now.hook.failed > 0 && <Hook now={now} />}
      </div>
      {may("admin") && <Nodes />}
    </Page>
  );
}

function Tile({ name, value, note, isBad = false }: {
  readonly name: string;
  readonly value: string;
  readonly note?: ComponentChildren;
  readonly isBad?: boolean;
}) {
  return (
    <li class={isBad ? "tile is-bad" : "tile"}>
      <span class="tile-name">{name}</span>
      <strong>{value}</strong>
      <span class="soft tile-note">{note}</span>
    </li>
  );
}

function Tiles({ now }: { readonly now: Figures }) {
  const refused = totalRefused(now);
  return (
    <ul class="tiles" aria-label="Figures of this moment">
      <Tile name="Connections" value={count(now.connections)} note={plural(now.usersOnline, "user")} />
      <Tile name="Messages in" value={`${rate(totalIn(now))}/s`} note="committed" />
      <Tile name="Messages out" value={`${rate(totalOut(now))}/s`} note="into sessions" />
      <Tile name="Last receiver" value={milliseconds(slowestP99(now))} note="slowest p99" />
      <Tile name="Refusals" value={`${rate(refused)}/s`} note={mostRefused(now)} isBad={refused > 0} />
      <Tile name="Memory" value={bytes(now.memoryBytes)} note={`${now.cpuCores.toFixed(2)} cores`} />
      <Tile
        name="Outbox lag"
        value={count(now.outboxLag)}
        note={now.isWebhookFailing ? "the webhook takes nothing" : `${count(now.outboxParked)} to be retried`}
        isBad={now.isWebhookFailing}
      />
    </ul>
  );
}

function mostRefused({ refusedPerSecond }: Figures): string {
  const [most] = [...refusedPerSecond].sort(([, a], [, b]) => b - a);
  return most && most[1] > 0 ? `most: ${most[0]}` : "none now";
}

function Plots({ history }: { readonly history: readonly Figures[] }) {
  const at = useMemo(() => history.map((figures) => figures.at), [history]);
  const over = (label: string, value: (figures: Figures) => number | undefined): PlotSeries => ({ label, values: history.map(value) });
  const codes = [...new Set(history.flatMap(({ refusedPerSecond }) => [...refusedPerSecond].filter(([, value]) => value > 0).map(([code]) => code)))].slice(0, 6);
  return (
    <div class="plots">
      <Plot title="Connections" at={at} format={count} series={[over("connections", (f) => f.connections), over("sessions", (f) => f.sessions)]} />
      <Plot title="Messages in, per second" at={at} format={rate} series={LANES.map((lane) => over(lane, (f) => f.lanes[lane].entriesPerSecond))} />
      <Plot title="Messages out, per second" at={at} format={rate} series={LANES.map((lane) => over(lane, (f) => f.lanes[lane].deliveriesPerSecond))} />
      <Plot title="To the last receiver, p99" at={at} format={milliseconds} series={[...LANES.map((lane) => over(lane, (f) => f.lanes[lane].p99)), over("commit", (f) => f.commitP99)]} />
      <Plot title="Refusals, per second" at={at} format={rate} series={codes.length === 0 ? [over("all", totalRefused)] : codes.map((code) => over(code, (f) => f.refusedPerSecond.get(code) ?? 0))} />
      <Plot title="Memory" at={at} format={bytes} series={[over("resident", (f) => f.memoryBytes)]} />
      <Plot title="Processor, cores" at={at} format={cores} series={[over("cores", (f) => f.cpuCores)]} />
      <Plot title="Outbox" at={at} format={count} series={[over("lag", (f) => f.outboxLag), over("parked", (f) => f.outboxParked)]} />
    </div>
  );
}

function Lanes({ now }: { readonly now: Figures }) {
  return (
    <Card title="Lanes" note="from commit to the last receivers' turn">
      <Table
        label="Lanes"
        columns={[{ title: "Lane" }, ...["In", "Out", "p50", "p99", "Waiting"].map((title) => ({ title, isNumber: true }))]}
        rows={LANES.map((lane) => {
          const { entriesPerSecond, deliveriesPerSecond, p50, p99 } = now.lanes[lane];
          const queue = now.queues.find(({ name }) => name === `lane_${lane}`);
          const waiting = queue ? `${count(queue.depth)} of ${count(queue.limit)}` : "–";
          return { key: lane, cells: [lane, `${rate(entriesPerSecond)}/s`, `${rate(deliveriesPerSecond)}/s`, milliseconds(p50), milliseconds(p99), waiting] };
        })}
      />
    </Card>
  );
}

function Queues({ now }: { readonly now: Figures }) {
  const share = ({ depth, limit }: { readonly depth: number; readonly limit: number }): number => (limit === 0 ? 0 : depth / limit);
  const fullest = [...now.queues].sort((a, b) => share(b) - share(a)).slice(0, QUEUES_SHOWN);
  return (
    <Card title="Queues" note="the fullest first">
      <Table
        label="Queues"
        columns={[{ title: "Queue" }, { title: "Waiting", isNumber: true }, { title: "Room for", isNumber: true }, { title: "Full", isNumber: true }]}
        rows={fullest.map((queue) => ({
          key: queue.name,
          cells: [queue.name, count(queue.depth), count(queue.limit), <Badge tone={share(queue) > 0.8 ? "bad" : share(queue) > 0.5 ? "warn" : "plain"}>{percent(queue.depth, queue.limit)}</Badge>],
        }))}
      />
    </Card>
  );
}

function Hook({ now: { hook } }: { readonly now: Figures }) {
  const rows: readonly (readonly [string, string])[] = [
    ["Asked", `${rate(hook.askedPerSecond)}/s`],
    ["Answered within, p50", milliseconds(hook.p50)],
    ["Answered within, p99", milliseconds(hook.p99)],
    ["Allowed", count(hook.allowed)],
    ["Replaced", count(hook.replaced)],
    ["Refused", count(hook.refused)],
    ["Hidden", count(hook.hidden)],
  ];
  const isFailing = hook.failedPerSecond > 0;
  return (
    <Card title="Hook" note="your server, which is asked before an operation is stored">
      <Table
        label="Hook"
        columns={[{ title: "" }, { title: "Since the node began", isNumber: true }]}
        rows={[
          ...rows.map(([name, value]) => ({ key: name, cells: [name, value] })),
          { key: "Failed", cells: [<>Without a good answer{isFailing && <> <Badge tone="bad">now</Badge></>}</>, count(hook.failed)] },
        ]}
      />
    </Card>
  );
}

function Nodes() {
  const nodes = useAsk(() => ask<NodesAnswer>("/v1/admin/nodes"), []);
  useEffect(() => {
    const timer = setInterval(nodes.reload, NODES_EVERY_MS);
    return () => clearInterval(timer);
  }, [nodes.reload]);
  return (
    <Card title="Nodes" note="the processes that make up the server">
      <Loaded asked={nodes}>{(answer) => <NodeTable nodes={answer.nodes} />}</Loaded>
    </Card>
  );
}

export function NodeTable({ nodes }: { readonly nodes: readonly NodeView[] }) {
  return (
    <Table
      label="Nodes"
      columns={[{ title: "Node" }, { title: "Leads" }, { title: "Sessions", isNumber: true }, { title: "Role" }, { title: "Version" }, { title: "Lease left" }, { title: "Address" }, { title: "Known since" }]}
      rows={nodes.map((node) => ({
        key: node.boot_id,
        cells: [
          <bdi title={`boot ${node.boot_id}`}>{node.name}</bdi>,
          <>{node.functions?.map((name) => <Badge key={name} tone="good">{name}</Badge>)}</>,
          count(node.sessions),
          node.roles ?? "–",
          node.version ?? "–",
          node.lease_left_ms === undefined || node.lease_left_ms === null ? "–" : span(node.lease_left_ms),
          node.address || "–",
          // A server that is the whole of it joins nothing.
          node.attached_at > 0 ? <Time at={node.attached_at} /> : "–",
        ],
      }))}
    />
  );
}
