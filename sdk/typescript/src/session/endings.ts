// What follows when a session, or an attempt at one, is over: a wait, or the end.
import { TidingsError } from "../errors.js";
import { backoffMs } from "./backoff.js";
import { endingOfError, type Ending } from "./close-codes.js";
import type { Effect, SessionState, Step, Surroundings } from "./states.js";

// A session that lived so long was no failure: the next wait is short again.
const STABLE_MS = 3_000;
// Different tokens that are all refused: the fault is not in one of them.
const REFUSED_TOKENS_MAX = 3;

// Longer timers overflow, and would fire at once.
const WAIT_MS_MAX = 2 ** 31 - 1;

const LET_GO: readonly Effect[] = [
  { do: "drop", code: 1000 },
  { do: "clear_timer", name: "handshake" },
  { do: "clear_timer", name: "beat" },
  { do: "clear_timer", name: "refresh" },
];

export function endSession(state: SessionState, ending: Ending, reason: string, around: Surroundings): Step {
  const { phase, goodbye } = state;
  if (phase.at === "idle" || phase.at === "waiting" || phase.at === "ended") return [state, []];
  if (ending.advice === "told") {
    const told = goodbye === undefined ? { code: reason || "closed_by_server", advice: "stop" as const } : tellingOf(goodbye.code, goodbye.retry);
    return endSession(state, told, goodbye?.message ?? reason, around);
  }
  const said = goodbye?.code === ending.code ? goodbye : undefined;
  const message = said?.message ?? (reason || `the session ended with ${ending.code}`);
  const serversTime = state.reconnectAfterMs ?? said?.retry_after_ms ?? undefined;
  const error = (retry: boolean): TidingsError => new TidingsError(ending.code, message, { retry, retryAfterMs: serversTime });
  switch (ending.advice) {
    case "stop":
      return stopWith(state, error(false));
    case "retry":
      return waitForRetry(state, error(true), serversTime, around);
    case "fresh": {
      const [next, effects] = waitForRetry({ ...state, cursor: undefined }, error(true), serversTime, around);
      return [next, [...effects, { do: "forget" }]];
    }
    case "token": {
      const token = "token" in phase ? phase.token : "";
      const count = (state.refused?.count ?? 0) + 1;
      if (count > REFUSED_TOKENS_MAX) return stopWith(state, error(false));
      return waitForRetry({ ...state, refused: { token, code: ending.code, count } }, error(true), serversTime, around);
    }
  }
}

// A code of the table that came under another number still has the table's advice.
function tellingOf(code: string, retry: boolean): Ending {
  const known = endingOfError(code, retry);
  return known.advice === "told" ? { code, advice: retry ? "retry" : "stop" } : known;
}

/** any => waiting */
export function waitForRetry(state: SessionState, error: TidingsError, serversTime: number | undefined, around: Surroundings): Step {
  const { phase } = state;
  const wasStable = phase.at === "live" && around.now - phase.since >= STABLE_MS;
  const failures = wasStable ? 0 : state.failures + 1;
  const ms = Math.min(WAIT_MS_MAX, serversTime ?? backoffMs(wasStable ? 0 : state.failures, around.random));
  const until = around.now + ms;
  const next: SessionState = {
    ...state,
    // What is left of this attempt (a token that comes late, a close event) belongs to an epoch that is over.
    epoch: state.epoch + 1,
    failures,
    phase: { at: "waiting", until, isServersTime: serversTime !== undefined },
  };
  return [
    next,
    [
      ...LET_GO,
      ...(phase.at === "live" ? [{ do: "down", cause: error } as const] : []),
      { do: "set_timer", name: "retry", ms },
      { do: "status", status: { state: "away", retryAt: until, cause: error } },
    ],
  ];
}

/** any => ended */
function stopWith(state: SessionState, error: TidingsError): Step {
  return [
    { ...state, epoch: state.epoch + 1, phase: { at: "ended", error } },
    [
      ...LET_GO,
      ...(state.phase.at === "live" ? [{ do: "down", cause: error } as const] : []),
      { do: "status", status: { state: "ended", error } },
    ],
  ];
}
