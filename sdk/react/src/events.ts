import type { SignalEvent, TidingsEvents } from "@tidings/client";
import { useEffect, useRef } from "react";
import { useTidings } from "./context.js";

/** Calls `listener` for each event while the component is there. It may be a new function at each rendering: the newest is called. */
export function useTidingsEvent<Name extends keyof TidingsEvents>(name: Name, listener: (value: TidingsEvents[Name]) => void): void {
  const tidings = useTidings();
  const newest = useRef(listener);
  useEffect(() => {
    newest.current = listener;
  });
  useEffect(() => tidings.on(name, (value) => newest.current(value)), [tidings, name]);
}

/** Calls `listener` for each signal in a conversation while the component is there: of every type, or of this one. */
export function useSignal(conversation: string, listener: (signal: SignalEvent) => void, type?: string): void {
  useTidingsEvent("signal", (signal) => {
    if (signal.conversation === conversation && (type === undefined || signal.type === type)) listener(signal);
  });
}
