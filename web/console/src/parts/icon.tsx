// Icons of one weight, 24 units wide, in the colour of the text.
const PATHS = {
  pulse: "M3 12h4l3-8 4 16 3-8h4",
  user: "M12 12a4 4 0 100-8 4 4 0 000 8zM5 20c0-4 3-6 7-6s7 2 7 6",
  chat: "M4 5h16v11H10l-5 4v-4H4V5z",
  popup: "M4 5h16v14H4zM4 9h16M8 14h8",
  push: "M12 3v11M7 9l5 5 5-5M4 17v3h16v-3",
  presence: "M12 14a2 2 0 100-4 2 2 0 000 4zM7.500 16.500a6.500 6.500 0 010-9M16.500 7.500a6.500 6.500 0 010 9M5 19a10 10 0 010-14M19 5a10 10 0 010 14",
  webhook: "M8 12a4 4 0 118-1M12 11l3 5h5M16 19a4 4 0 104-5M8 12l-3 5",
  settings: "M4 7h9M17 7h3M4 17h3M11 17h9M15 9.500a2.500 2.500 0 100-5 2.500 2.500 0 000 5zM9 19.500a2.500 2.500 0 100-5 2.500 2.500 0 000 5z",
  report: "M4 20V4M4 20h16M8 16v-5M12 16V7M16 16v-3",
  log: "M6 4h12v16H6zM9 9h6M9 13h6M9 17h3",
  sun: "M12 16.500a4.500 4.500 0 100-9 4.500 4.500 0 000 9zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600L19 19M19 5l-1.400 1.400M6.400 17.600L5 19",
  moon: "M20 14.500A8.500 8.500 0 119.500 4a7 7 0 0010.500 10.500z",
  leave: "M14 4H5v16h9M10 12h11M17 8l4 4-4 4",
  close: "M6 6l12 12M18 6L6 18",
  alert: "M12 4l9 16H3L12 4zM12 10v4.500M12 17v.5",
  check: "M5 12.500l4.500 4.500L19 7",
  info: "M12 21a9 9 0 100-18 9 9 0 000 18zM12 11v5M12 8v.3",
  reload: "M20 12a8 8 0 11-2.500-5.800M20 3v4h-4",
  plus: "M12 5v14M5 12h14",
  back: "M15 5l-7 7 7 7",
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 20 }: { readonly name: IconName; readonly size?: number }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" width={size} height={size} aria-hidden="true" focusable="false">
      <path d={PATHS[name]} fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}

/** A button that shows an icon and says its name. */
export function IconButton({ icon, label, onClick }: { readonly icon: IconName; readonly label: string; readonly onClick: () => void }) {
  return (
    <button type="button" class="icon-button" aria-label={label} title={label} onClick={onClick}>
      <Icon name={icon} />
    </button>
  );
}
