// A document for React to render into, and waits for what is seen in it.
import { Window } from "happy-dom";
import assert from "node:assert/strict";
import type { ReactNode } from "react";

// React DOM looks for a document when it is loaded. The client finds no more of a browser than before: it is given its WebSocket.
const window = new Window({ url: "http://localhost/" });
Object.assign(globalThis, { window, document: window.document, HTMLElement: window.HTMLElement, FormData: window.FormData });
if (!("navigator" in globalThis)) Object.assign(globalThis, { navigator: window.navigator }); // Node 21 has its own
const { createRoot } = await import("react-dom/client");

// Nothing here takes seconds, but the machine may be busy.
const PATIENCE_MS = 60_000;

/** What React has complained of since the last look: a snapshot without identity, an update without end, a missing key. */
const complaints: string[] = [];
console.error = (...said: readonly unknown[]): void => {
  const text = said.map(String).join(" ");
  if (!text.startsWith("(node:")) complaints.push(text); // Node warns of its experiments the same way
};

export class Screen {
  readonly #place = document.createElement("div");
  readonly #root = createRoot(this.#place, {
    onUncaughtError: (error) => complaints.push(String(error)),
    onCaughtError: () => undefined, // a boundary of the test shows it
  });

  render(tree: ReactNode): void {
    this.#root.render(tree);
  }

  get text(): string {
    return this.#place.textContent ?? "";
  }

  /** What elements of a class say. */
  all(name: string): readonly string[] {
    return [...this.#place.querySelectorAll(`.${name}`)].map((element) => element.textContent ?? "");
  }

  async click(name: string): Promise<void> {
    await this.until(`there is a .${name}`, () => this.#place.querySelector(`.${name}`) !== null);
    (this.#place.querySelector(`.${name}`) as HTMLElement).click();
  }

  /** Fills the fields of the form, by their names, and submits it. */
  submit(fields: { readonly [name: string]: string }): void {
    const form = this.#place.querySelector("form");
    assert.ok(form, "there is no form");
    for (const [name, value] of Object.entries(fields)) form.querySelector<HTMLInputElement>(`[name=${name}]`)?.setAttribute("value", value);
    form.requestSubmit();
  }

  /** Resolves when it holds: looked at after each change of the document, and only then, so `holds` may look at nothing else. */
  until(what: string, holds: () => boolean): Promise<void> {
    return new Promise((resolve, reject) => {
      const end = (): void => {
        clearTimeout(timer);
        observer.disconnect();
      };
      const timer = setTimeout(() => {
        end();
        reject(new Error(`not in time: ${what}. It says: ${this.text}\n${complaints.join("\n")}`));
      }, PATIENCE_MS);
      const look = (): void => {
        if (!holds()) return;
        end();
        resolve();
      };
      const observer = new MutationObserver(look);
      observer.observe(this.#place, { childList: true, subtree: true, characterData: true, attributes: true });
      queueMicrotask(look);
    });
  }

  sees(text: string): Promise<void> {
    return this.until(`it says ${text}`, () => this.text.includes(text));
  }

  unmount(): void {
    this.#root.unmount();
  }
}

const { MutationObserver } = window as unknown as { readonly MutationObserver: typeof globalThis.MutationObserver };

/** React had nothing to say against it. */
export function assertNoComplaints(): void {
  assert.deepEqual(complaints.splice(0), []);
}
