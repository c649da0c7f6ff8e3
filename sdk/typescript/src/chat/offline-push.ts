// How messages reach this device while its user has no session: by the push service of its provider.
import { base64urlBytes } from "../base64url.js";
import { CLIENT_CODES, TidingsError } from "../errors.js";
import { serviceWorkers } from "../platform.js";
import type { OfflinePush, WebPushOptions } from "../tidings.js";
import type { PushToken, WebPushSubscription } from "../wire/push-tokens.js";
import { path, type HttpListener } from "./http.js";

// A point of P-256, uncompressed.
const PUBLIC_KEY_BYTES = 65;

/** What is used of a browser's `ServiceWorkerRegistration`, said without its types: a Node project may have none of them. */
export interface ServiceWorkerRegistrationLike {
  /** Absent in a browser without push. */
  readonly pushManager?: PushManagerLike;
}

/** What is used of a browser's `PushManager`. */
export interface PushManagerLike {
  /** The subscription of the service worker, if it has one. */
  getSubscription(): Promise<PushSubscriptionLike | null>;
  /** Asks the user for the permission, and the push service for a subscription. */
  subscribe(options: PushOptionsLike): Promise<PushSubscriptionLike>;
  /** `granted`, `denied` or `prompt`. */
  permissionState(options: PushOptionsLike): Promise<string>;
}

/** How a browser is asked to subscribe. */
export interface PushOptionsLike {
  /** Each push is shown: browsers allow no other. */
  readonly userVisibleOnly: true;
  /** The key of the server that may use the subscription. */
  readonly applicationServerKey: ArrayBuffer;
}

/** What is used of a browser's `PushSubscription`. */
export interface PushSubscriptionLike {
  /** How it was made. */
  readonly options?: {
    /** The key of the server that may use it. */
    readonly applicationServerKey?: ArrayBuffer | null;
  };
  /** The subscription, as it is registered. */
  toJSON(): {
    /** The address at the push service. */
    readonly endpoint?: string;
    /** `p256dh` and `auth`, in base64url. */
    readonly keys?: { readonly [name: string]: string };
  };
  /** Ends it. */
  unsubscribe(): Promise<boolean>;
}

/** What is used of `navigator.serviceWorker`. */
export interface ServiceWorkers {
  /** Never resolves in a page without a service worker. */
  readonly ready: Promise<ServiceWorkerRegistrationLike>;
  getRegistration(): Promise<ServiceWorkerRegistrationLike | undefined>;
}

export class OfflinePushDesk implements OfflinePush {
  readonly deviceId: string;
  readonly #http: HttpListener;
  /** The service worker that subscribed in this page's life. */
  #registration: ServiceWorkerRegistrationLike | undefined;

  constructor(deviceId: string, http: HttpListener) {
    this.deviceId = deviceId;
    this.#http = http;
  }

  async register(token: PushToken): Promise<void> {
    await this.#http.call("PUT", this.#path, token);
  }

  async subscribe({ publicKey, registration }: WebPushOptions): Promise<void> {
    const key = publicKeyBytes(publicKey);
    const subscription = await inBrowser(async () => {
      this.#registration = registration ?? (await serviceWorkers()?.ready);
      const manager = this.#registration?.pushManager;
      if (!manager) throw new TidingsError(CLIENT_CODES.notificationsUnsupported, "there is no PushManager here");
      const current = await manager.getSubscription();
      if (current && isOfKey(current, key)) return wireForm(current);
      await current?.unsubscribe(); // a browser refuses to subscribe with a second key
      return wireForm(await newSubscription(manager, { userVisibleOnly: true, applicationServerKey: key.buffer }));
    });
    await this.register({ provider: "web_push", subscription });
  }

  async forget({ registration }: { readonly registration?: ServiceWorkerRegistrationLike } = {}): Promise<void> {
    // Neither waits for the other: one of them is enough for the next user of this device to be shown nothing.
    const outcomes = await Promise.allSettled([this.#http.call("DELETE", this.#path), inBrowser(() => this.#unsubscribe(registration))]);
    for (const outcome of outcomes) if (outcome.status === "rejected") throw outcome.reason;
  }

  async #unsubscribe(registration: ServiceWorkerRegistrationLike | undefined): Promise<void> {
    const found = registration ?? this.#registration ?? (await serviceWorkers()?.getRegistration());
    await (await found?.pushManager?.getSubscription())?.unsubscribe();
  }

  get #path(): string {
    return path`/v1/users/me/devices/${this.deviceId}/push_token`;
  }
}

function publicKeyBytes(text: string): Uint8Array<ArrayBuffer> {
  try {
    const bytes = base64urlBytes(text);
    if (bytes.length === PUBLIC_KEY_BYTES) return bytes;
  } catch {
    // Other characters than base64url has.
  }
  throw new TypeError("`publicKey` is no public key in base64url: give it the server's setting `web_push.public_key`");
}

function isOfKey({ options }: PushSubscriptionLike, key: Uint8Array): boolean {
  const made = new Uint8Array(options?.applicationServerKey ?? new ArrayBuffer(0));
  return made.length === key.length && made.every((byte, index) => byte === key[index]);
}

async function newSubscription(manager: PushManagerLike, options: PushOptionsLike): Promise<PushSubscriptionLike> {
  try {
    return await manager.subscribe(options);
  } catch (cause) {
    // Chromium tells a denied permission as `NotAllowedError`, but in a private window as `AbortError`.
    const state = await manager.permissionState(options).catch(() => undefined);
    throw state === "denied" ? deniedBecause(cause) : cause;
  }
}

function deniedBecause(cause: unknown): TidingsError {
  return new TidingsError(CLIENT_CODES.notificationsDenied, `notifications are not allowed: ${String(cause)}`, { cause });
}

function wireForm(subscription: PushSubscriptionLike): WebPushSubscription {
  const { endpoint, keys: { p256dh, auth } = {} } = subscription.toJSON();
  if (endpoint === undefined || p256dh === undefined || auth === undefined) {
    throw new TidingsError(CLIENT_CODES.notificationsFailed, "the browser's subscription has no address or no keys");
  }
  return { endpoint, keys: { p256dh, auth } };
}

/** Does what only a browser can, and tells its refusals by the codes of this client. */
async function inBrowser<Result>(act: () => Promise<Result>): Promise<Result> {
  try {
    return await act();
  } catch (cause) {
    if (cause instanceof TidingsError) throw cause;
    const { name } = (cause ?? {}) as { readonly name?: unknown };
    if (name === "NotAllowedError") throw deniedBecause(cause);
    // A push service that cannot be reached is told as `AbortError` (Push API, 8.1).
    throw new TidingsError(CLIENT_CODES.notificationsFailed, `the browser's push failed: ${String(cause)}`, { retry: name === "AbortError", cause });
  }
}
