import { useCallback, useEffect, useRef, useState } from "preact/hooks";
import { AwayError, reason } from "./api.js";
import { reachability } from "./reachability.js";

export interface Asked<T> {
  readonly data: T | undefined;
  /** Why it could not be loaded; not set while the server is away, which the banner tells. */
  readonly failure: string | undefined;
  readonly isLoading: boolean;
  readonly reload: () => void;
}

/** What the server answers; asked again when an input changes, and when the server comes back. The last answer stays meanwhile. */
export function useAsk<T>(load: () => Promise<T>, inputs: readonly unknown[]): Asked<T> {
  const [data, setData] = useState<T>();
  const [failure, setFailure] = useState<string>();
  const [isLoading, setLoading] = useState(true);
  const [round, setRound] = useState(0);
  const isWaiting = useRef(false);
  const reload = useCallback(() => setRound((now) => now + 1), []);

  const known = useRef<readonly unknown[]>(inputs);
  useEffect(() => {
    let isOver = false;
    if (known.current.some((input, index) => !Object.is(input, inputs[index]))) setData(undefined);
    known.current = inputs;
    isWaiting.current = false;
    setLoading(true);
    load().then(
      (answer) => {
        if (isOver) return;
        setData(answer);
        setFailure(undefined);
        setLoading(false);
      },
      (error: unknown) => {
        if (isOver) return;
        isWaiting.current = error instanceof AwayError;
        setFailure(isWaiting.current ? undefined : reason(error));
        setLoading(false);
      },
    );
    return () => void (isOver = true);
  }, [...inputs, round]);

  useEffect(() => reachability.subscribe(() => {
    if (isWaiting.current && reachability.get().state !== "away") reload();
  }), [reload]);

  return { data, failure, isLoading, reload };
}

/** A call that a person starts: whether it runs, and why it failed. */
export function useAction(): {
  readonly isRunning: boolean;
  readonly failure: string | undefined;
  readonly run: (work: () => Promise<unknown>) => Promise<boolean>;
  readonly setFailure: (failure: string | undefined) => void;
} {
  const [isRunning, setRunning] = useState(false);
  const [failure, setFailure] = useState<string>();
  const run = useCallback(async (work: () => Promise<unknown>) => {
    setRunning(true);
    setFailure(undefined);
    try {
      await work();
      return true;
    } catch (error) {
      setFailure(reason(error));
      return false;
    } finally {
      setRunning(false);
    }
  }, []);
  return { isRunning, failure, run, setFailure };
}
