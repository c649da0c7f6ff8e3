// What is said when the node is away, or cannot do its work: once, above all pages.
import { useEffect, useState } from "preact/hooks";
import { useObservable } from "../../../src/state/cell.js";
import { collectNow } from "../metrics/collector.js";
import { span } from "../state/format.js";
import { reachability } from "../state/reachability.js";
import { Icon } from "./icon.js";

const BACK_MS = 4_000;

export function Banner() {
  const now = useObservable(reachability);
  const isBack = useIsBack(now.state === "up");
  return <div class="banner-place" role="status">{banner()}</div>;

  function banner() {
    if (now.state === "away") {
      return (
        <p class="banner is-away">
          <Icon name="alert" />
          <span>The server does not answer, for <Since at={now.since} />. What is shown here is from before; it is tried again every other second.</span>
          <button type="button" class="link" onClick={() => void collectNow()}>Try now</button>
        </p>
      );
    }
    if (now.state === "notReady") return <p class="banner is-away"><Icon name="alert" /><span>The node is not ready: {now.why}</span></p>;
    return isBack && <p class="banner is-back"><Icon name="check" /><span>The server is back.</span></p>;
  }
}

function Since({ at }: { readonly at: number }) {
  const [, setDrawn] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => setDrawn((now) => now + 1), 1_000);
    return () => clearInterval(timer);
  }, []);
  // A reader is told of the break, not of each second.
  return <span aria-live="off">{span(Date.now() - at)}</span>;
}

function useIsBack(isUp: boolean): boolean {
  const [wasAway, setWasAway] = useState(false);
  useEffect(() => {
    if (!isUp) {
      setWasAway(true);
      return undefined;
    }
    const timer = setTimeout(() => setWasAway(false), BACK_MS);
    return () => clearTimeout(timer);
  }, [isUp]);
  return isUp && wasAway;
}
