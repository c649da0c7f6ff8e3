// What the chat page and the console draw their icons with: one weight, 24 units wide, in the colour of the text. Each page has its
// own set, so that neither loads what only the other shows.

/** The icons of both. */
export const COMMON_PATHS = {
  alert: "M12 4l9 16H3L12 4zM12 10v4.500M12 17v.5",
  back: "M15 5l-7 7 7 7",
  chat: "M4 5h16v11H10l-5 4v-4H4V5z",
  check: "M5 12.500l4.500 4.500L19 7",
  close: "M6 6l12 12M18 6L6 18",
  leave: "M14 4H5v16h9M10 12h11M17 8l4 4-4 4",
  moon: "M20 14.500A8.500 8.500 0 119.500 4a7 7 0 0010.500 10.500z",
  plus: "M12 5v14M5 12h14",
  sun: "M12 16.500a4.500 4.500 0 100-9 4.500 4.500 0 000 9zM12 2v2M12 20v2M2 12h2M20 12h2M5 5l1.400 1.400M17.600 17.600L19 19M19 5l-1.400 1.400M6.400 17.600L5 19",
  user: "M12 12a4 4 0 100-8 4 4 0 000 8zM5 20c0-4 3-6 7-6s7 2 7 6",
} as const;

export function Drawing({ path, size = 20 }: { readonly path: string; readonly size?: number | undefined }) {
  return (
    <svg class="icon" viewBox="0 0 24 24" width={size} height={size} aria-hidden="true" focusable="false">
      <path d={path} fill="none" stroke="currentColor" stroke-width="1.8" stroke-linecap="round" stroke-linejoin="round" />
    </svg>
  );
}

export interface ButtonProps {
  readonly label: string;
  readonly onClick: (event: MouseEvent) => void;
  readonly isPressed?: boolean;
  /** Tab passes it by: what it does can be done by another key. */
  readonly isSkipped?: boolean;
  readonly class?: string;
}

/** A button that shows a drawing and says its name. */
export function DrawingButton({ path, label, onClick, isPressed, isSkipped, class: more = "" }: ButtonProps & { readonly path: string }) {
  return (
    <button
      type="button"
      class={`icon-button ${more}`}
      aria-label={label}
      title={label}
      {...(isSkipped && { tabIndex: -1 })}
      {...(isPressed !== undefined && { "aria-pressed": isPressed })}
      onClick={onClick}
    >
      <Drawing path={path} />
    </button>
  );
}
