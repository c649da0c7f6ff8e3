// Where a vendor's push service reaches a device.

/** What a device has from the push service of its vendor; `vendor` tells which fields it has. */
export type PushToken = ApnsToken | FcmToken | WebPushToken | HuaweiToken;

/** Of a device of Apple's. */
export interface ApnsToken {
  /** Tells the vendors apart. */
  readonly vendor: "apns";
  /** The device token, in hexadecimal. */
  readonly token: string;
}

/** Of an app that uses Firebase. */
export interface FcmToken {
  /** Tells the vendors apart. */
  readonly vendor: "fcm";
  /** The registration token. */
  readonly token: string;
}

/** Of an app that uses Huawei Push Kit. */
export interface HuaweiToken {
  /** Tells the vendors apart. */
  readonly vendor: "huawei";
  /** The push token. */
  readonly token: string;
}

/** Of a browser. */
export interface WebPushToken {
  /** Tells the vendors apart. */
  readonly vendor: "web_push";
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
