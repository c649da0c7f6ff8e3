// The icons of the console.
import { COMMON_PATHS, Drawing, DrawingButton, type ButtonProps } from "../../../src/parts/drawing.js";

const PATHS = {
  ...COMMON_PATHS,
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  send: "M4 12l16-8-6 16-3-7-7-1z",
  popup: "M4 5h16v14H4zM4 9h16M8 14h8",
  push: "M12 3v11M7 9l5 5 5-5M4 17v3h16v-3",
  presence: "M12 14a2 2 0 100-4 2 2 0 000 4zM7.500 16.500a6.500 6.500 0 010-9M16.500 7.500a6.500 6.500 0 010 9M5 19a10 10 0 010-14M19 5a10 10 0 010 14",
  journey: "M6 7a2 2 0 100-4 2 2 0 000 4zM6 7v5h12v5M18 21a2 2 0 100-4 2 2 0 000 4zM6 12v9",
  segment: "M9 12a4 4 0 100-8 4 4 0 000 8zM2 20a7 7 0 0114 0M16 5a4 4 0 010 7M19 14a7 7 0 013 6",
  webhook: "M8 12a4 4 0 118-1M12 11l3 5h5M16 19a4 4 0 104-5M8 12l-3 5",
  feed: "M4 6h10M4 12h10M4 18h10M17 9l4 3-4 3",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 9.500a2.500 2.500 0 100-5 2.500 2.500 0 000 5zM9 19.500a2.500 2.500 0 100-5 2.500 2.500 0 000 5z",
  report: "M4 20V4M4 20h16M8 16v-5M12 16V7M16 16v-3",
  key: "M9 15a4 4 0 100-8 4 4 0 000 8zM13 11h8M21 11v4M17 11v3",
  log: "M6 4h12v16H6zM9 9h6M9 13h6M9 17h3",
  info: "M12 21a9 9 0 100-18 9 9 0 000 18zM12 11v5M12 8v.3",
  reload: "M20 12a8 8 0 11-2.500-5.800M20 3v4h-4",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size }: { readonly name: IconName; readonly size?: number }) {
  return <Drawing path={PATHS[name]} size={size} />;
}

/** A button that shows an icon and says its name. */
export function IconButton({ icon, ...button }: ButtonProps & { readonly icon: IconName }) {
  return <DrawingButton path={PATHS[icon]} {...button} />;
}
