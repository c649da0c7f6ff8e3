// Figures and times as people read them.

const NUMBER = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const FIGURE = new Intl.NumberFormat("en", { maximumFractionDigits: 2 });
const SHORT = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });

export function count(value: number): string {
  return NUMBER.format(value);
}

/** A count with its noun. */
export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

export function rate(value: number): string {
  if (value === 0) return "0";
  if (value < 10) return value.toFixed(value < 1 ? 2 : 1);
  return value < 100_000 ? NUMBER.format(value) : SHORT.format(value);
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

export function bytes(value: number): string {
  let unit = 0;
  let rest = value;
  while (rest >= 1024 && unit < UNITS.length - 1) {
    rest /= 1024;
    unit += 1;
  }
  return `${rest < 10 && unit > 0 ? rest.toFixed(1) : Math.round(rest)} ${UNITS[unit] ?? ""}`;
}

export function cores(value: number): string {
  return value.toFixed(value > 0 && value < 0.1 ? 3 : 2);
}

export function milliseconds(value: number | undefined): string {
  if (value === undefined || !Number.isFinite(value)) return "–";
  if (value === 0) return "0 ms";
  if (value < 1) return `${value.toFixed(2)} ms`;
  if (value < 10) return `${value.toFixed(1)} ms`;
  return value < 10_000 ? `${Math.round(value)} ms` : `${(value / 1_000).toFixed(1)} s`;
}

export function percent(part: number, whole: number): string {
  return whole === 0 ? "–" : `${((100 * part) / whole).toFixed(1)} %`;
}

/** A sum of the app's own unit. */
export function figure(value: number): string {
  return FIGURE.format(value);
}

/** A share of one, with its sign. */
export function share(value: number | null | undefined): string {
  if (value === undefined || value === null) return "–";
  return `${value > 0 ? "+" : value < 0 ? "−" : ""}${Math.abs(100 * value).toFixed(1)} %`;
}

const SPANS: readonly (readonly [number, string])[] = [[86_400, "d"], [3_600, "h"], [60, "min"], [1, "s"]];

/** A length of time in its two largest units. */
export function span(ms: number): string {
  let seconds = Math.max(0, Math.round(ms / 1_000));
  const words: string[] = [];
  for (const [length, unit] of SPANS) {
    const whole = Math.floor(seconds / length);
    seconds -= whole * length;
    if (whole > 0) words.push(`${whole} ${unit}`);
    if (words.length === 2) break;
  }
  return words.join(" ") || "0 s";
}

export function ago(at: number): string {
  const past = Date.now() - at;
  if (past < 0) return `in ${span(-past)}`;
  return past < 1_500 ? "just now" : `${span(past)} ago`;
}

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "medium" });

export function clock(at: number): string {
  return CLOCK.format(at);
}

export function dateTime(at: number): string {
  return DAY.format(at);
}

/** JSON in one line, for tables. */
export function inline(value: unknown): string {
  if (typeof value === "string") return value;
  return JSON.stringify(value) ?? "";
}
