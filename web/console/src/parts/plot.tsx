// A line for each series over time, by uPlot, with a legend of our own that screen readers can read.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { useObservable } from "../../../src/state/cell.js";
import { theme } from "../../../src/state/theme.js";
import { clock, dateTime } from "../state/format.js";

export interface PlotSeries {
  readonly label: string;
  readonly values: readonly (number | undefined)[];
}

const COLOURS = 6;
const HEIGHT = 168;
// What is counted has no ticks between whole numbers.
const WHOLE_STEPS = Array.from({ length: 12 }, (_, zeros) => [1, 2, 5].map((digit) => digit * 10 ** zeros)).flat();
// A plot of one moment would show years around it.
const SECONDS_MIN = 60;
const DAY_SECONDS = 86_400;

/** Canvas knows no variables of CSS: their values as the theme has them now. */
function resolve(names: readonly string[]): string[] {
  const probe = document.createElement("span");
  document.body.append(probe);
  const values = names.map((name) => {
    probe.style.color = `var(${name})`;
    return getComputedStyle(probe).color;
  });
  probe.remove();
  return values;
}

/** Days, minutes, or seconds where several labels stand within a minute. */
function timeLabels(seconds: readonly number[], isLong: boolean): string[] {
  const step = (seconds[1] ?? Infinity) - (seconds[0] ?? 0);
  return seconds.map((second) => (isLong ? dateTime(second * 1_000).slice(0, 6) : clock(second * 1_000).slice(0, step < 60 ? 8 : 5)));
}

function useIsDark(): boolean {
  const chosen = useObservable(theme);
  const [isSystemDark, setSystemDark] = useState(() => matchMedia("(prefers-color-scheme: dark)").matches);
  useEffect(() => {
    const query = matchMedia("(prefers-color-scheme: dark)");
    const look = (): void => setSystemDark(query.matches);
    query.addEventListener("change", look);
    return () => query.removeEventListener("change", look);
  }, []);
  return chosen === "system" ? isSystemDark : chosen === "dark";
}

export function Plot({ title, at, series, format, isLong = false, x = "time", names }: {
  readonly title: string;
  /** Milliseconds since 1970, or plain numbers. */
  readonly at: readonly number[];
  readonly series: readonly PlotSeries[];
  readonly format: (value: number) => string;
  /** Days rather than minutes. */
  readonly isLong?: boolean;
  readonly x?: "time" | "number";
  /** What stands at the axis instead of the numbers. */
  readonly names?: readonly string[];
}) {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot>(null);
  const [cursor, setCursor] = useState<number>();
  const isDark = useIsDark();
  const labels = series.map(({ label }) => label).join("\n");
  const data = useMemo(
    () => [at.map((time) => (x === "time" ? time / 1_000 : time)), ...series.map(({ values }) => values.map((value) => value ?? null))] as uPlot.AlignedData,
    [at, series, x],
  );

  useEffect(() => {
    const within = place.current;
    if (!within) return undefined;
    const [soft = "", line = "", ...colours] = resolve(["--text-soft", "--line", ...series.map((_, index) => `--plot-${index % COLOURS}`)]);
    const axis = { stroke: soft, font: "11px system-ui, sans-serif", grid: { stroke: line, width: 1 }, ticks: { show: false } };
    const own = new uPlot(
      {
        width: Math.max(120, within.clientWidth),
        height: HEIGHT,
        padding: [8, x === "time" ? 28 : 20, 0, 0],
        legend: { show: false },
        cursor: { y: false, drag: { x: false, y: false }, points: { size: 6 } },
        scales: {
          x: { time: x === "time", ...(x === "time" && { range: (_, least, most) => [Math.min(least ?? 0, (most ?? 0) - (isLong ? DAY_SECONDS : SECONDS_MIN)), most ?? 0] }) },
          y: { range: (_, least, most) => [Math.min(0, least ?? 0), (most ?? 0) > 0 ? (most ?? 0) * 1.1 : 1] },
        },
        axes: [
          { ...axis, size: 26, space: 78, ...(x === "time" && { values: (_, splits) => timeLabels(splits, isLong) }), ...(names && { splits: [...at], values: [...names] }) },
          { ...axis, size: 62, space: 36, ...(format(0.5) === format(1) && { incrs: WHOLE_STEPS }), values: (_, splits) => splits.map((value) => format(value)) },
        ],
        series: [{}, ...series.map(({ label }, index) => ({ label, stroke: colours[index] ?? "", width: 1.75, spanGaps: false, points: { show: ({ data: drawn }: uPlot) => drawn[0].length === 1 } }))],
        hooks: { setCursor: [({ cursor: { idx } }) => setCursor(idx ?? undefined)] },
      },
      data,
      within,
    );
    plot.current = own;
    const watch = new ResizeObserver(() => own.setSize({ width: Math.max(120, within.clientWidth), height: HEIGHT }));
    watch.observe(within);
    return () => {
      watch.disconnect();
      own.destroy();
      plot.current = null;
    };
  }, [labels, isDark, isLong, x]);

  useEffect(() => plot.current?.setData(data), [data]);

  const shown = cursor !== undefined && cursor < at.length ? cursor : at.length - 1;
  const moment = at[shown];
  return (
    <figure class="plot">
      <figcaption>
        <span class="plot-title">{title}</span>
        <span class="soft plot-at">{cursor !== undefined && moment !== undefined && (x === "time" ? (isLong ? dateTime(moment) : clock(moment)) : (names?.[shown] ?? moment))}</span>
      </figcaption>
      <div class="plot-place" ref={place} aria-hidden="true" />
      <ul class="legend">
        {series.map(({ label, values }, index) => {
          const value = values[shown];
          return (
            <li key={label}>
              <span class={`swatch is-${index % COLOURS}`} aria-hidden="true" />
              <bdi>{label}</bdi> <strong>{value === undefined ? "–" : format(value)}</strong>
            </li>
          );
        })}
      </ul>
    </figure>
  );
}
