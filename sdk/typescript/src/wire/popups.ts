// Popups and pushes on the wire.
import type { Json, JsonObject } from "./json.js";

export interface AppEvent {
  readonly name: string;
  readonly properties?: JsonObject;
}

/** Which popup suits this user now? */
export interface PopupQuestion {
  readonly placement: string;
  readonly session?: string;
  readonly attributes?: JsonObject;
  readonly event?: AppEvent;
}

export type PopupAction =
  | { readonly type: "dismiss" }
  | { readonly type: "open"; readonly url: string }
  | { readonly type: "app"; readonly name: string };

export interface PopupButton {
  readonly id: string;
  readonly label: string;
  readonly action: PopupAction;
}

export interface PopupContent {
  readonly title?: string;
  readonly text?: string;
  readonly image?: string;
  readonly buttons?: readonly PopupButton[];
  readonly data?: Json;
}

/** The popup to show. Events of this showing name its `decision`. */
export interface PopupDecision {
  readonly decision: string;
  readonly popup: string;
  readonly variant: string;
  readonly content: PopupContent;
  readonly test?: boolean;
}

/** Something that happened to a popup that was shown. */
export interface PopupEvent {
  /** The app's own, once for each event: a second one with the same id is not counted. */
  readonly id: string;
  readonly decision: string;
  readonly type: "impression" | "click" | "button" | "dismiss" | "conversion";
  readonly button?: string;
  readonly value?: number;
  readonly at?: number;
}

/** Data from the business to this device. */
export interface Push {
  /** Names the push: it may come more than once. */
  readonly push: number;
  readonly expires_at: number;
  readonly collapse_key?: string;
  readonly high?: boolean;
  readonly type: string;
  readonly body: Json;
}
