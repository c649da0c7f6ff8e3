// Fields, each with its label and, if the server or the page finds one, its mistake.
import type { ComponentChildren } from "preact";
import { useId, useState } from "preact/hooks";
import { Icon } from "./icon.js";

interface FieldProps {
  readonly label: string;
  readonly help?: string;
  readonly error?: string | undefined;
}

/** The attributes that tie a control to its help and its mistake. */
interface Tied {
  readonly id: string;
  readonly "aria-describedby"?: string;
  readonly "aria-invalid"?: true;
}

export function Field({ label, help, error, children }: FieldProps & { readonly children: (tied: Tied) => ComponentChildren }) {
  const id = useId();
  const tied: Tied = {
    id,
    ...((help !== undefined || error !== undefined) && { "aria-describedby": `${id}-about` }),
    ...(error !== undefined && { "aria-invalid": true as const }),
  };
  return (
    <div class={error === undefined ? "field" : "field is-wrong"}>
      <label for={id}>{label}</label>
      {children(tied)}
      {(error !== undefined || help !== undefined) && (
        <p id={`${id}-about`} class={error === undefined ? "help" : "mistake"}>{error ?? help}</p>
      )}
    </div>
  );
}

export function TextField({ value, onInput, placeholder, type = "text", isRequired = false, ...field }: FieldProps & {
  readonly value: string;
  readonly onInput: (value: string) => void;
  readonly placeholder?: string;
  readonly type?: "text" | "number" | "password" | "datetime-local" | "search";
  readonly isRequired?: boolean;
}) {
  // The types of JSX tell the kinds of inputs apart; what is set here fits all of them.
  const kind = { type } as { readonly type: "text" };
  return (
    <Field {...field}>
      {(tied) => (
        <input
          {...tied}
          {...kind}
          value={value}
          required={isRequired}
          autocomplete="off"
          spellcheck={false}
          {...(placeholder !== undefined && { placeholder })}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function AreaField({ value, onInput, rows = 4, isCode = false, placeholder, ...field }: FieldProps & {
  readonly value: string;
  readonly onInput: (value: string) => void;
  readonly rows?: number;
  readonly isCode?: boolean;
  readonly placeholder?: string;
}) {
  return (
    <Field {...field}>
      {(tied) => (
        <textarea
          {...tied}
          rows={rows}
          class={isCode ? "code" : ""}
          value={value}
          spellcheck={!isCode}
          {...(placeholder !== undefined && { placeholder })}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
      )}
    </Field>
  );
}

export function SelectField<T extends string>({ value, options, onInput, ...field }: FieldProps & {
  readonly value: T;
  readonly options: readonly (readonly [T, string])[];
  readonly onInput: (value: T) => void;
}) {
  return (
    <Field {...field}>
      {(tied) => (
        <select {...tied} value={value} onChange={(event) => onInput(event.currentTarget.value as T)}>
          {options.map(([option, name]) => <option key={option} value={option}>{name}</option>)}
        </select>
      )}
    </Field>
  );
}

/** One field with a button: to find something by its id. */
export function Finder({ label, button, initial = "", placeholder, onFind }: {
  readonly label: string;
  readonly button: string;
  readonly initial?: string;
  readonly placeholder?: string;
  readonly onFind: (id: string) => void;
}) {
  const [text, setText] = useState(initial);
  const id = useId();
  return (
    <form
      class="finder"
      role="search"
      onSubmit={(event) => {
        event.preventDefault();
        if (text.trim() !== "") onFind(text.trim());
      }}
    >
      <label class="sr-only" for={id}>{label}</label>
      <input id={id} type="search" value={text} placeholder={placeholder ?? label} autocomplete="off" spellcheck={false} onInput={(event) => setText(event.currentTarget.value)} />
      <button type="submit" class="primary">{button}</button>
    </form>
  );
}

export function Tabs<T extends string>({ label, tabs, chosen, onChoose }: {
  readonly label: string;
  readonly tabs: readonly (readonly [T, string])[];
  readonly chosen: T;
  readonly onChoose: (tab: T) => void;
}) {
  return (
    <div class="tabs" role="group" aria-label={label}>
      {tabs.map(([tab, name]) => (
        <button key={tab} type="button" class="tab" aria-pressed={tab === chosen} onClick={() => onChoose(tab)}>{name}</button>
      ))}
    </div>
  );
}

/** What a change came to, beside its button. */
export function Outcome({ text }: { readonly text: string | undefined }) {
  return <div role="status">{text !== undefined && <p class="outcome"><Icon name="check" /><span>{text}</span></p>}</div>;
}

/** JSON from a field; an empty field is `undefined`. */
export function readJson(text: string): { readonly value: unknown; readonly mistake?: undefined } | { readonly mistake: string } {
  if (text.trim() === "") return { value: undefined };
  try {
    return { value: JSON.parse(text) as unknown };
  } catch (error) {
    return { mistake: `This is no JSON: ${error instanceof Error ? error.message : String(error)}` };
  }
}

/** Words that are separated by commas or spaces. */
export function words(text: string): string[] {
  return text.split(/[\s,]+/u).filter((word) => word !== "");
}
