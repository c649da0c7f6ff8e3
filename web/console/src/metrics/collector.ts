// Reads the metrics every other second for as long as somebody is signed in, and tells whether the node answers.
import { Cell } from "../../../src/state/cell.js";
import { noteAway, noteNotReady, noteUp } from "../state/reachability.js";
import { figuresOf, type Figures } from "./figures.js";
import { Scrape } from "./parse.js";

const INTERVAL_MS = 2_000;
const TIMEOUT_MS = 5_000;
/** Ten minutes. */
const KEPT_MAX = 300;

export interface Collected {
  readonly newest: Scrape | undefined;
  readonly history: readonly Figures[];
}

const EMPTY: Collected = { newest: undefined, history: [] };
export const collected = new Cell<Collected>(EMPTY);

async function fetchText(path: string): Promise<{ readonly isOk: boolean; readonly text: string }> {
  const answer = await fetch(path, { cache: "no-store", credentials: "omit", signal: AbortSignal.timeout(TIMEOUT_MS) });
  return { isOk: answer.ok, text: await answer.text() };
}

async function whyNotReady(): Promise<string> {
  const { isOk, text } = await fetchText("/readyz");
  if (isOk) return "";
  try {
    return (JSON.parse(text) as { readonly detail?: string }).detail ?? text;
  } catch {
    return text;
  }
}

async function collect(): Promise<void> {
  try {
    const { isOk, text } = await fetchText("/metrics");
    if (!isOk) return noteNotReady("/metrics is not answered here: a proxy may keep it back. The live view needs it.");
    const now = new Scrape(Date.now(), text);
    const { newest, history } = collected.get();
    const figures = newest ? [figuresOf(newest, now)] : [];
    collected.set({ newest: now, history: [...history, ...figures].slice(-KEPT_MAX) });
    const why = now.value("tidings_ready") > 0 ? "" : await whyNotReady();
    if (why === "") noteUp();
    else noteNotReady(why);
  } catch {
    noteAway();
  }
}

let isRunning = false;

/** Reads now, such as after a person has asked to try again. */
export async function collectNow(): Promise<void> {
  if (isRunning) return;
  isRunning = true;
  await collect();
  isRunning = false;
}

export function startCollecting(): () => void {
  void collectNow();
  const timer = setInterval(() => void collectNow(), INTERVAL_MS);
  return () => {
    clearInterval(timer);
    collected.set(EMPTY);
  };
}
