// Who is signed in: one client for all components below the provider.
import type { Tidings } from "@tidings/client";
import { createContext, createElement, useContext, useEffect, useRef, useState, type ReactNode } from "react";

const TidingsContext = createContext<Tidings | undefined>(undefined);

/** Hands the client to every hook below it. The client stays the caller's: whoever connected it closes it. */
export function TidingsProvider({ client, children }: { readonly client: Tidings; readonly children?: ReactNode }): ReactNode {
  return createElement(TidingsContext.Provider, { value: client }, children);
}

/** The client: whatever is not shown but done. */
export function useTidings(): Tidings {
  const client = useContext(TidingsContext);
  if (!client) throw new Error("useTidings is used outside of a <TidingsProvider>");
  return client;
}

/** How far `useConnect` is; `state` tells which fields it has. */
export type ConnectState = Connecting | ConnectReady | ConnectFailed;

/** There is no client yet, or nobody is signed in. */
export interface Connecting {
  /** Tells the states apart. */
  readonly state: "connecting";
}

/** There is a client: whether it is online, `useStatus` tells. */
export interface ConnectReady {
  /** Tells the states apart. */
  readonly state: "ready";
  /** For the `TidingsProvider`. */
  readonly client: Tidings;
}

/** The first connect was refused for good, or `open` rejected: a new `key` tries again. */
export interface ConnectFailed {
  /** Tells the states apart. */
  readonly state: "failed";
  /** What `open` rejected with. */
  readonly error: unknown;
}

const CONNECTING: ConnectState = { state: "connecting" };

/**
 * Connects while the component is there, and closes the client when it goes, or when `key` changes: give it the user's id, and
 * `undefined` while nobody is signed in. `open` may be a new function at each rendering: it is called once for each key.
 */
export function useConnect(key: string | undefined, open: () => Promise<Tidings>): ConnectState {
  const [opened, setOpened] = useState<{ readonly key: string; readonly is: ConnectState }>();
  const newest = useRef(open);
  useEffect(() => {
    newest.current = open;
  });
  // A client is opened when the one before it has closed: two of one device would replace each other.
  const before = useRef<Promise<unknown>>(Promise.resolve());

  useEffect(() => {
    if (key === undefined) return undefined;
    let isOver = false;
    let client: Tidings | undefined;
    const tell = (is: ConnectState): void => {
      if (!isOver) setOpened({ key, is });
    };
    const opening = before.current.then(async () => {
      if (isOver) return; // as under StrictMode, which mounts twice
      try {
        client = await newest.current();
        if (isOver) await client.close();
        else tell({ state: "ready", client });
      } catch (error) {
        tell({ state: "failed", error });
      }
    });
    before.current = opening;
    return () => {
      isOver = true;
      setOpened(undefined);
      before.current = client ? client.close().catch(() => undefined) : opening;
    };
  }, [key]);

  // What belongs to another key is never shown, also in the rendering in which the key changes.
  return opened !== undefined && opened.key === key ? opened.is : CONNECTING;
}
