// A popup as the fields of a form have it, all of them text, and as the API takes it.
import { readJson, words } from "../parts/form.js";
import type { PopupButton, PopupCaps, PopupContent, PopupSpec, PopupState, PopupVariant } from "./types.js";

export interface ButtonDraft {
  readonly id: string;
  readonly label: string;
  readonly action: PopupButton["action"]["type"];
  /** The address, or the app's own word. */
  readonly target: string;
}

export interface VariantDraft {
  readonly id: string;
  readonly weight: string;
  readonly title: string;
  readonly text: string;
  readonly image: string;
  readonly buttons: readonly ButtonDraft[];
  readonly data: string;
}

export interface Draft {
  readonly name: string;
  readonly state: PopupState;
  readonly placements: string;
  readonly priority: string;
  readonly starts_at: string;
  readonly ends_at: string;
  readonly time_zone: string;
  readonly control_percent: string;
  readonly per_day: string;
  readonly per_session: string;
  readonly total: string;
  readonly gap_s: string;
  readonly windows: string;
  readonly audience: string;
  readonly trigger: string;
  readonly conversion: string;
  /** What the form has no field for: it is written as it was. */
  readonly others: Readonly<Record<string, unknown>>;
  readonly test_users: string;
  readonly strict: boolean;
  readonly variants: readonly VariantDraft[];
}

/** What is wrong, by the paths of the API. */
export type Mistakes = Readonly<Record<string, string | undefined>>;

const IDS = "abcdefghijklmnopqrst";

export function emptyVariant(index: number): VariantDraft {
  return { id: IDS[index] ?? "", weight: "1", title: "", text: "", image: "", buttons: [], data: "" };
}

export function jsonOf(value: unknown): string {
  return JSON.stringify(value, undefined, 2);
}

function written(value: number | null | undefined): string {
  return value === undefined || value === null ? "" : String(value);
}

function writtenJson(value: unknown): string {
  const isEmpty = value === undefined || value === null || (Array.isArray(value) && value.length === 0);
  return isEmpty ? "" : jsonOf(value);
}

/** As a field of the browser's own time has it. */
function writtenTime(at: number | null | undefined): string {
  if (at === undefined || at === null) return "";
  const date = new Date(at);
  return new Date(at - date.getTimezoneOffset() * 60_000).toISOString().slice(0, date.getSeconds() === 0 ? 16 : 19);
}

function buttonDraft({ id, label, action }: PopupButton): ButtonDraft {
  return { id, label, action: action.type, target: action.type === "open" ? action.url : action.type === "app" ? action.name : "" };
}

function variantDraft({ id, weight, content }: PopupVariant): VariantDraft {
  const { title, text, image, buttons = [], data } = content;
  return { id, weight: written(weight ?? 1), title: title ?? "", text: text ?? "", image: image ?? "", buttons: buttons.map(buttonDraft), data: writtenJson(data) };
}

const FIELDS: ReadonlySet<string> = new Set([
  "name", "state", "placements", "priority", "starts_at", "ends_at", "time_zone", "control_percent", "caps", "windows", "audience", "trigger",
  "conversion", "test_users", "strict", "variants",
]);

function othersOf(spec: PopupSpec | undefined): Readonly<Record<string, unknown>> {
  return Object.fromEntries(Object.entries(spec ?? {}).filter(([name]) => !FIELDS.has(name)));
}

export function draftOf(spec: PopupSpec | undefined): Draft {
  return {
    name: spec?.name ?? "",
    state: spec?.state ?? "draft",
    placements: spec?.placements.join(", ") ?? "",
    priority: written(spec?.priority),
    starts_at: writtenTime(spec?.starts_at),
    ends_at: writtenTime(spec?.ends_at),
    time_zone: spec?.time_zone ?? "",
    control_percent: written(spec?.control_percent),
    per_day: written(spec?.caps?.per_day),
    per_session: written(spec?.caps?.per_session),
    total: written(spec?.caps?.total),
    gap_s: written(spec?.caps?.gap_s),
    windows: writtenJson(spec?.windows),
    audience: writtenJson(spec?.audience),
    trigger: writtenJson(spec?.trigger),
    conversion: writtenJson(spec?.conversion),
    others: othersOf(spec),
    test_users: spec?.test_users?.join(", ") ?? "",
    strict: spec?.strict ?? false,
    variants: spec ? spec.variants.map(variantDraft) : [emptyVariant(0)],
  };
}

/** Reads fields, and gathers what is wrong with them. */
class Reader {
  readonly mistakes: Record<string, string> = {};

  number(field: string, text: string): number | undefined {
    if (text.trim() === "") return undefined;
    const value = Number(text);
    if (Number.isFinite(value)) return value;
    this.mistakes[field] = "This is no number.";
    return undefined;
  }

  time(field: string, text: string): number | undefined {
    if (text === "") return undefined;
    const at = new Date(text).getTime();
    if (Number.isFinite(at)) return at;
    this.mistakes[field] = "This is no date and time.";
    return undefined;
  }

  json(field: string, text: string): unknown {
    const read = readJson(text);
    if (read.mistake === undefined) return read.value;
    this.mistakes[field] = read.mistake;
    return undefined;
  }
}

/** What is left out is not written at all: the server's default holds. */
function given<T extends object>(parts: T): T {
  return Object.fromEntries(Object.entries(parts).filter(([, value]) => value !== undefined && value !== "")) as T;
}

function buttonOf({ id, label, action, target }: ButtonDraft): PopupButton {
  return { id, label, action: action === "open" ? { type: action, url: target } : action === "app" ? { type: action, name: target } : { type: action } };
}

function variantOf(reader: Reader, { id, weight, title, text, image, buttons, data }: VariantDraft, index: number): PopupVariant {
  const at = `variants[${index}]`;
  const content: PopupContent = given({ title, text, image, ...(buttons.length > 0 && { buttons: buttons.map(buttonOf) }), data: reader.json(`${at}.content.data`, data) });
  const share = reader.number(`${at}.weight`, weight);
  return { id, ...(share !== undefined && { weight: share }), content };
}

export function specOf(draft: Draft): { readonly spec: PopupSpec | undefined; readonly mistakes: Mistakes } {
  const reader = new Reader();
  const caps = given({
    per_day: reader.number("caps.per_day", draft.per_day), per_session: reader.number("caps.per_session", draft.per_session),
    total: reader.number("caps.total", draft.total), gap_s: reader.number("caps.gap_s", draft.gap_s),
  }) as PopupCaps;
  const spec = given({
    ...draft.others,
    name: draft.name,
    state: draft.state,
    placements: words(draft.placements),
    priority: reader.number("priority", draft.priority),
    starts_at: reader.time("starts_at", draft.starts_at),
    ends_at: reader.time("ends_at", draft.ends_at),
    time_zone: draft.time_zone.trim(),
    windows: reader.json("windows", draft.windows),
    audience: reader.json("audience", draft.audience),
    trigger: reader.json("trigger", draft.trigger),
    caps: Object.keys(caps).length > 0 ? caps : undefined,
    variants: draft.variants.map((variant, index) => variantOf(reader, variant, index)),
    control_percent: reader.number("control_percent", draft.control_percent),
    conversion: reader.json("conversion", draft.conversion),
    strict: draft.strict ? true : undefined,
    test_users: words(draft.test_users).length > 0 ? words(draft.test_users) : undefined,
  });
  return { spec: Object.keys(reader.mistakes).length === 0 ? (spec as PopupSpec) : undefined, mistakes: reader.mistakes };
}
