import { randomBytes } from "../platform.js";

/** A random id of 24 letters. */
export function randomId(): string {
  return Array.from(randomBytes(12), (byte) => byte.toString(16).padStart(2, "0")).join("");
}
