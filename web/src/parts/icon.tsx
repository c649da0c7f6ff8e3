// The icons of the chat page.
import { COMMON_PATHS, Drawing, DrawingButton, type ButtonProps } from "./drawing.js";

const PATHS = {
  ...COMMON_PATHS,
  send: "M4 12l16-8-5 16-3.5-6.5L4 12z",
  smile: "M12 21a9 9 0 100-18 9 9 0 000 18zM8.5 14.5c.9 1.2 2 1.8 3.5 1.8s2.600-.6 3.5-1.800M9 9.500v.5M15 9.500v.5",
  reply: "M9 7l-5 5 5 5M4 12h9c4 0 6.500 2 7 6",
  edit: "M4 20l1-4L16.500 4.500l3 3L8 19l-4 1zM14 7l3 3",
  pin: "M9 4h6l-1 6 3 3H7l3-3-1-6zM12 13v7",
  undo: "M5 7h14M9 7V5h6v2M7 7l1 13h8l1-13M10.500 11v5.500M13.500 11v5.500",
  copy: "M9 9h11v11H9zM15 9V4H4v11h5",
  people: "M9 11a3.500 3.500 0 100-7 3.500 3.500 0 000 7zM3 20c0-4 2.500-6 6-6s6 2 6 6M16 5a3 3 0 010 6M18 14.500c2 .8 3 2.700 3 5.500",
  bell: "M6 10a6 6 0 1112 0c0 5 2 6 2 7H4c0-1 2-2 2-7zM10 20.500h4",
  bellOff: "M6.500 8A6 6 0 0118 10c0 3 .7 4.500 1.300 5.500M17 17H4c0-1 2-2 2-7M10 20.500h4M4 3l17 18",
  search: "M11 18a7 7 0 100-14 7 7 0 000 14zM16 16l5 5",
  checks: "M2.500 12.500L7 17l9-10M11.500 15.500L13 17l9-10",
  clock: "M12 20a8 8 0 100-16 8 8 0 000 16zM12 8v4.500l3 2",
  down: "M12 5v14M6 13l6 6 6-6",
  more: "M5.500 12a.5.5 0 101 0 .5.5 0 10-1 0M11.500 12a.5.5 0 101 0 .5.5 0 10-1 0M17.500 12a.5.5 0 101 0 .5.5 0 10-1 0",
  archive: "M4 5h16v4H4zM5.500 9v10h13V9M10 13h4",
  unarchive: "M4 5h16v4H4zM5.500 9v10h13V9M12 18v-5.500M9.500 14.500L12 12l2.500 2.500",
  hide: "M4 4l16 16M9.500 5.500A9 9 0 0112 5c5 0 8 4.500 9 7a13 13 0 01-3 4.200M6.500 7.500A13 13 0 003 12c1 2.500 4 7 9 7 1.500 0 3-.4 4-1",
  unread: "M4 6h16v12H4zM4 7.500l8 6 8-6",
  stop: "M7 7h10v10H7z",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name }: { readonly name: IconName }) {
  return <Drawing path={PATHS[name]} />;
}

/** A button that shows an icon and says its name. */
export function IconButton({ icon, ...button }: ButtonProps & { readonly icon: IconName }) {
  return <DrawingButton path={PATHS[icon]} {...button} />;
}
