/** Time and chance, so that tests bring their own. */
export interface Clock {
  /** Milliseconds since 1970 UTC. */
  now(): number;
  /** In [0, 1). */
  random(): number;
  /** Calls `then` once after a time; the returned function prevents that. */
  setTimer(ms: number, then: () => void): () => void;
}

export const systemClock: Clock = {
  now: () => Date.now(),
  random: () => Math.random(),
  setTimer: (ms, then) => {
    const timer = setTimeout(then, ms);
    return () => clearTimeout(timer);
  },
};

/** A promise for after a time. */
export function pause(clock: Clock, ms: number): Promise<void> {
  return new Promise((resolve) => clock.setTimer(ms, resolve));
}
