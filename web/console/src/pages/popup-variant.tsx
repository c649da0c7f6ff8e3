import { AreaField, SelectField, TextField } from "../parts/form.js";
import { IconButton } from "../parts/icon.js";
import type { ButtonDraft, Mistakes, VariantDraft } from "../state/popup-draft.js";

const BUTTONS_MAX = 5;

export function VariantFields({ index, variant, mistakes, onChange, onRemove }: {
  readonly index: number;
  readonly variant: VariantDraft;
  readonly mistakes: Mistakes;
  readonly onChange: (part: Partial<VariantDraft>) => void;
  readonly onRemove?: () => void;
}) {
  const mistake = (field: string): string | undefined => mistakes[`variants[${index}].${field}`];
  const setButton = (which: number, part: Partial<ButtonDraft>): void =>
    onChange({ buttons: variant.buttons.map((button, at) => (at === which ? { ...button, ...part } : button)) });
  const addButton = (): void => onChange({ buttons: [...variant.buttons, { id: `b${variant.buttons.length + 1}`, label: "", action: "dismiss", target: "" }] });
  return (
    <fieldset class="variant">
      <legend>Variant {variant.id || index + 1}</legend>
      <div class="fields">
        <TextField label="Variant id" value={variant.id} error={mistake("id")} onInput={(id) => onChange({ id })} />
        <TextField label="Weight" type="number" value={variant.weight} error={mistake("weight")} onInput={(weight) => onChange({ weight })} />
        <TextField label="Image address" value={variant.image} error={mistake("content.image")} onInput={(image) => onChange({ image })} />
      </div>
      <TextField label="Title" value={variant.title} error={mistake("content.title")} onInput={(title) => onChange({ title })} />
      <AreaField label="Text" rows={3} value={variant.text} error={mistake("content.text")} onInput={(text) => onChange({ text })} />
      {variant.buttons.map((button, which) => (
        <div class="fields is-button" key={which} role="group" aria-label={`Button ${which + 1}`}>
          <TextField label="Button" value={button.label} onInput={(label) => setButton(which, { label })} />
          <TextField label="Button id" value={button.id} onInput={(id) => setButton(which, { id })} />
          <SelectField label="A press" value={button.action} options={[["dismiss", "closes it"], ["open", "opens an address"], ["app", "is the app's own"]]} onInput={(action) => setButton(which, { action })} />
          {button.action !== "dismiss" && <TextField label={button.action === "open" ? "Address" : "The app's word"} value={button.target} onInput={(target) => setButton(which, { target })} />}
          <IconButton icon="close" label={`Remove button ${which + 1}`} onClick={() => onChange({ buttons: variant.buttons.filter((_, at) => at !== which) })} />
        </div>
      ))}
      {mistake("content.buttons") !== undefined && <p class="mistake" role="alert">{mistake("content.buttons")}</p>}
      <AreaField label="Data" help="Whatever else the app understands, as JSON." isCode rows={2} value={variant.data} error={mistake("content.data")} onInput={(data) => onChange({ data })} />
      <div class="row">
        {variant.buttons.length < BUTTONS_MAX && <button type="button" class="plain small" onClick={addButton}>Add a button</button>}
        {onRemove && <button type="button" class="danger small" onClick={onRemove}>Remove the variant</button>}
      </div>
    </fieldset>
  );
}
