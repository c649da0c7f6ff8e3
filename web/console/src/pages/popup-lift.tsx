// The lift of a popup: those who were shown it against those who were not, by its declared conversion.
import { Card, Loaded, Reload, Table } from "../parts/layout.js";
import { ask, askText, path, withQuery } from "../state/api.js";
import { count, figure, percent, share } from "../state/format.js";
import type { LiftGroup, PopupConversion, PopupLift, PopupLiftComparison } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";

const GROUPS: Readonly<Record<LiftGroup["group"], string>> = { shown: "Shown", control: "Control group", holdout: "Holdout" };

function nameOf(group: LiftGroup["group"], variant: string | null | undefined, isOne: boolean) {
  if (group !== "shown") return GROUPS[group];
  return variant === undefined || variant === null ? "All variants" : <>{isOne ? "Shown, " : "Variant "}<bdi>{variant}</bdi></>;
}

export function PopupLiftCard({ id, conversion }: { readonly id: string; readonly conversion: PopupConversion }) {
  const asked = useAsk(() => ask<PopupLift>(path`/v1/popups/${id}/lift`), [id, JSON.stringify(conversion)]);
  const { isRunning, failure, run } = useAction();
  const download = (what: "lift" | "assignments"): Promise<boolean> =>
    run(async () => save(`${id}-${what}.csv`, await askText(withQuery(path`/v1/popups/${id}/` + what, { format: "csv" }))));
  return (
    <Card
      title="Lift"
      note={`users with “${conversion.event}” within ${conversion.within} of their first turn`}
      actions={
        <>
          <button type="button" class="plain small" disabled={isRunning} onClick={() => void download("lift")}>CSV</button>
          <button type="button" class="plain small" disabled={isRunning} onClick={() => void download("assignments")}>Users as CSV</button>
          <Reload asked={asked} />
        </>
      }
    >
      {failure !== undefined && <p class="mistake" role="alert">{failure}</p>}
      <Loaded asked={asked}>{(lift) => <div class="stack"><Groups lift={lift} /><Lifts lift={lift} /></div>}</Loaded>
    </Card>
  );
}

function Groups({ lift }: { readonly lift: PopupLift }) {
  const hasValue = typeof lift.conversion.value === "string";
  const isOne = lift.groups.filter(({ group }) => group === "shown").length === 1;
  const groups = lift.groups.filter(({ group, people }) => group === "shown" || people > 0);
  return (
    <Table
      label="Groups"
      columns={[{ title: "Group" }, ...["People", "Window open", "Converted", "Rate", "Conversions"].map((title) => ({ title, isNumber: true })), ...(hasValue ? [{ title: "Value", isNumber: true }, { title: "Value a person", isNumber: true }] : [])]}
      rows={groups.map((one) => ({
        key: `${one.group} ${one.variant ?? ""}`,
        cells: [
          nameOf(one.group, one.variant, isOne), count(one.people), count(one.open), count(one.converted), percent(one.converted, one.people), count(one.conversions),
          ...(hasValue ? [figure(one.value), one.value_per_person === undefined || one.value_per_person === null ? "–" : figure(one.value_per_person)] : []),
        ],
      }))}
    />
  );
}

function Lifts({ lift }: { readonly lift: PopupLift }) {
  const isOne = lift.groups.filter(({ group }) => group === "shown").length === 1;
  if (lift.lifts.length === 0) return <p class="nothing">There is nobody to compare with yet: give the popup a control group, or a second variant.</p>;
  return (
    <Table
      label="Lift"
      columns={[{ title: "Group" }, { title: "Against" }, { title: "Lift", isNumber: true }, { title: "95 % interval", isNumber: true }, { title: "Finding" }]}
      rows={lift.lifts.map((one) => ({
        key: `${one.variant ?? ""} ${one.against} ${one.against_variant ?? ""}`,
        cells: [nameOf("shown", one.variant, isOne), nameOf(one.against, one.against_variant, false), share(one.lift), interval(one), finding(one)],
      }))}
    />
  );
}

function interval({ low, high }: PopupLiftComparison): string {
  if (low === undefined || low === null) return "–";
  return `${share(low)} to ${high === undefined || high === null ? "any" : share(high)}`;
}

function finding({ is_found: isFound, low }: PopupLiftComparison): string {
  if (!isFound || low === undefined || low === null) return "no difference found yet";
  return low > 0 ? "converts more often" : "converts less often";
}

/** Hands a text to the browser as a file. */
function save(name: string, text: string): void {
  const address = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  URL.revokeObjectURL(address);
}
