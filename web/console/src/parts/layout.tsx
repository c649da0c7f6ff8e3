// The parts that pages are put together from.
import type { ComponentChildren } from "preact";
import { useId } from "preact/hooks";
import { ago, dateTime } from "../state/format.js";
import type { Asked } from "../state/use-ask.js";
import { Icon, IconButton, type IconName } from "./icon.js";

export function Page({ title, about, actions, children }: {
  readonly title: ComponentChildren;
  readonly about?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
}) {
  return (
    <div class="page">
      <header class="page-head">
        <div>
          <h1 tabIndex={-1}>{title}</h1>
          {about !== undefined && <p class="soft">{about}</p>}
        </div>
        {actions !== undefined && <div class="page-actions">{actions}</div>}
      </header>
      {children}
    </div>
  );
}

export function Card({ title, note, actions, children, class: more = "" }: {
  readonly title: string;
  readonly note?: ComponentChildren;
  readonly actions?: ComponentChildren;
  readonly children: ComponentChildren;
  readonly class?: string;
}) {
  const heading = useId();
  return (
    <section class={`card ${more}`} aria-labelledby={heading}>
      <header class="card-head">
        <h2 id={heading}>{title}</h2>
        {note !== undefined && <span class="soft">{note}</span>}
        {actions !== undefined && <div class="card-actions">{actions}</div>}
      </header>
      {children}
    </section>
  );
}

export interface Column {
  readonly title: string;
  readonly isNumber?: boolean;
}

export interface Row {
  readonly key: string | number;
  readonly cells: readonly ComponentChildren[];
}

/** A table that scrolls within itself where it is too wide. Its first column names the rows. */
export function Table({ label, columns, rows, empty }: {
  readonly label: string;
  readonly columns: readonly Column[];
  readonly rows: readonly Row[];
  readonly empty?: string;
}) {
  if (rows.length === 0) return <p class="nothing">{empty ?? "Nothing here."}</p>;
  return (
    <div class="table-place" role="region" aria-label={label} tabIndex={0}>
      <table>
        <thead>
          <tr>{columns.map(({ title, isNumber = false }) => <th key={title} scope="col" class={isNumber ? "number" : ""}>{title}</th>)}</tr>
        </thead>
        <tbody>
          {rows.map(({ key, cells }) => (
            <tr key={key}>
              {cells.map((cell, index) => <td key={index} class={columns[index]?.isNumber === true ? "number" : ""}>{cell}</td>)}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export type Tone = "good" | "warn" | "bad" | "plain" | "accent";

export function Badge({ tone = "plain", children }: { readonly tone?: Tone; readonly children: ComponentChildren }) {
  return <span class={`badge is-${tone}`}>{children}</span>;
}

const ICONS: Readonly<Record<Exclude<Tone, "accent">, IconName>> = { good: "check", warn: "alert", bad: "alert", plain: "info" };

export function Finding({ tone, children }: { readonly tone: Exclude<Tone, "accent">; readonly children: ComponentChildren }) {
  return (
    <li class={`finding is-${tone}`}>
      <Icon name={ICONS[tone]} />
      <span>{children}</span>
    </li>
  );
}

/** Text that others chose: its direction and its length stay its own. */
export function Foreign({ children }: { readonly children: string }) {
  return <bdi class="foreign">{children}</bdi>;
}

export function Time({ at }: { readonly at: number }) {
  return <time dateTime={new Date(at).toISOString()} title={dateTime(at)}>{ago(at)}</time>;
}

/** Names and values, one under the other. */
export function Facts({ facts }: { readonly facts: readonly (readonly [string, ComponentChildren])[] }) {
  return <dl class="facts">{facts.map(([name, value]) => <div key={name}><dt>{name}</dt><dd>{value}</dd></div>)}</dl>;
}

export function Failure({ text }: { readonly text: string | undefined }) {
  return <div role="alert">{text !== undefined && <p class="failure-box"><Icon name="alert" /><span>{text}</span></p>}</div>;
}

/** What was asked for once it is there; before, that it is on its way, or why not. */
export function Loaded<T>({ asked, children }: { readonly asked: Asked<T>; readonly children: (data: T) => ComponentChildren }) {
  return (
    <>
      <Failure text={asked.failure} />
      {asked.data !== undefined ? children(asked.data) : asked.failure === undefined && <p class="nothing" role="status">Loading…</p>}
    </>
  );
}

export function Reload({ asked }: { readonly asked: Asked<unknown> }) {
  return <IconButton icon="reload" label="Load again" onClick={asked.reload} />;
}
