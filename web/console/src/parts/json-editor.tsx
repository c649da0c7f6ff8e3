// A document of the API as it stands, to be changed as JSON. The server decides what is valid and names the mistake.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import { reason, RefusedError } from "../state/api.js";
import { useAction } from "../state/use-ask.js";
import { AreaField, Outcome, readJson, TextField } from "./form.js";
import { Card, Failure } from "./layout.js";

export function JsonEditor({ title, note, document, idLabel, saveLabel, saved, actions, onSave }: {
  readonly title: string;
  readonly note?: ComponentChildren;
  readonly document: unknown;
  /** Set for a new document: what its id is called. */
  readonly idLabel?: string;
  readonly saveLabel: string;
  /** What the save before came to: the editor is made anew for each version. */
  readonly saved?: string | undefined;
  readonly actions?: ComponentChildren;
  /** Rejects with the server's refusal. */
  readonly onSave: (document: unknown, id: string) => Promise<void>;
}) {
  const [id, setId] = useState("");
  const [text, setText] = useState(() => JSON.stringify(document, undefined, 2));
  const [mistakes, setMistakes] = useState<{ readonly id?: string; readonly text?: string }>({});
  const { isRunning, failure, run } = useAction();
  const save = async (): Promise<void> => {
    const read = readJson(text);
    const isNamed = idLabel === undefined || id.trim() !== "";
    const mistake = read.mistake ?? (read.value === undefined ? "Nothing is here." : undefined);
    setMistakes({ ...(!isNamed && { id: "It needs an id." }), ...(mistake !== undefined && { text: mistake }) });
    if (!isNamed || read.mistake !== undefined || read.value === undefined) return;
    const { value } = read;
    await run(async () => {
      try {
        await onSave(value, id.trim());
      } catch (error) {
        if (!(error instanceof RefusedError)) throw error;
        if (error.code === "conflict") throw new Error(idLabel === undefined ? "Somebody else has changed it meanwhile. Load the page again, and make your change on the new version." : "This id is taken.");
        setMistakes({ text: reason(error) });
      }
    });
  };
  return (
    <Card title={title} note={note}>
      <form class="stack" noValidate onSubmit={(event) => { event.preventDefault(); void save(); }}>
        {idLabel !== undefined && <TextField label={idLabel} help="Your own name for it in the API; it stays." value={id} error={mistakes.id} onInput={setId} isRequired />}
        <AreaField label="As the API takes it" isCode rows={20} value={text} error={mistakes.text} onInput={setText} />
        <Failure text={failure} />
        <Outcome text={saved} />
        <div class="row">
          <button type="submit" class="primary" disabled={isRunning}>{saveLabel}</button>
          {actions}
        </div>
      </form>
    </Card>
  );
}
