// The figures of a lab report, and of two beside each other.
import type { PlotSeries } from "../parts/plot.js";

export interface Report {
  readonly name: string;
  readonly bench: string;
  readonly content: Readonly<Record<string, unknown>>;
}

type Figure = number | string | boolean;

/** Every figure of a report by its path. Lists of figures, such as the rounds, are for plots. */
export function figuresOfReport({ content }: Report): ReadonlyMap<string, Figure> {
  const figures = new Map<string, Figure>();
  const walk = (value: unknown, path: string): void => {
    if (typeof value === "number" || typeof value === "boolean" || typeof value === "string") figures.set(path, value);
    else if (Array.isArray(value)) value.forEach((part, index) => typeof part === "object" && walk(part, `${path}[${index}]`));
    else if (typeof value === "object" && value !== null) Object.entries(value).forEach(([name, part]) => walk(part, path === "" ? name : `${path}.${name}`));
  };
  walk(content, "");
  return figures;
}

export interface ComparedFigure {
  readonly name: string;
  readonly before: string;
  readonly after: string;
  /** How much it changed, if that can be said. */
  readonly change: string | undefined;
  /** `undefined`: more is neither better nor worse. */
  readonly isBetter: boolean | undefined;
}

/** Figures of which less is better, and more, by the words in their paths. */
const LESS = /latency|acknowledged\.|lateness|pause|lost|doubled|out_of_order|altered|refused|retried|reconnects|cpu_seconds|rss|_ms\b/u;
const MORE = /per_second|\brate\b|balances|passed/u;
/** A change of less is the run's own noise. */
const NOISE_PERCENT = 2;

function shown(value: Figure | undefined): string {
  if (value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? value.toLocaleString("en") : value.toLocaleString("en", { maximumFractionDigits: 2 });
}

function changeOf(name: string, before: number, after: number): Pick<ComparedFigure, "change" | "isBetter"> {
  if (before === after) return { change: "same", isBetter: undefined };
  const grown = before === 0 ? undefined : (100 * (after - before)) / Math.abs(before);
  const change = grown === undefined ? `+${shown(after)}` : `${grown > 0 ? "+" : "−"}${Math.abs(grown).toFixed(1)} %`;
  const isNoise = grown !== undefined && Math.abs(grown) < NOISE_PERCENT;
  if (isNoise) return { change, isBetter: undefined };
  if (MORE.test(name)) return { change, isBetter: after > before };
  return { change, isBetter: LESS.test(name) ? after < before : undefined };
}

export function compareFigures(first: ReadonlyMap<string, Figure>, second: ReadonlyMap<string, Figure> | undefined): readonly ComparedFigure[] {
  const names = [...new Set([...first.keys(), ...(second?.keys() ?? [])])];
  return names.map((name) => {
    const [before, after] = [first.get(name), second?.get(name)];
    const both = typeof before === "number" && typeof after === "number" ? changeOf(name, before, after) : { change: undefined, isBetter: undefined };
    return { name, before: shown(before), after: shown(after), ...both };
  });
}

const QUANTILES = ["p50", "p90", "p99", "p99_9", "p99_99", "max"] as const;
const TITLES: { readonly [field: string]: string } = { latency: "From planned send to delivery, by percentile", acknowledged: "From planned send to the answer, by percentile" };

export const QUANTILE_NAMES = QUANTILES.map((quantile) => quantile.replace("_", "."));

/** The percentiles of each report's outcome as lines: of equal steps from the median to the maximum. */
export function latenciesOf(reports: readonly Report[]): { readonly title: string; readonly at: readonly number[]; readonly series: readonly PlotSeries[] }[] {
  return Object.entries(TITLES).flatMap(([field, title]) => {
    const series = reports.flatMap(({ name, content }, index) => {
      const percentiles = (content["outcome"] as Record<string, Record<string, number> | undefined> | undefined)?.[field];
      return percentiles ? [{ label: `${index + 1}: ${name}`, values: QUANTILES.map((quantile) => percentiles[quantile]) }] : [];
    });
    return series.length === 0 ? [] : [{ title, at: QUANTILES.map((_, index) => index + 1), series }];
  });
}

/** Milliseconds to the last receiver, round by round. */
export function roundsOf({ content }: Report): readonly number[] {
  const rounds = (content["outcome"] as { rounds?: unknown } | undefined)?.rounds;
  return Array.isArray(rounds) ? rounds.filter((round) => typeof round === "number") : [];
}
