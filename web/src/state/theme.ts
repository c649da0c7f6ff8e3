import { Cell } from "./cell.js";

export type Theme = "system" | "light" | "dark";

const KEY = "tidings theme";

function stored(): Theme {
  const value = localStorage.getItem(KEY);
  return value === "light" || value === "dark" ? value : "system";
}

export const theme = new Cell<Theme>(stored());

export function applyTheme(): void {
  document.documentElement.dataset["theme"] = theme.get();
}

export function isDark(): boolean {
  const chosen = theme.get();
  return chosen === "system" ? matchMedia("(prefers-color-scheme: dark)").matches : chosen === "dark";
}

/** From what is seen to the other; back to the system's own choice when that is the same. */
export function switchTheme(): void {
  const next = isDark() ? "light" : "dark";
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  theme.set(next === system ? "system" : next);
  localStorage.setItem(KEY, theme.get());
  applyTheme();
}
