// The parts of the HTTP API's answers that the console shows; docs/openapi.json has them whole.

export interface NodeView {
  readonly name: string;
  readonly boot_id: string;
  readonly address: string;
  readonly attached_at: number;
  readonly lease_left_ms?: number | null;
  readonly sessions: number;
  readonly version?: string | null;
  readonly roles?: string | null;
  readonly functions?: readonly string[];
}

export interface NodesAnswer {
  readonly nodes: readonly NodeView[];
}

export interface UserProfile {
  readonly id: string;
  readonly name?: string | null;
  readonly avatar?: string | null;
  readonly attributes?: Readonly<Record<string, unknown>> | null;
  readonly created_at: number;
  readonly do_not_disturb?: { readonly start: string; readonly end: string; readonly time_zone: string } | null;
  readonly suspension?: { readonly until?: number | null; readonly reason: string; readonly by: string; readonly at: number } | null;
}

export interface UserProfiles extends Paged {
  readonly users: readonly UserProfile[];
}

export interface SessionView {
  readonly session: string;
  readonly node: string;
  readonly device_id: string;
  readonly device_kind: string;
  readonly since: number;
}

export interface PresenceViews {
  readonly user: string;
  readonly stored: readonly SessionView[];
  readonly memory: readonly SessionView[];
  readonly last_seen?: number | null;
}

export interface DeviceDetails {
  readonly device_id: string;
  readonly device_kind: string;
  readonly app_version?: string | null;
  readonly tags: readonly string[];
  readonly online: boolean;
  readonly first_bound: number;
  readonly last_bound: number;
  readonly pending: number;
}

export type EntryKind = "message" | "edit" | "recall" | "member_change" | "conversation_change" | "reactions" | "pins";

export interface Entry {
  readonly conversation: string;
  readonly seq: number;
  readonly kind: EntryKind | (string & {});
  readonly at: number;
  readonly from?: string | null;
  readonly client_msg_id?: string | null;
  readonly type: string;
  readonly body: unknown;
  readonly mentions?: readonly string[];
  readonly silent?: boolean;
  readonly target?: number | null;
  readonly version?: number | null;
  readonly edited_at?: number | null;
  readonly edited_by?: string | null;
  readonly recalled?: { readonly at: number; readonly by?: string | null } | null;
  readonly reactions?: readonly { readonly key: string; readonly count: number; readonly users: readonly string[] }[];
  readonly reply_to?: { readonly seq: number } | null;
  readonly pinned?: { readonly at: number } | null;
  readonly stream?: "open" | "interrupted" | null;
}

export interface ConversationDetails {
  readonly id: string;
  readonly kind: "direct" | "group" | "official";
  readonly name?: string | null;
  readonly attributes?: Readonly<Record<string, unknown>> | null;
  readonly created_at: number;
  readonly member_count: number;
  readonly last_seq: number;
  readonly receipts?: "none" | "counts" | "members";
  readonly history?: "all" | "join" | { readonly last: number };
  readonly mention_all?: "admins" | "members" | "nobody";
  readonly blocks?: "ignore" | "hide";
}

export interface ConversationList extends Paged {
  readonly conversations: readonly ConversationDetails[];
}

export type ReportState = "open" | "in_review" | "resolved" | "dismissed";

export interface Report {
  readonly id: string;
  readonly conversation: string;
  readonly seq: number;
  readonly reporter: string;
  readonly reported?: string | null;
  readonly reason: string;
  readonly text?: string | null;
  readonly at: number;
  readonly state: ReportState;
  readonly by?: string | null;
  readonly note?: string | null;
  readonly changed_at?: number | null;
  readonly message?: Entry | null;
}

export interface ReportPage extends Paged<string> {
  readonly reports: readonly Report[];
}

export interface ReportDetails {
  readonly report: Report;
  readonly context: readonly Entry[];
}

export interface ConversationView {
  readonly id: string;
  readonly kind: "direct" | "group" | "official";
  readonly name?: string | null;
  readonly role: string;
  readonly last_seq: number;
  readonly last_at: number;
  readonly read_seq: number;
  readonly unread: number;
  readonly unread_capped?: boolean;
  readonly mentions: number;
  readonly muted: boolean;
  readonly muted_until?: number | null;
  readonly archived?: boolean;
  readonly hidden?: boolean;
  readonly cleared_seq?: number;
}

export interface Paged<N = string> {
  readonly next?: N | null;
}

export interface ConversationPage extends Paged {
  readonly conversations: readonly ConversationView[];
}

export interface MemberPage extends Paged {
  readonly members: readonly { readonly user: string; readonly role: string; readonly joined_at: number }[];
}

export interface HistoryPage {
  readonly entries: readonly Entry[];
  readonly next?: string | null;
  readonly previous?: string | null;
  readonly last_seq: number;
}

export interface MessageReceipts {
  readonly delivered: number;
  readonly read: number;
  readonly members: number;
  readonly receipts?: readonly { readonly user: string; readonly delivered: boolean; readonly read: boolean }[];
}

export interface BodyVersions {
  readonly versions: readonly { readonly version: number; readonly at: number; readonly by?: string | null; readonly type: string; readonly body: unknown }[];
}

/** What was decided about a person and a message, or what became of it; docs/notifications.md has all. */
export type NotificationOutcome = string;

export interface MessageNotifications {
  readonly sent_at: number;
  readonly outcome: NotificationOutcome;
  readonly summary: string;
  readonly steps: readonly {
    readonly at?: number | null;
    readonly channel?: string | null;
    readonly outcome: NotificationOutcome;
    readonly device?: string | null;
    readonly until?: number | null;
    readonly cause?: string | null;
    readonly rule?: string | null;
  }[];
}

export interface ChannelStats {
  readonly channel: string;
  readonly attempted: number;
  readonly accepted: number;
  readonly acknowledged: number;
  readonly retried: number;
  readonly refused: number;
  readonly token_gone: number;
  readonly expired: number;
  readonly superseded: number;
  readonly median_ms?: number | null;
  readonly p99_ms?: number | null;
}

export interface StoredPolicy {
  readonly version: number;
  readonly updated_at?: number | null;
  readonly updated_by?: string | null;
  readonly removed?: boolean;
  readonly policy: { readonly time_zone?: string | null; readonly rules: readonly PolicyRule[] };
}

export interface PolicyRule {
  readonly id: string;
  readonly for?: { readonly kinds?: readonly string[]; readonly types?: readonly string[] } | null;
  readonly when?: unknown;
  readonly channels?: readonly { readonly channel: string; readonly after_s?: number | null; readonly providers?: readonly string[] | null }[];
}

export interface PushToken {
  readonly device_id: string;
  readonly provider: string;
  readonly registered_at: number;
}

export interface Journey {
  readonly id: string;
  readonly version: number;
  readonly oldest: number;
  readonly updated_at: number;
  readonly updated_by?: string | null;
  readonly spec: JourneySpec;
}

export type JourneyState = "paused" | "live" | "closed";

export interface JourneySpec {
  readonly name?: string | null;
  readonly state?: JourneyState;
  readonly entry: { readonly event?: string | null; readonly popup_event?: { readonly popup: string; readonly type: string } | null; readonly where?: unknown; readonly again?: boolean };
  readonly steps: readonly { readonly id: string; readonly type: string; readonly [field: string]: unknown }[];
}

export interface JourneyCounts {
  readonly steps: readonly { readonly version: number; readonly step: string; readonly reached: number; readonly left: number }[];
}

export interface Segment {
  readonly id: string;
  readonly users: number;
  readonly updated_at: number;
}

export interface BulkSend {
  readonly id: number;
  readonly client_bulk_id?: string | null;
  readonly account: string;
  readonly status: "running" | "done" | "cancelled" | "failed";
  readonly created_at: number;
  readonly ended_at?: number | null;
  readonly examined: number;
  readonly sent: number;
  readonly failed: number;
  readonly last_error?: string | null;
}

export interface BulkSendPage extends Paged<number> {
  readonly bulk_sends: readonly BulkSend[];
}

export interface DeadLetter {
  readonly id: string;
  readonly channel: string;
  readonly users: readonly string[];
  readonly device_id?: string | null;
  readonly outcome: NotificationOutcome;
  /** Of a message. */
  readonly conversation?: string;
  readonly seq?: number;
  /** Of a push that a device had not acknowledged. */
  readonly push?: number;
  readonly failed_at: number;
  readonly attempts: number;
  readonly cause?: string;
  readonly event?: Readonly<Record<string, unknown>>;
}

export interface EventConsumer {
  readonly name: string;
  readonly types: readonly string[];
  /** Absent: its owner reads the events. */
  readonly webhook?: { readonly url: string } | null;
  readonly state: "read" | "running" | "waiting" | "stopped";
  /** In commits. */
  readonly behind: number;
  /** Events that wait for another attempt. */
  readonly aside: number;
  readonly dead_letters: number;
  readonly last_error?: { readonly at: number; readonly detail: string } | null;
}

export interface RefusedOutboxRow {
  readonly id: number;
  readonly operation: string;
  readonly conversation?: string | null;
  readonly code: string;
  readonly detail: string;
  readonly at: number;
}

export interface OutboxSource {
  readonly name: string;
  readonly state: "waiting" | "followed" | "unreachable";
  readonly waiting: number;
  readonly lag_ms: number;
  readonly refused: number;
  readonly refused_rows: readonly RefusedOutboxRow[];
  /** Since the server began to follow it. */
  readonly done: number;
  readonly last_error?: string | null;
}

export interface DeadLetterPage extends Paged {
  readonly dead_letters: readonly DeadLetter[];
}

export type PopupState = "draft" | "scheduled" | "live" | "paused" | "ended";

export interface PopupButton {
  readonly id: string;
  readonly label: string;
  readonly action: { readonly type: "dismiss" } | { readonly type: "open"; readonly url: string } | { readonly type: "app"; readonly name: string };
}

export interface PopupContent {
  readonly title?: string | null;
  readonly text?: string | null;
  readonly image?: string | null;
  readonly buttons?: readonly PopupButton[];
  readonly data?: unknown;
}

export interface PopupVariant {
  readonly id: string;
  readonly weight?: number;
  readonly content: PopupContent;
}

export interface PopupCaps {
  readonly per_session?: number | null;
  readonly per_day?: number | null;
  readonly total?: number | null;
  readonly gap_s?: number | null;
}

/** What a popup is for. */
export interface PopupConversion {
  readonly event: string;
  readonly where?: unknown;
  readonly within: string;
  readonly value?: string | null;
}

export interface PopupSpec {
  readonly name?: string | null;
  readonly state?: PopupState;
  readonly placements: readonly string[];
  readonly priority?: number;
  readonly starts_at?: number | null;
  readonly ends_at?: number | null;
  readonly time_zone?: string | null;
  readonly windows?: readonly unknown[];
  readonly audience?: unknown;
  readonly trigger?: unknown;
  readonly caps?: PopupCaps;
  readonly variants: readonly PopupVariant[];
  readonly control_percent?: number;
  readonly conversion?: PopupConversion | null;
  readonly strict?: boolean;
  readonly test_users?: readonly string[];
}

export interface Popup {
  readonly id: string;
  readonly version: number;
  readonly updated_at: number;
  readonly updated_by?: string | null;
  readonly now: PopupState;
  readonly spec: PopupSpec;
}

export interface PopupPage extends Paged {
  readonly popups: readonly Popup[];
}

export interface PopupHour {
  readonly hour: number;
  readonly variant: string;
  readonly shown: number;
  readonly control: number;
  readonly impressions: number;
  readonly clicks: number;
  readonly buttons: number;
  readonly dismissals: number;
  readonly conversions: number;
}

export interface LiftGroup {
  readonly group: "shown" | "control" | "holdout";
  readonly variant?: string | null;
  readonly people: number;
  readonly open: number;
  readonly converted: number;
  readonly conversions: number;
  readonly value: number;
  readonly value_per_person?: number | null;
}

export interface PopupLiftComparison {
  readonly variant?: string | null;
  readonly against: LiftGroup["group"];
  readonly against_variant?: string | null;
  readonly lift?: number | null;
  readonly low?: number | null;
  readonly high?: number | null;
  readonly is_found: boolean;
}

export interface PopupLift {
  readonly conversion: PopupConversion;
  readonly groups: readonly LiftGroup[];
  readonly lifts: readonly PopupLiftComparison[];
}

export interface Explanation {
  readonly at: number;
  readonly chosen?: string | null;
  readonly next_at?: number | null;
  readonly popups: readonly {
    readonly popup: string;
    readonly version: number;
    readonly outcome: "chosen" | "outranked" | "not_yet" | "no" | "control";
    readonly field?: string | null;
    readonly detail?: string | null;
    readonly not_before?: number | null;
    readonly variant?: string | null;
  }[];
}

export interface PushStatus {
  readonly push: number;
  readonly state: "scheduled" | "running" | "completed" | "expired" | "cancelled";
  readonly type: string;
  readonly priority: string;
  readonly collapse_key?: string | null;
  readonly accepted_at: number;
  readonly send_at?: number | null;
  readonly started_at?: number | null;
  readonly expires_at: number;
  readonly ended_at?: number | null;
  readonly counts: {
    readonly targets: number;
    readonly pending: number;
    readonly offline: number;
    readonly delivered: number;
    readonly acknowledged: number;
    readonly expired: number;
    readonly collapsed: number;
    readonly cancelled: number;
  };
  readonly fallback?: { readonly after_s: number; readonly sent: Readonly<Record<string, number>> } | null;
  readonly refused_full: number;
  readonly unknown: number;
}

export interface PushPage extends Paged<number> {
  readonly pushes: readonly (Pick<PushStatus, "push" | "state" | "type" | "accepted_at" | "send_at" | "ended_at"> & { readonly client_push_id?: string | null; readonly targets: number })[];
}

export interface PushDevicePage extends Paged<number> {
  readonly devices: readonly { readonly user: string; readonly device_id: string; readonly state: string; readonly delivered_at?: number | null; readonly ended_at?: number | null; readonly fallback?: string | null }[];
}

export interface PresenceComparison {
  readonly registered: number;
  readonly held: number;
  readonly ghosts: number;
  readonly missing: number;
  readonly wrong_node: number;
  readonly repaired: number;
  readonly differences: readonly { readonly kind: string; readonly user: string; readonly device_id: string; readonly session: string; readonly node: string }[];
}

export interface SettingView {
  readonly name: string;
  readonly value?: string;
  readonly default?: string;
  readonly source: "default" | "file" | "environment" | "flag" | "development";
  readonly secret: boolean;
  readonly adjusted: boolean;
  readonly description: string;
}

export const KEY_SCOPES = ["send", "read", "users", "push", "popups", "moderation", "admin", "erase"] as const;
export type KeyScope = (typeof KEY_SCOPES)[number];

export interface ApiKey {
  readonly id: string;
  readonly name: string;
  readonly scopes: readonly KeyScope[];
  readonly created_at?: number;
  readonly created_by?: string;
  readonly expires_at?: number;
  readonly former_secret_until?: number;
  readonly last_used_at?: number;
}

export interface IssuedApiKey {
  readonly secret: string;
  readonly key: ApiKey;
}

export interface AuditEntry {
  readonly number: number;
  readonly at: number;
  readonly key: string;
  readonly key_name: string;
  readonly author?: string;
  readonly operation: string;
  readonly target?: string;
  readonly detail?: string;
}
