// Whether the window is connected, and what came after it was not.
import type { ConnectionStatus } from "@tidings/client";
import { useEffect, useRef, useState } from "preact/hooks";
import { useObservable } from "../state/cell.js";
import { useSession } from "../state/context.js";
import { Icon } from "./icon.js";

// What was missed comes at once after the connection; then the banner says how much, for a while.
const CATCH_UP_MS = 1_500;
const TOLD_MS = 4_000;
// A connection that takes less is not worth a word.
const CONNECTING_MS = 800;

const ENDINGS: { readonly [code: string]: string } = {
  replaced: "This session was opened elsewhere.",
  kicked: "The server has ended this session.",
  unauthorized: "The server does not accept this user's token.",
  not_found: "The server does not know this user.",
};

export function ConnectionBanner() {
  const { tidings } = useSession();
  const status = useObservable(tidings.status);
  const isLate = useIsLate(status.state === "connecting");
  const isOnNetwork = useIsOnNetwork();
  const caughtUp = useCatchUp(status);
  // The only child of a region that is always there: a reader is told of its change.
  return <div class="banner-place" role="status">{banner()}</div>;

  function banner() {
    if (status.state === "ended") {
      return (
        <p class="banner is-ended">
          <Icon name="alert" />
          <span>{ENDINGS[status.error.code] ?? status.error.message}</span>
          <button type="button" class="link" onClick={() => tidings.reconnect()}>Connect again</button>
        </p>
      );
    }
    if (status.state === "away" || !isOnNetwork) {
      return (
        <p class="banner is-away">
          <Icon name="alert" />
          <span>Offline. What you write is sent when the connection is back.</span>
          <button type="button" class="link" onClick={() => tidings.reconnect()}>Try now</button>
        </p>
      );
    }
    if (status.state === "connecting") return isLate && <p class="banner is-away">Connecting…</p>;
    if (caughtUp === undefined) return null;
    return <p class="banner is-back"><Icon name="check" /><span>{caughtUp}</span></p>;
  }
}

/** What the browser says: it may know sooner than the connection. */
function useIsOnNetwork(): boolean {
  const [isOnNetwork, setOnNetwork] = useState(navigator.onLine);
  useEffect(() => {
    const look = (): void => setOnNetwork(navigator.onLine);
    addEventListener("online", look);
    addEventListener("offline", look);
    return () => {
      removeEventListener("online", look);
      removeEventListener("offline", look);
    };
  }, []);
  return isOnNetwork;
}

function useIsLate(isWaiting: boolean): boolean {
  const [isLate, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    if (!isWaiting) return undefined;
    const timer = setTimeout(() => setLate(true), CONNECTING_MS);
    return () => clearTimeout(timer);
  }, [isWaiting]);
  return isLate;
}

/** What is said after the connection has come back. */
function useCatchUp(status: ConnectionStatus): string | undefined {
  const { tidings } = useSession();
  const wasAway = useRef(false);
  // Counted always: what was missed comes in the same moment as the connection.
  const came = useRef(0);
  const [text, setText] = useState<string>();
  useEffect(() => tidings.on("message", ({ from }) => {
    if (from !== tidings.user) came.current += 1;
  }), [tidings]);
  useEffect(() => {
    if (status.state === "away") {
      if (!wasAway.current) came.current = 0;
      wasAway.current = true;
    }
    if (status.state !== "online" || !wasAway.current) return undefined;
    wasAway.current = false;
    setText("Back online. Catching up…");
    const told = setTimeout(() => {
      const missed = came.current;
      setText(missed === 0 ? "Back online." : `Back online. ${missed} ${missed === 1 ? "message" : "messages"} came meanwhile.`);
    }, CATCH_UP_MS);
    const over = setTimeout(() => setText(undefined), CATCH_UP_MS + TOLD_MS);
    return () => {
      clearTimeout(told);
      clearTimeout(over);
      setText(undefined);
    };
  }, [status.state, tidings]);
  return text;
}
