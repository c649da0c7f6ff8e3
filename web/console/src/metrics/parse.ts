// The text format of Prometheus: a line for each series.

export interface Series {
  readonly name: string;
  readonly labels: Readonly<Record<string, string>>;
  readonly value: number;
}

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)/u;
const LABEL = /([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"/gu;
const ESCAPED: { readonly [escape: string]: string } = { n: "\n" };

function numberOf(text: string): number {
  return text === "+Inf" ? Infinity : text === "-Inf" ? -Infinity : Number(text);
}

function labelsOf(text: string | undefined): Record<string, string> {
  const labels: Record<string, string> = {};
  for (const [, name = "", value = ""] of (text ?? "").matchAll(LABEL)) {
    labels[name] = value.replace(/\\(.)/gu, (_, escape: string) => ESCAPED[escape] ?? escape);
  }
  return labels;
}

/** One reading of all metrics, by name. */
export class Scrape {
  readonly #byName = new Map<string, Series[]>();

  constructor(readonly at: number, text: string) {
    for (const line of text.split("\n")) {
      const [, name, labels, value] = line.startsWith("#") ? [] : (LINE.exec(line) ?? []);
      if (name === undefined || value === undefined) continue;
      const series = { name, labels: labelsOf(labels), value: numberOf(value) };
      const all = this.#byName.get(name);
      if (all) all.push(series);
      else this.#byName.set(name, [series]);
    }
  }

  all(name: string): readonly Series[] {
    return this.#byName.get(name) ?? [];
  }

  /** The sum over all labels, or over those series that have these. */
  value(name: string, labels: Readonly<Record<string, string>> = {}): number {
    const fits = (series: Series): boolean => Object.entries(labels).every(([label, value]) => series.labels[label] === value);
    return this.all(name).filter(fits).reduce((sum, { value }) => sum + value, 0);
  }

  by(name: string, label: string): ReadonlyMap<string, number> {
    return new Map(this.all(name).map((series) => [series.labels[label] ?? "", series.value]));
  }
}

/** A quantile of what was observed between two readings of a histogram, in its unit. `undefined`: nothing was. */
export function quantileBetween(
  before: Scrape,
  now: Scrape,
  name: string,
  labels: Readonly<Record<string, string>>,
  quantile: number,
): number | undefined {
  const buckets = (scrape: Scrape): (readonly [number, number])[] =>
    scrape
      .all(`${name}_bucket`)
      .filter((series) => Object.entries(labels).every(([label, value]) => series.labels[label] === value))
      .map((series) => [numberOf(series.labels["le"] ?? ""), series.value] as const)
      .sort(([a], [b]) => a - b);
  const earlier = new Map(buckets(before));
  const counts = buckets(now).map(([bound, value]) => [bound, value - (earlier.get(bound) ?? 0)] as const);
  const total = counts.at(-1)?.[1] ?? 0;
  if (total <= 0) return undefined;
  const wanted = quantile * total;
  let [low, below] = [0, 0];
  for (const [bound, upTo] of counts) {
    if (upTo >= wanted) {
      // Above the highest bound nothing tells how far.
      if (!Number.isFinite(bound)) return low;
      return upTo === below ? bound : low + ((bound - low) * (wanted - below)) / (upTo - below);
    }
    [low, below] = [bound, upTo];
  }
  return low;
}
