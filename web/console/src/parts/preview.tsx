// A popup about as an app would draw it. Nothing of it is fetched, and nothing of it acts.
import { useState } from "preact/hooks";
import type { PopupContent, PopupSpec } from "../state/types.js";
import { Tabs } from "./form.js";
import { Card } from "./layout.js";

export function Preview({ spec }: { readonly spec: PopupSpec }) {
  const [chosen, setChosen] = useState(0);
  const shown = Math.min(chosen, spec.variants.length - 1);
  const variant = spec.variants[shown];
  return (
    <Card title="Preview" note="apps may draw it in their own way">
      <div class="stack">
        {spec.variants.length > 1 && <Tabs label="Variant" tabs={spec.variants.map(({ id }, index) => [String(index), id || String(index + 1)] as const)} chosen={String(shown)} onChoose={(index) => setChosen(Number(index))} />}
        {variant && <div class="preview-place"><Content content={variant.content} /></div>}
      </div>
    </Card>
  );
}

function Content({ content: { title, text, image, buttons = [], data } }: { readonly content: PopupContent }) {
  const isEmpty = !title && !text && !image && buttons.length === 0;
  return (
    <div class="preview">
      {image && <div class="preview-image"><span>Picture of</span><bdi>{image}</bdi></div>}
      {title && <h3><bdi>{title}</bdi></h3>}
      {text && <p class="preview-text"><bdi>{text}</bdi></p>}
      {isEmpty && <p class="soft">{data === undefined || data === null ? "Nothing is written on it yet." : "The app draws it from its data."}</p>}
      {buttons.length > 0 && (
        <div class="preview-buttons">
          {buttons.map(({ id, label, action }) => <span key={id} class={action.type === "dismiss" ? "is-dismiss" : ""}><bdi>{label || id}</bdi></span>)}
        </div>
      )}
    </div>
  );
}
