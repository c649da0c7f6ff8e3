// Journeys: all of them, and for one how far users have come in it.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { JsonEditor } from "../parts/json-editor.js";
import { Badge, Card, Failure, Foreign, Loaded, Page, Reload, Table, Time, type Tone } from "../parts/layout.js";
import { ask, change, path, withQuery } from "../state/api.js";
import { count, percent } from "../state/format.js";
import { go, href, type Route } from "../state/route.js";
import type { Journey, JourneyCounts, JourneySpec, JourneyState } from "../state/types.js";
import { useAction, useAsk } from "../state/use-ask.js";

const HOUR_MS = 3_600_000;
const COUNTED_HOURS = 720;
const TONES: Readonly<Record<JourneyState, Tone>> = { live: "good", paused: "warn", closed: "plain" };
const NEW: JourneySpec = {
  name: "Welcome",
  state: "paused",
  entry: { event: "signed_up" },
  steps: [{ id: "later", type: "wait", for: "1d", next: "hello" }, { id: "hello", type: "push", push: { type: "offer", body: { text: "Welcome" } } }],
};

export function JourneysPage({ route }: { readonly route: Route }) {
  const [, kind, id] = route.parts;
  if (kind === "new") return <NewJourney />;
  if (kind === "one" && id !== undefined) return <JourneyPage key={id} id={id} />;
  return <JourneyList />;
}

function JourneyList() {
  const asked = useAsk(() => ask<{ readonly journeys: readonly Journey[] }>("/v1/popup-journeys"), []);
  return (
    <Page title="Journeys" about="Popups, waits, branches and pushes in sequence, entered by an event." actions={<a class="primary" href={href("journeys", "new")}>New journey</a>}>
      <Card title="All journeys" actions={<Reload asked={asked} />}>
        <Loaded asked={asked}>
          {({ journeys }) => (
            <Table
              label="Journeys"
              empty="There is no journey yet."
              columns={[{ title: "Journey" }, { title: "State" }, { title: "Entered by" }, { title: "Steps", isNumber: true }, { title: "Version", isNumber: true }, { title: "Changed" }]}
              rows={journeys.map(({ id, spec, version, updated_at: at, updated_by: by }) => ({
                key: id,
                cells: [
                  <><a class="link" href={href("journeys", "one", id)}><Foreign>{spec.name || id}</Foreign></a>{spec.name && <> <span class="soft"><bdi>{id}</bdi></span></>}</>,
                  <StateBadge spec={spec} />, <Foreign>{entryOf(spec)}</Foreign>, spec.steps.length, version,
                  <><Time at={at} />{by && <span class="soft"> by <bdi>{by}</bdi></span>}</>,
                ],
              }))}
            />
          )}
        </Loaded>
      </Card>
    </Page>
  );
}

function entryOf({ entry: { event, popup_event: popup } }: JourneySpec): string {
  return popup ? `${popup.type} of the popup ${popup.popup}` : (event ?? "–");
}

function StateBadge({ spec: { state = "paused" } }: { readonly spec: JourneySpec }) {
  return <Badge tone={TONES[state]}>{state}</Badge>;
}

function write(id: string, spec: unknown, precondition: Readonly<Record<string, string>>): Promise<Journey> {
  return change<Journey>(`${"if-match" in precondition ? "Change" : "Create"} journey ${id}`, { method: "PUT", path: path`/v1/popup-journeys/${id}`, body: spec, headers: precondition });
}

function NewJourney() {
  return (
    <Page title="New journey" actions={<a class="plain" href={href("journeys")}>All journeys</a>}>
      <JsonEditor
        title="The journey"
        document={NEW}
        idLabel="Id"
        saveLabel="Create"
        onSave={async (spec, id) => {
          await write(id, spec, { "if-none-match": "*" });
          go("journeys", "one", id);
        }}
      />
    </Page>
  );
}

function JourneyPage({ id }: { readonly id: string }) {
  const journey = useAsk(() => ask<Journey>(path`/v1/popup-journeys/${id}`), [id]);
  const [saved, setSaved] = useState<string>();
  const { isRunning, failure, run } = useAction();
  const save = async ({ version }: Journey, spec: unknown): Promise<void> => {
    const { version: now } = await write(id, spec, { "if-match": `"${version}"` });
    setSaved(`Saved as version ${now}. Users who are on their way stay on the version that they entered.`);
    journey.reload();
  };
  const turn = async (known: Journey, state: JourneyState): Promise<void> => {
    const texts: Readonly<Record<JourneyState, string>> = {
      live: "From now on users enter it, and go on in it.",
      paused: "Nobody enters it, and nobody goes on in it until it is live again.",
      closed: "Nobody enters it any more; those who are in it go on to its end.",
    };
    if (await confirmed({ title: `Set journey ${id} to ${state}?`, text: texts[state], action: `Set to ${state}` })) await run(() => save(known, { ...known.spec, state }));
  };
  const remove = async ({ version }: Journey): Promise<void> => {
    const isSure = await confirmed({ title: `Remove journey ${id}?`, text: "The journey, its counts and the places of everybody in it are removed. This cannot be undone; closing it lets those who are in it finish.", action: "Remove the journey", isDangerous: true });
    if (!isSure) return;
    if (await run(() => change(`Remove journey ${id}`, { method: "DELETE", path: path`/v1/popup-journeys/${id}`, headers: { "if-match": `"${version}"` } }))) go("journeys");
  };
  return (
    <Page
      title={<><Foreign>{journey.data?.spec.name || id}</Foreign> {journey.data && <StateBadge spec={journey.data.spec} />}</>}
      about={<><bdi>{id}</bdi>{journey.data && `, version ${journey.data.version}, entered by ${entryOf(journey.data.spec)}`}</>}
      actions={<a class="plain" href={href("journeys")}>All journeys</a>}
    >
      <Failure text={failure} />
      <Loaded asked={journey}>
        {(found) => (
          <>
            <Steps id={id} />
            <JsonEditor
              key={found.version}
              title="Change it"
              document={found.spec}
              saveLabel="Save"
              saved={saved}
              onSave={(spec) => save(found, spec)}
              actions={
                <>
                  {(["live", "paused", "closed"] as const).filter((state) => state !== (found.spec.state ?? "paused")).map((state) => (
                    <button key={state} type="button" class="plain" disabled={isRunning} onClick={() => void turn(found, state)}>Set to {state}…</button>
                  ))}
                  <button type="button" class="danger" disabled={isRunning} onClick={() => void remove(found)}>Remove…</button>
                </>
              }
            />
          </>
        )}
      </Loaded>
    </Page>
  );
}

function Steps({ id }: { readonly id: string }) {
  const asked = useAsk(() => {
    const to = (Math.floor(Date.now() / HOUR_MS) + 1) * HOUR_MS;
    return ask<JourneyCounts>(withQuery(path`/v1/popup-journeys/${id}/counts`, { from: to - COUNTED_HOURS * HOUR_MS, to }));
  }, [id]);
  return (
    <Card title="Steps" note="users in the last 30 days, by the version that they entered" actions={<Reload asked={asked} />}>
      <Loaded asked={asked}>
        {({ steps }) => (
          <Table
            label="Steps"
            empty="Nobody has come to a step of it in this time."
            columns={[{ title: "Step" }, { title: "Version", isNumber: true }, { title: "Reached", isNumber: true }, { title: "Went on", isNumber: true }, { title: "Share", isNumber: true }]}
            rows={steps.map(({ version, step, reached, left }) => ({ key: `${version} ${step}`, cells: [<bdi>{step}</bdi>, version, count(reached), count(left), percent(left, reached)] }))}
          />
        )}
      </Loaded>
    </Card>
  );
}
