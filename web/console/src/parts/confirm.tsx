// The question before a change: it names what happens, and the answer that does nothing has the focus.
import { Dialog } from "../../../src/parts/dialog.js";
import { Cell, useObservable } from "../../../src/state/cell.js";

export interface Question {
  readonly title: string;
  /** What happens, and to whom. */
  readonly text: string;
  /** What the button does, as a verb. */
  readonly action: string;
  readonly isDangerous?: boolean;
}

interface Open extends Question {
  readonly answer: (isYes: boolean) => void;
}

const open = new Cell<Open | undefined>(undefined);

/** Asks whether to go on. */
export function confirmed(question: Question): Promise<boolean> {
  open.get()?.answer(false);
  return new Promise((resolve) => {
    const mine: Open = {
      ...question,
      answer: (isYes) => {
        // The browser tells of a dialog's end later, when the next question may be open.
        if (open.get() === mine) open.set(undefined);
        resolve(isYes);
      },
    };
    open.set(mine);
  });
}

export function ConfirmPlace() {
  const question = useObservable(open);
  if (!question) return null;
  const { title, text, action, isDangerous = false, answer } = question;
  return (
    <Dialog title={title} onClose={() => answer(false)}>
      <p class="dialog-text">{text}</p>
      <div class="dialog-buttons">
        <button type="button" class="plain" autofocus onClick={() => answer(false)}>Cancel</button>
        <button type="button" class={isDangerous ? "destroy" : "primary"} onClick={() => answer(true)}>{action}</button>
      </div>
    </Dialog>
  );
}
