// Where a provider's push service reaches a device.

/** What a device has from the push service of its provider; `provider` tells which fields it has. */
export type PushToken = ApnsToken | FcmToken | WebPushToken | HuaweiToken;

/** Of a device of Apple's. */
export interface ApnsToken {
  /** Tells the providers apart. */
  readonly provider: "apns";
  /** The device token, in hexadecimal. */
  readonly token: string;
}

/** Of an app that uses Firebase. */
export interface FcmToken {
  /** Tells the providers apart. */
  readonly provider: "fcm";
  /** The registration token. */
  readonly token: string;
}

/** Of an app that uses Huawei Push Kit. */
export interface HuaweiToken {
  /** Tells the providers apart. */
  readonly provider: "huawei";
  /** The push token. */
  readonly token: string;
}

/** Of a browser. */
export interface WebPushToken {
  /** Tells the providers apart. */
  readonly provider: "web_push";
  /** Where the browser's push service takes notifications. */
  readonly subscription: WebPushSubscription;
}

/** A browser's subscription, as `PushSubscription.toJSON()` answers it. */
export interface WebPushSubscription {
  /** The address at the push service. */
  readonly endpoint: string;
  /** The server does not look at it: a push service says itself when a subscription has ended. */
  readonly expirationTime?: number | null;
  /** For whom notifications are encrypted, in base64url. */
  readonly keys: {
    /** The browser's public key. */
    readonly p256dh: string;
    /** The secret of the subscription. */
    readonly auth: string;
  };
}
