// One session, as a pure function: a state and an event make the next state and what to do. No sockets, no timers, no clock.
//
//   idle ─start→ token ─token→ opening ─opened→ binding ─bound→ live
//     waiting ─retry→ token        any ─closed→ waiting or ended        ended ─start→ token
import { CLIENT_CODES, TidingsError } from "../errors.js";
import type { BoundFrame, ServerFrame } from "../wire/server-frames.js";
import { claimsOf, refreshInMs } from "./claims.js";
import { endingOf, endingOfError } from "./close-codes.js";
import { endSession, waitForRetry } from "./endings.js";
import type { Effect, Identity, SessionEvent, SessionState, Step, Surroundings, TimerName } from "./states.js";

const HANDSHAKE_MS_MAX = 15_000;
const TOKEN_RETRY_MS = 30_000;
/** The `ref` of the machine's own requests; the link counts from 1. */
export const REFRESH_REF = 0;

export function initialState(identity: Identity, cursor: string | undefined): SessionState {
  return {
    identity,
    phase: { at: "idle" },
    epoch: 0,
    failures: 0,
    cursor,
    refused: undefined,
    goodbye: undefined,
    reconnectAfterMs: undefined,
  };
}

export function step(state: SessionState, event: SessionEvent, around: Surroundings): Step {
  if ("epoch" in event && event.epoch !== state.epoch) return [state, []]; // of a connection that is no more
  switch (event.type) {
    case "start":
      return state.phase.at === "idle" || state.phase.at === "waiting" || state.phase.at === "ended"
        ? beginAttempt({ ...state, failures: 0, refused: undefined })
        : [state, []];
    case "wake":
      return state.phase.at === "waiting" && !state.phase.isServersTime ? beginAttempt(state) : [state, []];
    case "token":
      return takeToken(state, event.token, around);
    case "token_failed":
      return failToken(state, event.error, around);
    case "opened":
      return open(state);
    case "heard":
      return [heard(state, around.now), []];
    case "frame":
      return takeFrame(heard(state, around.now), event.frame, around);
    case "garbage":
      return waitForRetry(state, new TidingsError(CLIENT_CODES.protocol, event.why, { retry: true }), undefined, around);
    case "closed":
      return endSession(state, endingOf(event.code), event.reason, around);
    case "timer":
      return ring(state, event.name, around);
    case "stop":
      return stop(state);
  }
}

/** idle, waiting, ended => token */
function beginAttempt(state: SessionState): Step {
  const epoch = state.epoch + 1;
  const next: SessionState = { ...state, epoch, phase: { at: "token" }, goodbye: undefined, reconnectAfterMs: undefined };
  return [
    next,
    [
      { do: "clear_timer", name: "retry" },
      { do: "status", status: { state: "connecting" } },
      { do: "fetch_token", epoch },
    ],
  ];
}

/** token => opening; live => live with a `refresh` on its way; null => ended */
function takeToken(state: SessionState, token: string | null, around: Surroundings): Step {
  const { phase } = state;
  if (phase.at !== "token" && phase.at !== "live") return [state, []];
  if (token === null) {
    const error = new TidingsError(CLIENT_CODES.signedOut, "the token provider answered null: the user is signed out");
    return endSession(state, { code: error.code, advice: "stop" }, error.message, around);
  }
  if (phase.at === "live") {
    return [
      { ...state, phase: { ...phase, refreshing: token } },
      [
        { do: "send", frame: { t: "refresh", ref: REFRESH_REF, token } },
        { do: "set_timer", name: "refresh", ms: TOKEN_RETRY_MS },
      ],
    ];
  }
  if (state.refused?.token === token) {
    // The same bind would be refused again: the client stops until its app has another token.
    const message = "the token provider answered with the token that the server had refused";
    return endSession(state, { code: state.refused.code, advice: "stop" }, message, around);
  }
  return [
    { ...state, phase: { at: "opening", token } },
    [
      { do: "set_timer", name: "handshake", ms: HANDSHAKE_MS_MAX },
      { do: "open", epoch: state.epoch },
    ],
  ];
}

function failToken(state: SessionState, error: TidingsError, around: Surroundings): Step {
  if (state.phase.at === "token") return waitForRetry(state, error, undefined, around);
  if (state.phase.at !== "live") return [state, []];
  return [state, [{ do: "report", error }, { do: "set_timer", name: "refresh", ms: TOKEN_RETRY_MS }]];
}

/** opening => binding */
function open(state: SessionState): Step {
  if (state.phase.at !== "opening") return [state, []];
  const { token } = state.phase;
  const { deviceId, deviceKind, appVersion, push, compact } = state.identity;
  const frame = {
    t: "bind" as const,
    token,
    device_id: deviceId,
    device_kind: deviceKind,
    ...(appVersion !== undefined && { app_version: appVersion }),
    ...(push && { push }),
    ...(compact && { compact }),
    ...(state.cursor !== undefined && { cursor: state.cursor }),
  };
  return [{ ...state, phase: { at: "binding", token } }, [{ do: "send", frame }]];
}

function heard(state: SessionState, now: number): SessionState {
  return state.phase.at === "live" ? { ...state, phase: { ...state.phase, heardAt: now } } : state;
}

function takeFrame(state: SessionState, frame: ServerFrame, around: Surroundings): Step {
  const { phase } = state;
  switch (frame.t) {
    case "bound":
      return phase.at === "binding" ? goLive(state, phase.token, frame, around) : [state, []];
    case "reconnect":
      return [{ ...state, reconnectAfterMs: frame.after_ms }, []];
    case "messages":
      return phase.at === "live" ? [{ ...state, cursor: frame.cursor }, [{ do: "deliver", frame }]] : [state, []];
    case "error":
      // Before `bound` an error is the end; its close frame adds nothing.
      if (phase.at === "binding") {
        return endSession({ ...state, goodbye: frame }, endingOfError(frame.code, frame.retry), frame.message, around);
      }
      if (phase.at !== "live") return [state, []];
      if (frame.ref === REFRESH_REF) return [refreshed(state, false), [{ do: "report", error: refusal(frame) }]];
      return [frame.ref == null ? { ...state, goodbye: frame } : state, [{ do: "deliver", frame }]];
    case "ok":
      if (phase.at === "live" && frame.ref === REFRESH_REF) return takeRefreshed(state, around);
      return phase.at === "live" ? [state, [{ do: "deliver", frame }]] : [state, []];
    default:
      return phase.at === "live" ? [state, [{ do: "deliver", frame }]] : [state, []];
  }
}

function refusal(frame: { code: string; message: string; retry: boolean }): TidingsError {
  return new TidingsError(frame.code, frame.message, { retry: frame.retry });
}

/** binding => live */
function goLive(state: SessionState, token: string, bound: BoundFrame, around: Surroundings): Step {
  const { now } = around;
  const next: SessionState = {
    ...state,
    phase: { at: "live", token, since: now, heardAt: now, bound, refreshing: undefined },
    cursor: bound.cursor,
    refused: undefined,
    goodbye: undefined,
  };
  const effects: Effect[] = [
    { do: "clear_timer", name: "handshake" },
    { do: "set_timer", name: "beat", ms: beatMs(bound) },
    { do: "status", status: { state: "online", session: bound.session } },
    { do: "up", bound, from: state.cursor },
  ];
  const refresh = refreshInMs(claimsOf(token), bound.expires_at, now);
  if (refresh !== undefined) effects.push({ do: "set_timer", name: "refresh", ms: refresh });
  return [next, effects];
}

// Twice in the time that the server allows, so that one late timer does no harm.
function beatMs(bound: BoundFrame): number {
  return Math.max(1_000, bound.heartbeat_ms / 2);
}

function refreshed(state: SessionState, isTaken: boolean): SessionState {
  if (state.phase.at !== "live") return state;
  const token = isTaken ? (state.phase.refreshing ?? state.phase.token) : state.phase.token;
  return { ...state, phase: { ...state.phase, token, refreshing: undefined } };
}

function takeRefreshed(state: SessionState, around: Surroundings): Step {
  const next = refreshed(state, true);
  if (next.phase.at !== "live") return [next, []];
  const claims = claimsOf(next.phase.token);
  const ms = refreshInMs(claims, claims.exp === undefined ? undefined : claims.exp * 1000, around.now);
  return [next, [ms === undefined ? { do: "clear_timer", name: "refresh" } : { do: "set_timer", name: "refresh", ms }]];
}

function ring(state: SessionState, name: TimerName, around: Surroundings): Step {
  const { phase } = state;
  switch (name) {
    case "retry":
      return phase.at === "waiting" ? beginAttempt(state) : [state, []];
    case "handshake":
      return phase.at === "opening" || phase.at === "binding"
        ? endSession(state, { code: CLIENT_CODES.timeout, advice: "retry" }, "the server did not answer the bind in time", around)
        : [state, []];
    case "refresh":
      return phase.at === "live" ? [state, [{ do: "fetch_token", epoch: state.epoch }]] : [state, []];
    case "beat":
      if (phase.at !== "live") return [state, []];
      // A network that has gone tells nobody: after one and a half heartbeats of silence the connection counts as broken.
      if (around.now - phase.heardAt > 1.5 * phase.bound.heartbeat_ms) {
        return endSession(state, endingOf(4007), "the server was silent for too long", around);
      }
      return [
        state,
        [
          { do: "send", frame: { t: "ping" } },
          { do: "set_timer", name: "beat", ms: beatMs(phase.bound) },
        ],
      ];
  }
}

/** any => ended, by the app */
function stop(state: SessionState): Step {
  if (state.phase.at === "ended") return [state, []];
  const error = new TidingsError(CLIENT_CODES.closed, "the app has closed the client");
  const effects: Effect[] = [];
  if (state.phase.at === "live") effects.push({ do: "send", frame: { t: "unbind" } }, { do: "down", cause: error });
  effects.push(
    { do: "drop", code: 1000 },
    ...(["handshake", "beat", "retry", "refresh"] as const).map((name): Effect => ({ do: "clear_timer", name })),
    { do: "status", status: { state: "ended", error } },
  );
  return [{ ...state, epoch: state.epoch + 1, phase: { at: "ended", error } }, effects];
}
