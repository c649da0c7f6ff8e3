// A popup's form. The server decides what is valid; each mistake that it finds is shown at its field.
import { useState } from "preact/hooks";
import { confirmed } from "../parts/confirm.js";
import { AreaField, Outcome, SelectField, Tabs, TextField } from "../parts/form.js";
import { Card, Failure } from "../parts/layout.js";
import { Preview } from "../parts/preview.js";
import { change, path, reason, RefusedError } from "../state/api.js";
import { draftOf, emptyVariant, jsonOf, specOf, type Draft, type Mistakes, type VariantDraft } from "../state/popup-draft.js";
import { go } from "../state/route.js";
import type { Popup, PopupSpec, PopupState } from "../state/types.js";
import { useAction } from "../state/use-ask.js";
import { VariantFields } from "./popup-variant.js";

const STATES: readonly (readonly [PopupState, string])[] = [["draft", "Draft"], ["scheduled", "Scheduled"], ["live", "Live"], ["paused", "Paused"], ["ended", "Ended"]];

export function PopupEditor({ popup, saved, onSaved }: {
  readonly popup: Popup | undefined;
  /** What the save before came to: the form is made anew for each version. */
  readonly saved: string | undefined;
  readonly onSaved: (version: number) => void;
}) {
  const [id, setId] = useState(popup?.id ?? "");
  const [draft, setDraft] = useState<Draft>(() => draftOf(popup?.spec));
  const [view, setView] = useState<"form" | "json">("form");
  const [json, setJson] = useState("");
  const [mistakes, setMistakes] = useState<Mistakes>({});
  const { isRunning, failure, run, setFailure } = useAction();
  const set = (part: Partial<Draft>): void => setDraft({ ...draft, ...part });

  const turn = (to: "form" | "json"): void => {
    if (to === "json") {
      const { spec, mistakes: found } = specOf(draft);
      if (!spec) return setMistakes(found);
      setJson(jsonOf(spec));
    } else {
      const { spec, mistake } = readSpec(json);
      if (!spec) return setMistakes({ json: mistake ?? "" });
      setDraft(draftOf(spec));
    }
    setMistakes({});
    setView(to);
  };
  const current = (): PopupSpec | undefined => {
    const { spec, mistakes: found } = view === "form" ? specOf(draft) : namedJson(readSpec(json));
    setMistakes({ ...found, ...(id.trim() === "" && { popup: "A popup needs an id." }) });
    return id.trim() === "" ? undefined : spec;
  };

  /** Shows a refusal at the field that it names, else above the buttons. */
  const refuse = (error: unknown): void => {
    const text = reason(error);
    if (error instanceof RefusedError && error.code === "conflict") {
      setFailure(popup ? "Somebody else has changed this popup meanwhile. Load the page again, and make your change on the new version." : "There is a popup with this id already.");
      return;
    }
    const field = error instanceof RefusedError && error.code === "invalid_field" ? (text.split(": ")[0] ?? "") : "";
    const place = view === "form" ? fieldPlace(field) : "json";
    if (field === "" || place === undefined) setFailure(text);
    else setMistakes({ [place]: text.startsWith(`${place}: `) ? text.slice(place.length + 2) : text });
  };
  const save = async (): Promise<void> => {
    const spec = current();
    if (!spec) return;
    const goesLive = spec.state === "live" && popup?.spec.state !== "live";
    if (goesLive && !(await confirmed({ title: `Show ${id.trim()} to users?`, text: `The popup goes live: from now on users who fit its rules are shown it at ${spec.placements.join(", ")}.`, action: "Go live" }))) return;
    await run(async () => {
      try {
        const precondition: Record<string, string> = popup ? { "if-match": `"${popup.version}"` } : { "if-none-match": "*" };
        const { id: savedId, version } = await change<Popup>(`${popup ? "Change" : "Create"} popup ${id.trim()}`, { method: "PUT", path: path`/v1/popups/${id.trim()}`, body: spec, headers: precondition });
        if (!popup) go("popups", "one", savedId);
        onSaved(version);
      } catch (error) {
        refuse(error);
      }
    });
  };
  const remove = async (known: Popup): Promise<void> => {
    const isSure = await confirmed({
      title: `Remove popup ${known.id}?`,
      text: `The popup ${known.id}, its ${known.version} versions and all its counts are removed, and users are no longer shown it. Events that were taken stay in exports. This cannot be undone; pausing it keeps everything.`,
      action: "Remove the popup",
      isDangerous: true,
    });
    if (!isSure) return;
    const request = { method: "DELETE", path: path`/v1/popups/${known.id}`, headers: { "if-match": `"${known.version}"` } } as const;
    if (await run(() => change(`Remove popup ${known.id}`, request))) go("popups");
  };

  const shown: PopupSpec | undefined = view === "form" ? specOf(draft).spec : readSpec(json).spec;
  return (
    <form class="editor" noValidate onSubmit={(event) => { event.preventDefault(); void save(); }}>
      <Card title={popup ? "Configuration" : "The popup"} actions={<Tabs label="Edit as" tabs={[["form", "Form"], ["json", "JSON"]]} chosen={view} onChoose={turn} />}>
        <div class="stack">
          {!popup && <TextField label="Id" help="Your own name for it in the API; it stays." value={id} error={mistakes["popup"]} onInput={setId} isRequired />}
          {view === "json" ? <AreaField label="As the API takes it" isCode rows={24} value={json} error={mistakes["json"]} onInput={setJson} /> : <Fields draft={draft} mistakes={mistakes} set={set} />}
          <Failure text={failure} />
          <Outcome text={saved} />
          <div class="row">
            <button type="submit" class="primary" disabled={isRunning}>{popup ? "Save" : "Create"}</button>
            {popup && <button type="button" class="danger" disabled={isRunning} onClick={() => void remove(popup)}>Remove…</button>}
          </div>
        </div>
      </Card>
      <aside class="editor-side" aria-label="Preview">{shown ? <Preview spec={shown} /> : <p class="nothing">A preview is shown once the fields can be read.</p>}</aside>
    </form>
  );
}

function readSpec(json: string): { readonly spec: PopupSpec | undefined; readonly mistake?: string } {
  try {
    const spec = JSON.parse(json) as PopupSpec;
    const isSpec = typeof spec === "object" && spec !== null && Array.isArray(spec.variants) && Array.isArray(spec.placements) && spec.variants.every((variant) => typeof variant?.content === "object" && variant.content !== null);
    return isSpec ? { spec } : { spec: undefined, mistake: "A popup is an object with placements and variants, each of which has a content." };
  } catch (error) {
    return { spec: undefined, mistake: `This is no JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

function namedJson({ spec, mistake }: { readonly spec: PopupSpec | undefined; readonly mistake?: string }): { readonly spec: PopupSpec | undefined; readonly mistakes: Mistakes } {
  return { spec, mistakes: mistake === undefined ? {} : { json: mistake } };
}

/** The fields of the form by the paths of the API; the deepest that a refusal's path begins with shows it. */
const PLACES = ["popup", "name", "state", "placements", "priority", "starts_at", "ends_at", "time_zone", "windows", "audience", "trigger", "caps.per_session", "caps.per_day", "caps.total", "caps.gap_s", "control_percent", "conversion", "test_users", "strict"];
const VARIANT_FIELD = /^variants\[\d+\](?:\.(?:id|weight|content\.(?:title|text|image|buttons|data)))?/u;

function fieldPlace(field: string): string | undefined {
  const variant = VARIANT_FIELD.exec(field)?.[0];
  if (variant !== undefined) return /^variants\[\d+\]$/u.test(variant) ? `${variant}.id` : variant;
  return PLACES.find((place) => field === place || field.startsWith(`${place}.`) || field.startsWith(`${place}[`));
}

function Fields({ draft, mistakes, set }: { readonly draft: Draft; readonly mistakes: Mistakes; readonly set: (part: Partial<Draft>) => void }) {
  const setVariant = (index: number, part: Partial<VariantDraft>): void =>
    set({ variants: draft.variants.map((variant, at) => (at === index ? { ...variant, ...part } : variant)) });
  const text = (name: Exclude<keyof Draft, "variants" | "strict" | "state" | "others">, label: string, more: { readonly help?: string; readonly type?: "text" | "number" | "datetime-local"; readonly field?: string; readonly placeholder?: string } = {}) => {
    const { field = name, ...rest } = more;
    return <TextField label={label} {...rest} value={draft[name]} error={mistakes[field]} onInput={(value) => set({ [name]: value } as Partial<Draft>)} />;
  };
  return (
    <>
      <div class="fields is-narrow">
        {text("name", "Name", { help: "For you; users do not see it." })}
        <SelectField label="State" value={draft.state} options={STATES} error={mistakes["state"]} onInput={(state) => set({ state })} />
        {text("placements", "Placements", { help: "Where, with commas.", placeholder: "home" })}
        {text("priority", "Priority", { type: "number", help: "The highest wins." })}
      </div>
      <div class="fields">
        {text("starts_at", "From", { type: "datetime-local" })}
        {text("ends_at", "Until", { type: "datetime-local" })}
        {text("time_zone", "Time zone", { placeholder: "Europe/Berlin", help: "Of windows, and of days in caps." })}
      </div>
      <div class="fields is-narrow">
        {text("per_day", "Most per day", { type: "number", field: "caps.per_day" })}
        {text("per_session", "Most per session", { type: "number", field: "caps.per_session" })}
        {text("total", "Most ever", { type: "number", field: "caps.total" })}
        {text("gap_s", "Seconds between", { type: "number", field: "caps.gap_s" })}
        {text("control_percent", "Control group, %", { type: "number" })}
      </div>
      {draft.variants.map((variant, index) => (
        <VariantFields
          key={index}
          index={index}
          variant={variant}
          mistakes={mistakes}
          onChange={(part) => setVariant(index, part)}
          {...(draft.variants.length > 1 && { onRemove: () => set({ variants: draft.variants.filter((_, at) => at !== index) }) })}
        />
      ))}
      <div class="row"><button type="button" class="plain" onClick={() => set({ variants: [...draft.variants, emptyVariant(draft.variants.length)] })}>Add a variant</button></div>
      <AreaField label="Conversion" help="What it is for, as JSON: with it, those who are shown it are compared with those who are not. Empty: no comparison." isCode rows={2} value={draft.conversion} error={mistakes["conversion"]} placeholder={'{"event": "purchase", "within": "7d", "value": "total"}'} onInput={(conversion) => set({ conversion })} />
      <details open={["audience", "trigger", "windows", "test_users"].some((name) => mistakes[name] !== undefined) || draft.audience !== "" || draft.trigger !== ""}>
        <summary>Audience, trigger, windows and test users</summary>
        <div class="stack">
          <AreaField label="Audience" help="A rule as JSON; empty: everybody." isCode rows={5} value={draft.audience} error={mistakes["audience"]} placeholder={'{"attribute": "country", "op": "in", "value": ["DE", "AT"]}'} onInput={(audience) => set({ audience })} />
          <AreaField label="Trigger" help="The event that asks for it, as JSON; empty: page views." isCode rows={3} value={draft.trigger} error={mistakes["trigger"]} placeholder={'{"event": "paid"}'} onInput={(trigger) => set({ trigger })} />
          <AreaField label="Windows" help="When in the week, as a JSON list; empty: always." isCode rows={3} value={draft.windows} error={mistakes["windows"]} placeholder={'[{"days": ["mon", "fri"], "from": "09:00", "to": "17:30"}]'} onInput={(windows) => set({ windows })} />
          {text("test_users", "Test users", { help: "Ids with commas between: they are shown it in any state, and are not counted." })}
          <label class="tick"><input type="checkbox" checked={draft.strict} onChange={(event) => set({ strict: event.currentTarget.checked })} /> Strict: answered once the exposure is stored</label>
        </div>
      </details>
    </>
  );
}
