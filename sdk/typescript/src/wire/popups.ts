// Popups and pushes on the wire.
import type { Json, JsonObject } from "./json.js";

/** Something that happened in the app, which a popup may wait for. */
export interface AppEvent {
  /** The app's name of it. */
  readonly name: string;
  /** What the popup's conditions may look at. */
  readonly properties?: JsonObject;
}

/** Which popup suits this user now? */
export interface PopupQuestion {
  /** Where in the app a popup could be shown. */
  readonly placement: string;
  /** The app's session, for caps that count by session. Absent: this client, for as long as it lives. */
  readonly session?: string;
  /** What the app knows of the user now: conditions may look at it. */
  readonly attributes?: JsonObject;
  /** What has just happened. */
  readonly event?: AppEvent;
}

/** What a button does: it closes the popup, opens an address, or is the app's own. */
export type PopupAction = DismissAction | OpenAction | AppAction;

/** Closes the popup. */
export interface DismissAction {
  /** Tells the actions apart. */
  readonly type: "dismiss";
}

/** Opens an address. */
export interface OpenAction {
  /** Tells the actions apart. */
  readonly type: "open";
  /** The address, as the popup's author wrote it: open it as you open any link that others wrote. */
  readonly url: string;
}

/** Does what the app has under this name. */
export interface AppAction {
  /** Tells the actions apart. */
  readonly type: "app";
  /** The app's own name of what to do. */
  readonly name: string;
}

/** A button of a popup. */
export interface PopupButton {
  /** Names the button in events. */
  readonly id: string;
  /** What stands on it. */
  readonly label: string;
  /** What the app does when it is pressed. */
  readonly action: PopupAction;
}

/** What a popup shows: plain text, never markup. */
export interface PopupContent {
  /** The headline. */
  readonly title?: string;
  /** What it says. */
  readonly text?: string;
  /** The address of a picture. */
  readonly image?: string;
  /** In the order in which they stand. */
  readonly buttons?: readonly PopupButton[];
  /** Anything else, for the app. */
  readonly data?: Json;
}

/** The popup to show. Events of this showing name its `decision`. */
export interface PopupDecision {
  /** Names this showing. */
  readonly decision: string;
  /** The popup's id. */
  readonly popup: string;
  /** Which of the popup's variants it is. */
  readonly variant: string;
  /** What to show. */
  readonly content: PopupContent;
  /** It is shown to this user for a test, and not counted. */
  readonly test?: boolean;
}

/** Something that happened to a popup that was shown, or an event of the app's own. */
export interface PopupEvent {
  /** The app's own, once for each event: a second one with the same id is not counted. */
  readonly id: string;
  /** The showing that it happened to; events of the type `custom` have none. */
  readonly decision?: string;
  /** What happened. `snooze`: the user does not want to see the popup for a while. `custom`: an event of the app's own. */
  readonly type: "impression" | "click" | "button" | "dismiss" | "conversion" | "snooze" | "custom";
  /** The button that was pressed. */
  readonly button?: string;
  /** What a conversion is worth, in the app's own unit. */
  readonly value?: number;
  /** When, in milliseconds since 1970 UTC. */
  readonly at?: number;
  /** The app's word for an event of the type `custom`. */
  readonly name?: string;
  /** Of an event of the type `custom`. */
  readonly properties?: Readonly<Record<string, string | number | boolean | readonly string[]>>;
  /** Of a `snooze`: until when, in milliseconds since 1970 UTC. */
  readonly until?: number;
  /** Of a `snooze`, instead of `until`: for how many seconds. */
  readonly for_s?: number;
}

/** Data from the business to this device. */
export interface Push {
  /** Names the push: it may come more than once. */
  readonly push: number;
  /** When it is of no use any more, in milliseconds since 1970 UTC. */
  readonly expires_at: number;
  /** A later push with the same key takes its place. */
  readonly collapse_key?: string;
  /** It is urgent. */
  readonly high?: boolean;
  /** The business's kind of content. */
  readonly type: string;
  /** The content. */
  readonly body: Json;
}
