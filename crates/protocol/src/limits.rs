//! Every size and count that a caller can run into, in one place. A refusal names the one it met.

/// A user, conversation, device or client message id, in bytes.
pub const ID_BYTES_MAX: usize = 64;
/// A message body as JSON text, in bytes.
pub const BODY_BYTES_MAX: usize = 64 * 1024;
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
/// Entries in one page of history.
pub const HISTORY_PAGE_MAX: usize = 500;
/// The bodies in one page of history, in bytes; the entry that crosses it still belongs to the page, and
/// `more` says that the page is shorter than asked for.
pub const HISTORY_PAGE_BYTES_MAX: usize = 1024 * 1024;
/// Conversations in one page of the list.
pub const CONVERSATIONS_PAGE_MAX: usize = 200;
/// Conversations of one user that a list, a sync or a resume looks through.
pub const CONVERSATIONS_PER_USER_MAX: usize = 10_000;
/// The newest entries that a resume or sync hands out; beyond it says which ranges to fetch.
pub const INBOX_ENTRIES_MAX: usize = 800;
/// The bodies of those entries together, in bytes; the entry that crosses it is still handed out. They
/// come in one frame, which must leave a session's buffer room for what arrives live meanwhile.
pub const INBOX_BYTES_MAX: usize = 1024 * 1024;
/// Unread messages are counted exactly up to here; above, the answer says "at least".
pub const UNREAD_COUNT_MAX: u64 = 1_000;
/// Entries after a read mark that are looked at to count the unread among them. Own and silent messages
/// and notices do not count: without this limit, a list would cost one who never marks as read ever more.
pub const UNREAD_ENTRIES_MAX: usize = 5_000;
/// Users in one query of online states.
pub const PRESENCE_BATCH_MAX: usize = 1_000;
/// Users whose presence one session watches.
pub const WATCHED_USERS_MAX: usize = 1_000;
/// Members of a group by which its members may watch each other.
pub const WATCHED_GROUP_MEMBERS_MAX: u64 = 500;
/// An HTTP request's body, in bytes: a full batch of members or users fits.
pub const HTTP_BODY_BYTES_MAX: usize = 8 * 1024 * 1024;
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
/// A push's time to live when it names none, and the longest, in seconds: a day, and 28.
pub const PUSH_TTL_S_DEFAULT: u64 = 24 * 60 * 60;
pub const PUSH_TTL_S_MAX: u64 = 28 * PUSH_TTL_S_DEFAULT;
/// How far ahead a push may be scheduled, in seconds: 90 days.
pub const PUSH_AHEAD_S_MAX: u64 = 90 * 24 * 60 * 60;
/// Tags, and kinds, that one push may name.
pub const PUSH_TAGS_MAX: usize = 100;
/// Devices in one page of a push's states.
pub const PUSH_DEVICES_PAGE_MAX: usize = 500;
/// Devices of one user that are known. Above: the one that bound longest ago gives way.
pub const DEVICES_PER_USER_MAX: usize = 100;
