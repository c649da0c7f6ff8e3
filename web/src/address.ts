// The conversation is in the address, so that a browser's way back leads to the list.

export const hashOf = (conversation: string): string => `#${encodeURIComponent(conversation)}`;

export function opened(): string | undefined {
  try {
    return location.hash.length > 1 ? decodeURIComponent(location.hash.slice(1)) : undefined;
  } catch {
    return undefined; // a hand-written address
  }
}

/** Where a line leads that is open already. */
export function focusComposer(): void {
  document.querySelector<HTMLElement>(".composer textarea")?.focus();
}
