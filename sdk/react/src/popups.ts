// The popup that an app shows now: asked for at a placement, or triggered by the app's server.
import type { PopupButton, PopupContent, PopupDecision, PopupEvent, Tidings } from "@tidings/client";
import { useCallback, useEffect, useMemo, useState } from "react";
import { useTidings } from "./context.js";
import { useTidingsEvent } from "./events.js";

/** A popup to draw. That it was seen is reported when it is first returned. */
export interface ShownPopup {
  /** What it shows. */
  readonly content: PopupContent;
  /** The whole of what the server decided. */
  readonly decision: PopupDecision;
  /** The user has pressed a button: reported, and the popup is closed. What the button's `action` says is the app's to do. */
  readonly press: (button: PopupButton) => void;
  /** The user has clicked the popup itself: reported, and it is closed. */
  readonly click: () => void;
  /** The user does not want it: reported, and it is closed. */
  readonly dismiss: () => void;
}

// The longest time that a timer takes; who waits for longer asks at the next page.
const TIMER_MS_MAX = 2 ** 31 - 1;
// More would not be seen anyhow: the oldest are kept, the server shows the others another time.
const WAITING_MAX = 10;

/**
 * The popup to show, one at a time. With a `placement` the server is asked when the component comes, and again when it said that one
 * could be due; popups that the app's server triggers come without being asked for. Use it once in an app: each place that uses
 * it shows what is triggered.
 */
export function usePopups(placement?: string): ShownPopup | undefined {
  const tidings = useTidings();
  const [waiting, setWaiting] = useState<readonly PopupDecision[]>([]);
  const add = useCallback((popup: PopupDecision) => {
    setWaiting((known) => (known.length >= WAITING_MAX || known.some(({ decision }) => decision === popup.decision) ? known : [...known, popup]));
  }, []);
  useTidingsEvent("popup", add);
  useAsked(tidings, placement, add);

  const current = waiting[0];
  useEffect(() => {
    if (current) report(tidings, current, { type: "impression" });
  }, [tidings, current]);

  return useMemo(() => {
    if (!current) return undefined;
    const end = (event: Happened): void => {
      report(tidings, current, event);
      setWaiting((known) => known.filter(({ decision }) => decision !== current.decision));
    };
    return {
      content: current.content,
      decision: current,
      press: ({ id }) => end({ type: "button", button: id }),
      click: () => end({ type: "click" }),
      dismiss: () => end({ type: "dismiss" }),
    };
  }, [tidings, current]);
}

function useAsked(tidings: Tidings, placement: string | undefined, add: (popup: PopupDecision) => void): void {
  useEffect(() => {
    if (placement === undefined) return undefined;
    let isOver = false;
    let timer: ReturnType<typeof setTimeout> | undefined;
    const ask = async (): Promise<void> => {
      // Each answer counts as a showing: a component that is gone by now, as under StrictMode, does not ask.
      if (isOver) return;
      try {
        const { show, retryAfterMs } = await tidings.popups.ask({ placement });
        if (isOver) return;
        if (show) add(show);
        else if (retryAfterMs !== undefined && retryAfterMs <= TIMER_MS_MAX) timer = setTimeout(() => void ask(), retryAfterMs);
      } catch {
        // Without an answer there is no popup; the next page asks again.
      }
    };
    queueMicrotask(() => void ask());
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [tidings, placement, add]);
}

type Happened = Pick<PopupEvent, "type" | "button">;

function report(tidings: Tidings, { decision }: PopupDecision, happened: Happened): void {
  // One id for one kind of event of a decision: what is reported twice is counted once.
  const id = [decision, happened.type, happened.button].filter((part) => part !== undefined).join(":");
  tidings.popups.report([{ id, decision, at: Date.now(), ...happened }]).catch(() => undefined); // refused for good: there is nothing that a component could do
}
