//! Every size and count that a caller can run into, in one place. A refusal names the limit that was exceeded.

/// A user, conversation, device or client message id, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// A conversation's id, in bytes: that of a direct one joins the ids of two users.
pub const CONVERSATION_ID_BYTES_MAX: usize = 2 * ID_BYTES_MAX + 1;
/// A provider's token of a device, or the address of a browser's subscription, in bytes.
pub const PUSH_TOKEN_BYTES_MAX: usize = 1_536;
/// Devices of one user that providers reach.
pub const PUSH_TOKENS_PER_USER_MAX: usize = 20;
/// A message body as JSON text, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
/// How deep arrays and objects may be nested in any JSON that is stored. Clients' parsers give up at 100 levels (Ruby), 128 (Rust) or
/// 512 (PHP), and stored JSON reaches them inside a few levels of our own.
pub const JSON_DEPTH_MAX: usize = 64;
/// Why a user was suspended, say, in bytes.
pub const REASON_BYTES_MAX: usize = 512;
/// Users whom one user blocks.
pub const BLOCKS_MAX: u32 = 10_000;
/// Users in one page of those whom a user blocks.
pub const BLOCKS_PAGE_MAX: usize = 1_000;
/// What a reporter says of a message, in bytes.
pub const REPORT_TEXT_BYTES_MAX: usize = 1024;
/// Reports of one user that moderators are not done with.
pub const REPORTS_OPEN_MAX: u32 = 100;
/// Reports in one page.
pub const REPORTS_PAGE_MAX: usize = 200;
/// The body of a transient signal as JSON text, in bytes.
pub const SIGNAL_BODY_BYTES_MAX: usize = 1024;
/// A message `type`, in bytes.
pub const TYPE_BYTES_MAX: usize = 32;
/// A display name or avatar address, in bytes.
pub const NAME_BYTES_MAX: usize = 512;
/// A user's or conversation's free `attributes` as JSON text, in bytes.
pub const ATTRIBUTES_BYTES_MAX: usize = 2 * 1024;
/// Users mentioned in one message.
pub const MENTIONS_MAX: usize = 100;
/// Users in one upsert.
pub const USERS_BATCH_MAX: usize = 10_000;
/// Members added or removed in one call.
pub const MEMBERS_BATCH_MAX: usize = 10_000;
/// Messages in one batch send.
pub const SEND_BATCH_MAX: usize = 500;
/// Members of a group; followers of an official account are bounded by the store alone.
pub const GROUP_MEMBERS_MAX: u64 = 100_000;
/// Slow mode of a group: the longest time between two messages of a member, in seconds.
pub const SLOW_MODE_S_MAX: u32 = 24 * 60 * 60;
/// Invites of a conversation that hold.
pub const INVITES_MAX: usize = 8;
/// Requests to join that wait, in a conversation and of a user.
pub const JOIN_REQUESTS_MAX: (u64, u64) = (1_000, 20);
/// Agents of an official account.
pub const AGENTS_MAX: u32 = 500;
/// Entries in one page of history.
pub const HISTORY_PAGE_MAX: usize = 500;
/// The bodies in one page of history, in bytes; the entry that crosses it still belongs to the page, and
/// `next` or `previous` leads on from there.
pub const HISTORY_PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Events in one page of the feed.
pub const EVENTS_PAGE_MAX: usize = 1_000;
/// The bodies in one page of the feed, in bytes; the event that crosses it still belongs to the page.
pub const EVENTS_PAGE_BYTES_MAX: usize = 1024 * 1024;
/// How long a request for events may wait for one, in seconds.
pub const EVENTS_WAIT_MAX_S: u64 = 30;
/// Consumers of the feed.
pub const EVENT_CONSUMERS_MAX: usize = 16;
/// The name of a consumer, in bytes.
pub const EVENT_CONSUMER_NAME_BYTES_MAX: usize = 64;
/// Words of a consumer for types of events.
pub const EVENT_CONSUMER_TYPES_MAX: usize = 32;
/// The address of a consumer's webhook, in bytes.
pub const WEBHOOK_URL_BYTES_MAX: usize = 1_024;
/// Events of a consumer that wait for another attempt; with so many no more are read.
pub const EVENTS_ASIDE_MAX: usize = 100_000;
/// Dead letters of a consumer; of more, the oldest go.
pub const DEAD_EVENTS_MAX: usize = 10_000;
/// Dead letters in one answer when the caller gives no limit.
pub const DEAD_EVENTS_PAGE_DEFAULT: usize = 100;
/// Dead letters in one answer.
pub const DEAD_EVENTS_PAGE_MAX: usize = 500;
/// Users or conversations that one page of all of them looks at: those that a filter leaves out count.
pub const LIST_EXAMINED_MAX: usize = 1_000;
/// Conversations whose details one request asks for.
pub const CONVERSATIONS_QUERY_MAX: usize = 200;
/// Conversations in one page of the list.
pub const CONVERSATIONS_PAGE_MAX: usize = 200;
/// Conversations of one user that a list, a session, a sync or a resume looks through. For a user with more, no resume is
/// called complete.
pub const CONVERSATIONS_PER_USER_MAX: usize = 100_000;
/// The newest entries that a resume or sync hands out. For older missed entries the answer names the ranges to fetch.
pub const INBOX_ENTRIES_MAX: usize = 800;
/// The bodies of those entries together, in bytes; the entry that crosses the limit is still handed out. The entries
/// come in one frame, which must leave a session's buffer room for the messages that arrive live meanwhile.
pub const INBOX_BYTES_MAX: usize = 1024 * 1024;
/// Unread messages are counted exactly up to here; above, the answer says "at least".
pub const UNREAD_COUNT_MAX: u64 = 1_000;
/// Entries after a read mark that are examined to count the unread among them. Own and silent messages and notices are
/// not unread but are examined too: without this limit, the list of a user who never marks as read would cost ever more.
pub const UNREAD_ENTRIES_MAX: usize = 5_000;
/// Users in one query of online states.
pub const PRESENCE_BATCH_MAX: usize = 1_000;
/// Users whose presence one session watches.
pub const WATCHED_USERS_MAX: usize = 1_000;
/// Members of a group above which its members may not watch each other's presence.
pub const WATCHED_GROUP_MEMBERS_MAX: u64 = 500;
/// The body of an HTTP request that carries a batch (of messages, members, users, push targets or popup events), in bytes.
pub const HTTP_BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
/// A line of an import, in bytes: a message with its body and the reactions to it.
pub const IMPORT_LINE_BYTES_MAX: usize = 1024 * 1024;
/// The body of any other request, in bytes.
pub const OPERATION_BODY_BYTES_MAX: usize = 1024 * 1024;
/// The body of a single send, in bytes: the longest message with an envelope that mentions a hundred members.
pub const SEND_BODY_BYTES_MAX: usize = 128 * 1024;
/// A frame from a client, in bytes: a full body with its escapes and the other fields.
pub const FRAME_BYTES_MAX: usize = 192 * 1024;
/// Pushes acknowledged in one frame.
pub const ACKS_PER_FRAME_MAX: usize = 1_000;
/// A push's body, in bytes.
pub const PUSH_BODY_BYTES_MAX: usize = 4 * 1024;
/// Users and devices named in one push.
pub const PUSH_TARGETS_MAX: usize = 10_000;
/// Tags of one device.
pub const TAGS_PER_DEVICE_MAX: usize = 32;
/// The time to live of a push that names none, in seconds: a day.
pub const PUSH_TTL_S_DEFAULT: u64 = 24 * 60 * 60;
/// The longest time to live of a push, in seconds: 28 days.
pub const PUSH_TTL_S_MAX: u64 = 28 * PUSH_TTL_S_DEFAULT;
/// How far ahead a push may be scheduled, in seconds: 90 days.
pub const PUSH_AHEAD_S_MAX: u64 = 90 * 24 * 60 * 60;
/// A title that a device shows of a push, in bytes: as long as those that are shown of messages.
pub const PUSH_FALLBACK_TITLE_BYTES_MAX: usize = 200;
/// A text that a device shows of a push, in bytes: providers take 4,096 bytes, with title, text and names escaped.
pub const PUSH_FALLBACK_BODY_BYTES_MAX: usize = 1_300;
/// What devices show of one push, in all languages, as JSON text in bytes.
pub const PUSH_FALLBACK_BYTES_MAX: usize = 16 * 1024;
/// Tags, and kinds, that one push may name.
pub const PUSH_TAGS_MAX: usize = 100;
/// Pushes in one page of their list.
pub const PUSHES_PAGE_MAX: usize = 100;
/// Devices in one page of a push's states.
pub const PUSH_DEVICES_PAGE_MAX: usize = 500;
/// Devices that are kept for one user. Above: the device that bound longest ago is removed.
pub const DEVICES_PER_USER_MAX: usize = 100;
/// Popups, ended ones included.
pub const POPUPS_MAX: usize = 20_000;
/// A popup's configuration as JSON text, in bytes.
pub const POPUP_BYTES_MAX: usize = 64 * 1024;
/// What the conditions of one question may cost in nanoseconds, as estimated when a popup is saved: those of all popups of a
/// placement that attributes alone do not rule out. Chosen so that a question of the most expensive kind keeps a core busy for
/// no longer than some dozens of usual ones.
pub const POPUP_QUESTION_COST_NS_MAX: u64 = 2_000_000;
/// Versions of a popup that are kept; the oldest are removed.
pub const POPUP_VERSIONS_MAX: usize = 100;
/// Placements of one popup.
pub const POPUP_PLACEMENTS_MAX: usize = 32;
/// Time windows of one popup.
pub const POPUP_WINDOWS_MAX: usize = 32;
/// Variants of one popup.
pub const POPUP_VARIANTS_MAX: usize = 20;
/// Buttons of one variant.
pub const POPUP_BUTTONS_MAX: usize = 5;
/// Test users of one popup.
pub const POPUP_TEST_USERS_MAX: usize = 100;
/// The sum of the weights of a popup's variants.
pub const POPUP_WEIGHTS_MAX: u32 = 1_000_000;
/// The longest gap between two exposures, in seconds: ten years.
pub const POPUP_GAP_S_MAX: u64 = 10 * 366 * 24 * 60 * 60;
/// How long after a user's assignment a conversion may count.
pub const POPUP_CONVERSION_WITHIN_S_MAX: u64 = 90 * 24 * 60 * 60;
/// Names of custom events of one user that are remembered; the one that happened longest ago goes.
pub const CUSTOM_EVENT_NAMES_MAX: usize = 64;
/// The properties of a custom event as JSON text, in bytes.
pub const CUSTOM_EVENT_PROPERTIES_BYTES_MAX: usize = 2 * 1024;
/// Journeys.
pub const JOURNEYS_MAX: usize = 100;
/// Steps of one version of a journey.
pub const JOURNEY_STEPS_MAX: usize = 50;
/// Events that one branch of a journey waits for.
pub const JOURNEY_BRANCHES_MAX: usize = 20;
/// Versions of a journey that are kept; users who stand in an older one leave.
pub const JOURNEY_VERSIONS_MAX: usize = 20;
/// Placements with settings of their own.
pub const PLACEMENT_SETTINGS_MAX: usize = 1_000;
/// Keys of app servers that are stored, beside those of the settings.
pub const API_KEYS_MAX: usize = 1_000;
/// The name of an API key, in bytes.
pub const API_KEY_NAME_BYTES_MAX: usize = 128;
/// How long the former secret of a rotated API key may stay valid, in seconds: 30 days.
pub const API_KEY_OVERLAP_S_MAX: u64 = 30 * 24 * 60 * 60;
/// Entries of the audit log that are kept; the oldest are removed.
pub const AUDIT_ENTRIES_MAX: u64 = 10_000;
/// How long entries of the audit log are kept, in days.
pub const AUDIT_DAYS: u64 = 400;
/// The notification policy as JSON text, in bytes.
pub const NOTIFICATION_POLICY_BYTES_MAX: usize = 64 * 1024;
/// Versions of the notification policy that are kept; the oldest are removed.
pub const NOTIFICATION_POLICY_VERSIONS_MAX: usize = 50;
/// Rules of the notification policy.
pub const NOTIFICATION_RULES_MAX: usize = 100;
/// Channels of one rule.
pub const NOTIFICATION_CHANNELS_MAX: usize = 10;
/// Types of messages that one rule names.
pub const NOTIFICATION_TYPES_MAX: usize = 100;
/// Languages in which one channel has templates.
pub const NOTIFICATION_LANGUAGES_MAX: usize = 50;
/// A title or a text of a template, in bytes.
pub const NOTIFICATION_TEMPLATE_BYTES_MAX: usize = 1_024;
/// The address of a template's picture, in bytes: providers take 4,096 bytes with title, text and names.
pub const NOTIFICATION_IMAGE_BYTES_MAX: usize = 256;
/// The longest delay and the longest expiry of a channel, in seconds: 30 days.
pub const NOTIFICATION_DELAY_S_MAX: u64 = 30 * 24 * 60 * 60;
/// How deep rules may be nested.
pub const RULE_DEPTH_MAX: usize = 16;
/// Conditions in one rule.
pub const RULE_CONDITIONS_MAX: usize = 500;
/// The name of an attribute, a salt or a segment in a rule, in bytes.
pub const RULE_NAME_BYTES_MAX: usize = 64;
/// Values that one condition compares with.
pub const RULE_VALUES_MAX: usize = 10_000;
/// Segments of users.
pub const SEGMENTS_MAX: usize = 1_000;
/// Users of one segment.
pub const SEGMENT_USERS_MAX: usize = 1_000_000;
/// A segment's upload, in bytes: a million of the longest ids fit.
pub const SEGMENT_BYTES_MAX: usize = 80 * 1024 * 1024;
/// Attributes in one decide request.
pub const DECIDE_ATTRIBUTES_MAX: usize = 200;
/// A string among those attributes, in bytes.
pub const ATTRIBUTE_VALUE_BYTES_MAX: usize = 1_024;
/// Strings in one attribute that is a list.
pub const ATTRIBUTE_LIST_MAX: usize = 1_000;
/// Events of popups in one call.
pub const POPUP_EVENTS_BATCH_MAX: usize = 1_000;
/// Popups in one page of the list.
pub const POPUPS_PAGE_MAX: usize = 500;
/// Hours in one answer of popup counts.
pub const POPUP_HOURS_MAX: usize = 10_000;
/// Users that a bulk send names.
pub const BULK_USERS_MAX: usize = 10_000;
/// The most days for which a conversation keeps its messages by a setting of its own.
pub const KEEP_DAYS_MAX: u32 = 36_500;
/// The longest time after which a message disappears, in seconds.
pub const EXPIRES_AFTER_S_MAX: u32 = 365 * 24 * 60 * 60;
/// The longest time from when a message was read until it disappears, in seconds.
pub const EXPIRES_AFTER_READ_S_MAX: u32 = 7 * 24 * 60 * 60;
/// After how many seconds a message disappears that is not read, unless its sender says otherwise.
pub const EXPIRES_UNREAD_S: u32 = 30 * 24 * 60 * 60;
/// Messages that disappear once they are read, and wait for that, of all senders together.
pub const EXPIRES_WATCHED_MAX: usize = 100_000;
/// Messages for a later time that a sender has.
pub const SCHEDULED_OF_SENDER_MAX: usize = 100;
/// Messages for a later time of all senders together.
pub const SCHEDULED_MAX: usize = 100_000;
/// Messages for a later time in one page.
pub const SCHEDULED_PAGE_MAX: usize = 100;
/// Bulk sends in one page.
pub const BULK_SENDS_PAGE_MAX: usize = 100;
/// Edits of one message.
pub const EDITS_PER_MESSAGE_MAX: usize = 100;
/// Bytes of a reaction. The longest emoji that Unicode recommends (a kiss of two people with skin tones) has 35.
pub const REACTION_BYTES_MAX: usize = 64;
/// Different reactions to one message.
pub const REACTIONS_PER_MESSAGE_MAX: usize = 20;
/// The reactions that may be given in an official account which has chosen no others.
pub const OFFICIAL_REACTIONS: [&str; 6] = ["👍", "❤️", "😂", "😮", "😢", "🙏"];
/// Pinned messages of one conversation.
pub const PINS_PER_CONVERSATION_MAX: usize = 100;
/// Members are notified of reactions in a conversation at most once in this time, in milliseconds.
pub const REACTIONS_INTERVAL_MS: u64 = 1_000;
/// Members of a conversation up to which its receipts name them. Above, they are counted only.
pub const RECEIPTS_LIST_MAX: u64 = 500;
/// Members of a conversation up to which its receipts are counted. Above, there are none.
pub const RECEIPTS_COUNT_MAX: u64 = 5_000;
/// Members of a conversation up to which their sessions are sent the changed line of their lists when its details change.
pub const LIVE_DETAILS_MEMBERS_MAX: u64 = 500;
/// Users whose profiles are read at once.
pub const USERS_QUERY_MAX: usize = 200;
/// Unread conversations whose counts are named beside the total of a user.
pub const UNREAD_LINES_MAX: usize = 1_000;
/// Conversations that one call marks as read.
pub const READ_ALL_MAX: usize = 500;
/// The newest entries of a conversation whose receipts are counted together.
pub const RECEIPTS_COUNTED_ENTRIES: u64 = 500;
/// The newest entries of a conversation that are looked at for how far they were delivered.
pub const RECEIPTS_DELIVERED_ENTRIES: u64 = 100;
/// The text that conversations of a list are searched for.
pub const SEARCH_BYTES_MAX: usize = 128;
