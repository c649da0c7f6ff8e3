// What became of a popup: by variant, in all and over time.
import { useMemo, useState } from "preact/hooks";
import { Tabs } from "../parts/form.js";
import { Card, Loaded, Reload, Table } from "../parts/layout.js";
import { Plot } from "../parts/plot.js";
import { ask, path, withQuery } from "../state/api.js";
import { count, percent } from "../state/format.js";
import type { PopupHour } from "../state/types.js";
import { useAsk } from "../state/use-ask.js";

const HOUR_MS = 3_600_000;
const SPANS = { "24": "Day", "168": "Week", "720": "30 days" } as const;
type Span = keyof typeof SPANS;
const FIGURES = ["shown", "impressions", "clicks", "buttons", "dismissals", "conversions", "control"] as const;
type FigureName = (typeof FIGURES)[number];
const TITLES: Readonly<Record<FigureName, string>> = {
  shown: "Shown", impressions: "Seen", clicks: "Clicks", buttons: "Buttons", dismissals: "Dismissed", conversions: "Conversions", control: "Control",
};

export function PopupResults({ id, variants }: { readonly id: string; readonly variants: readonly string[] }) {
  const [hours, setHours] = useState<Span>("24");
  const [figure, setFigure] = useState<FigureName>("shown");
  const asked = useAsk(
    () => {
      // Whole hours, the one that runs included.
      const to = (Math.floor(Date.now() / HOUR_MS) + 1) * HOUR_MS;
      const from = to - Number(hours) * HOUR_MS;
      return ask<{ readonly hours: readonly PopupHour[] }>(withQuery(path`/v1/popups/${id}/counts`, { from, to })).then((answer) => ({ ...answer, from, to }));
    },
    [id, hours],
  );
  return (
    <Card
      title="Results"
      note="by the hour in which the server accepted them"
      actions={<><Tabs label="Time" tabs={Object.entries(SPANS) as unknown as readonly (readonly [Span, string])[]} chosen={hours} onChoose={setHours} /><Reload asked={asked} /></>}
    >
      <Loaded asked={asked}>
        {({ hours: counted, from, to }) => (
          <div class="stack">
            <Totals counted={counted} variants={variants} />
            <Tabs label="Figure over time" tabs={FIGURES.map((name) => [name, TITLES[name]] as const)} chosen={figure} onChoose={setFigure} />
            <OverTime counted={counted} variants={variants} figure={figure} from={from} to={to} isLong={hours !== "24"} />
          </div>
        )}
      </Loaded>
    </Card>
  );
}

function allVariants(counted: readonly PopupHour[], variants: readonly string[]): readonly string[] {
  // A variant of an earlier version may have counts, too.
  return [...new Set([...variants, ...counted.map(({ variant }) => variant)])];
}

function Totals({ counted, variants }: { readonly counted: readonly PopupHour[]; readonly variants: readonly string[] }) {
  const sum = (variant: string, name: FigureName): number => counted.filter((hour) => hour.variant === variant).reduce((total, hour) => total + hour[name], 0);
  return (
    <Table
      label="Results by variant"
      columns={[{ title: "Variant" }, ...FIGURES.map((name) => ({ title: TITLES[name], isNumber: true })), { title: "Clicks of seen", isNumber: true }, { title: "Conversions of shown", isNumber: true }]}
      rows={allVariants(counted, variants).map((variant) => ({
        key: variant,
        cells: [
          <bdi>{variant}</bdi>, ...FIGURES.map((name) => count(sum(variant, name))),
          percent(sum(variant, "clicks"), sum(variant, "impressions")), percent(sum(variant, "conversions"), sum(variant, "shown")),
        ],
      }))}
    />
  );
}

function OverTime({ counted, variants, figure, from, to, isLong }: {
  readonly counted: readonly PopupHour[];
  readonly variants: readonly string[];
  readonly figure: FigureName;
  readonly from: number;
  readonly to: number;
  readonly isLong: boolean;
}) {
  const at = useMemo(() => Array.from({ length: Math.round((to - from) / HOUR_MS) }, (_, index) => from + index * HOUR_MS), [from, to]);
  const series = allVariants(counted, variants).map((variant) => {
    const byHour = new Map(counted.filter((hour) => hour.variant === variant).map((hour) => [hour.hour, hour[figure]]));
    return { label: variant, values: at.map((hour) => byHour.get(hour) ?? 0) };
  });
  return <Plot title={`${TITLES[figure]}, per hour`} at={at} series={series} format={count} isLong={isLong} />;
}
