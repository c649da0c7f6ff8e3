import { TidingsError } from "@tidings/client";
import { Cell } from "./cell.js";

const SHOWN_MS = 5_000;

/** The newest thing that the user is told in passing. */
export const toast = new Cell<{ readonly text: string } | undefined>(undefined);

export function tell(text: string): void {
  const mine = { text };
  toast.set(mine);
  setTimeout(() => {
    if (toast.get() === mine) toast.set(undefined);
  }, SHOWN_MS);
}

const REASONS: { readonly [code: string]: string } = {
  forbidden: "You may not do that here, or not any more.",
  not_a_member: "You are not a member of this conversation.",
  muted: "You are muted in this conversation.",
  banned: "The user is banned from this conversation.",
  message_recalled: "The message was taken back.",
  version_conflict: "Somebody else has changed the message meanwhile.",
  limit_exceeded: "That is too large, or too many.",
  rate_limited: "That was too fast. Try again in a moment.",
  connection_lost: "The connection broke. Try again.",
  timeout: "No answer came. Try again.",
  not_found: "It is not there.",
};

export function reason(error: unknown): string {
  if (error instanceof TidingsError) return REASONS[error.code] ?? error.message;
  return String(error);
}

/** Waits for something that may fail, and says so where it does. */
export async function telling(work: Promise<unknown>): Promise<void> {
  try {
    await work;
  } catch (error) {
    tell(reason(error));
  }
}
