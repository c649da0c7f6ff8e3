import type { ComponentChildren } from "preact";
import { useEffect, useId, useRef } from "preact/hooks";
import { COMMON_PATHS, DrawingButton } from "./drawing.js";

/** A dialog of the browser: it holds the focus, and Escape or a click beside it closes it. */
export function Dialog({ title, onClose, children }: {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
}) {
  const dialog = useRef<HTMLDialogElement>(null);
  const heading = useId();
  useEffect(() => {
    const own = dialog.current;
    own?.showModal();
    return () => own?.close();
  }, []);
  return (
    <dialog
      ref={dialog}
      class="dialog"
      aria-labelledby={heading}
      onClose={onClose}
      onClick={(event) => {
        if (event.target === dialog.current) onClose();
      }}
    >
      <div class="dialog-inside">
        <header class="dialog-head">
          <h2 id={heading}>{title}</h2>
          <DrawingButton path={COMMON_PATHS.close} label="Close" onClick={onClose} />
        </header>
        {children}
      </div>
    </dialog>
  );
}
