// What the live view shows, from two readings of the metrics.
import { quantileBetween, type Scrape } from "./parse.js";

export const LANES = ["direct", "group", "broadcast"] as const;
export type Lane = (typeof LANES)[number];

export interface LaneFigures {
  readonly entriesPerSecond: number;
  readonly deliveriesPerSecond: number;
  /** From commit to the turn of the last receivers, in milliseconds. `undefined`: no message. */
  readonly p50: number | undefined;
  readonly p99: number | undefined;
}

export interface Queue {
  readonly name: string;
  readonly depth: number;
  readonly limit: number;
}

/** What the app's hook has answered since the node began. */
export interface HookFigures {
  readonly asked: number;
  readonly askedPerSecond: number;
  readonly allowed: number;
  readonly replaced: number;
  readonly refused: number;
  readonly hidden: number;
  readonly failed: number;
  readonly failedPerSecond: number;
  /** Of a request, in milliseconds. `undefined`: there was none. */
  readonly p50: number | undefined;
  readonly p99: number | undefined;
}

/** The figures of one moment. Those per second are of the time since the moment before. */
export interface Figures {
  readonly at: number;
  readonly connections: number;
  readonly sessions: number;
  readonly usersOnline: number;
  readonly lanes: Readonly<Record<Lane, LaneFigures>>;
  readonly commitP99: number | undefined;
  readonly refusedPerSecond: ReadonlyMap<string, number>;
  readonly memoryBytes: number;
  readonly cpuCores: number;
  readonly outboxLag: number;
  readonly outboxParked: number;
  readonly isWebhookFailing: boolean;
  readonly hook: HookFigures;
  readonly queues: readonly Queue[];
}

/** A counter's growth in a second. A restart of the server sets counters back: then it counts from zero. */
function perSecond(before: number, now: number, seconds: number): number {
  return (now >= before ? now - before : now) / seconds;
}

export function figuresOf(before: Scrape, now: Scrape): Figures {
  const seconds = Math.max(0.001, (now.at - before.at) / 1_000);
  const growth = (name: string, labels: Readonly<Record<string, string>> = {}): number =>
    perSecond(before.value(name, labels), now.value(name, labels), seconds);
  const milliseconds = (name: string, labels: Readonly<Record<string, string>>, quantile: number): number | undefined => {
    const found = quantileBetween(before, now, name, labels, quantile);
    return found === undefined ? undefined : found * 1_000;
  };
  const lane = (name: Lane): LaneFigures => ({
    entriesPerSecond: growth("tidings_lane_entries_total", { lane: name }),
    deliveriesPerSecond: growth("tidings_lane_deliveries_total", { lane: name }),
    p50: milliseconds("tidings_lane_fanout_seconds", { lane: name }, 0.5),
    p99: milliseconds("tidings_lane_fanout_seconds", { lane: name }, 0.99),
  });
  const refusedBefore = before.by("tidings_refused_total", "code");
  const refused = [...now.by("tidings_refused_total", "code")];
  const limits = now.by("tidings_queue_limit", "queue");
  return {
    at: now.at,
    connections: now.value("tidings_connections"),
    sessions: now.value("tidings_sessions"),
    usersOnline: now.value("tidings_presence_users"),
    lanes: { direct: lane("direct"), group: lane("group"), broadcast: lane("broadcast") },
    commitP99: milliseconds("tidings_commit_seconds", {}, 0.99),
    refusedPerSecond: new Map(refused.map(([code, value]) => [code, perSecond(refusedBefore.get(code) ?? 0, value, seconds)])),
    memoryBytes: now.value("process_resident_memory_bytes"),
    cpuCores: growth("process_cpu_seconds_total"),
    outboxLag: now.value("tidings_webhook_lag"),
    outboxParked: now.value("tidings_webhook_parked"),
    isWebhookFailing: now.value("tidings_webhook_failing") > 0,
    hook: {
      asked: now.value("tidings_hook_asked_total"),
      askedPerSecond: growth("tidings_hook_asked_total"),
      allowed: now.value("tidings_hook_allowed_total"),
      replaced: now.value("tidings_hook_replaced_total"),
      refused: now.value("tidings_hook_refused_total"),
      hidden: now.value("tidings_hook_hidden_total"),
      failed: now.value("tidings_hook_failed_total"),
      failedPerSecond: growth("tidings_hook_failed_total"),
      p50: milliseconds("tidings_hook_seconds", {}, 0.5),
      p99: milliseconds("tidings_hook_seconds", {}, 0.99),
    },
    queues: [...now.by("tidings_queue_depth", "queue")].map(([name, depth]) => ({ name, depth, limit: limits.get(name) ?? 0 })),
  };
}

export function totalIn({ lanes }: Figures): number {
  return LANES.reduce((sum, lane) => sum + lanes[lane].entriesPerSecond, 0);
}

export function totalOut({ lanes }: Figures): number {
  return LANES.reduce((sum, lane) => sum + lanes[lane].deliveriesPerSecond, 0);
}

export function totalRefused({ refusedPerSecond }: Figures): number {
  return [...refusedPerSecond.values()].reduce((sum, value) => sum + value, 0);
}

/** The slowest lane's 99th percentile. */
export function slowestP99({ lanes }: Figures): number | undefined {
  const known = LANES.map((lane) => lanes[lane].p99).filter((value) => value !== undefined);
  return known.length === 0 ? undefined : Math.max(...known);
}
