// The fields that narrow a list, which apply together.
import { useState } from "preact/hooks";
import { SelectField, TextField } from "./form.js";

export interface NarrowField {
  /** The parameter of the query. */
  readonly key: string;
  readonly label: string;
  readonly placeholder?: string;
  /** What may be chosen: values with their names. Absent: any text. */
  readonly options?: readonly (readonly [string, string])[];
}

export function Narrow({ fields, onApply }: { readonly fields: readonly NarrowField[]; readonly onApply: (values: Readonly<Record<string, string>>) => void }) {
  const [values, setValues] = useState<Readonly<Record<string, string>>>({});
  return (
    <form
      class="stack"
      onSubmit={(event) => {
        event.preventDefault();
        onApply(Object.fromEntries(Object.entries(values).map(([key, value]) => [key, value.trim()])));
      }}
    >
      <div class="fields">
        {fields.map(({ key, label, placeholder, options }) => {
          const field = { label, value: values[key] ?? "", onInput: (value: string) => setValues({ ...values, [key]: value }) };
          return options ? <SelectField key={key} {...field} options={options} /> : <TextField key={key} {...field} {...(placeholder !== undefined && { placeholder })} />;
        })}
      </div>
      <div class="row"><button type="submit" class="plain">Apply</button></div>
    </form>
  );
}
