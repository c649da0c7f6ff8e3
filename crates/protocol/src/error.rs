//! Errors are part of the interface: a stable code, a sentence, and whether to try again.

use serde::{Deserialize, Serialize};

macro_rules! codes {
    ($($(#[$doc:meta])* $name:ident = $text:literal, $status:literal;)*) => {
        /// Why a request was refused. The text form is stable: clients may branch on it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
        #[serde(rename_all = "snake_case")]
        pub enum ErrorCode { $($(#[$doc])* $name,)* }

        impl ErrorCode {
            /// Every code, for documentation and metrics.
            pub const ALL: &[ErrorCode] = &[$(ErrorCode::$name),*];

            /// The code as it stands on the wire.
            pub fn as_str(self) -> &'static str {
                match self { $(ErrorCode::$name => $text),* }
            }

            /// The HTTP status that goes with the code.
            pub fn http_status(self) -> u16 {
                match self { $(ErrorCode::$name => $status),* }
            }
        }
    };
}

codes! {
    /// The body or frame is not the JSON that this operation takes. Mend the request.
    Malformed = "malformed", 400;
    /// A field is of the right type but not acceptable; the detail names it. Mend the request.
    InvalidField = "invalid_field", 422;
    /// A stated limit was exceeded; the detail names the limit. Send less.
    LimitExceeded = "limit_exceeded", 413;
    /// No valid API key or token was given. Get a new one.
    Unauthorized = "unauthorized", 401;
    /// The token's time is over. Get a new one.
    TokenExpired = "token_expired", 401;
    /// The caller is known but may not do this.
    Forbidden = "forbidden", 403;
    /// The app server that is asked before this was done refused it; the detail is its text for the user, and `reason` its own code.
    RefusedByHook = "refused_by_hook", 403;
    /// The user is suspended: no session, token or request of the user is accepted. Tell the user; the detail says why.
    UserSuspended = "user_suspended", 403;
    /// One of the two users blocks the other. Who blocks may end the block; the other is not told who it is, and tries no more.
    Blocked = "blocked", 403;
    /// The user is not a member of the conversation.
    NotAMember = "not_a_member", 403;
    /// The member is muted in the conversation: reads, and writes nothing. Wait until the mute ends or is lifted.
    Muted = "muted", 403;
    /// The user is banned from the conversation, and does not become a member. Wait until the ban ends or is lifted.
    Banned = "banned", 403;
    /// No such user, conversation or other thing.
    NotFound = "not_found", 404;
    /// The path exists, the method does not.
    MethodNotAllowed = "method_not_allowed", 405;
    /// The body is declared to be something other than JSON. Send `application/json`.
    UnsupportedMediaType = "unsupported_media_type", 415;
    /// It exists already with other properties, or the state forbids it.
    Conflict = "conflict", 409;
    /// This `client_msg_id` stands for another request of the same author in this conversation. Give each request an id of its
    /// own, and repeat it only with a retry of the same request.
    ClientMsgIdReused = "client_msg_id_reused", 409;
    /// This `client_push_id` stands for another push. Give each push an id of its own.
    ClientPushIdReused = "client_push_id_reused", 409;
    /// This `client_bulk_id` stands for another bulk send of the account. Give each an id of its own.
    ClientBulkIdReused = "client_bulk_id_reused", 409;
    /// The conversation's history is being imported: nobody sends there before the import is finished. Tell the user, and send then.
    ConversationImporting = "conversation_importing", 409;
    /// The conversation is being deleted: nothing is stored in it. With a direct one write again once the erasure is done.
    ConversationDeleted = "conversation_deleted", 409;
    /// The entry is a notice of the server, which cannot be changed as a message can.
    NotAMessage = "not_a_message", 409;
    /// The message was recalled: it cannot be changed any more.
    MessageRecalled = "message_recalled", 409;
    /// The message has been edited meanwhile. Read it again, then decide.
    VersionConflict = "version_conflict", 409;
    /// A legal hold keeps what would be erased; the detail names the conversation and the hold. Lift it first, if it may be lifted.
    LegalHold = "legal_hold", 409;
    /// Another agent has the conversation. Read who has it, then decide.
    AssignmentConflict = "assignment_conflict", 409;
    /// The message does not grow: it was sent whole, was ended, or was interrupted because its beginner went away. Edit it to
    /// give it another body.
    StreamEnded = "stream_ended", 409;
    /// Another node of the cluster takes this message's chunks. Append over HTTP, which every node passes on.
    StreamElsewhere = "stream_elsewhere", 409;
    /// The cursor was not issued by this server.
    CursorInvalid = "cursor_invalid", 422;
    /// What follows the cursor is not kept any more. Begin anew.
    CursorExpired = "cursor_expired", 410;
    /// Too many requests from this caller. Wait as told.
    RateLimited = "rate_limited", 429;
    /// A queue on the message's way is full; nothing was stored. Wait as told, then retry.
    QueueFull = "queue_full", 503;
    /// The store cannot write now (a full disk, say); nothing was stored. Reads go on.
    StoreUnavailable = "store_unavailable", 503;
    /// The server is draining. Connect again as told.
    Draining = "draining", 503;
    /// The node that would do it is away. Try again as told.
    NodeUnavailable = "node_unavailable", 503;
    /// The app server that must be asked before this is done gave no answer; nothing was stored. Try again as told.
    HookUnavailable = "hook_unavailable", 503;
    /// The nodes are being upgraded, and one of them does not know yet what the request needs. Try again as told.
    NotYetEnabled = "not_yet_enabled", 503;
    /// Nobody bound the connection in time.
    BindTimeout = "bind_timeout", 408;
    /// Something must be sent first: a bind.
    NotBound = "not_bound", 401;
    /// The session is bound already.
    AlreadyBound = "already_bound", 409;
    /// No heartbeat arrived in time.
    HeartbeatTimeout = "heartbeat_timeout", 408;
    /// The reader was too slow. Connect again with the last cursor; nothing is lost.
    SlowReader = "slow_reader", 408;
    /// A newer session of the same device, or of the same kind beyond the limit, took the place.
    Replaced = "replaced", 410;
    /// An operator or the app server ended the session.
    Kicked = "kicked", 410;
    /// The event stream that this request is for has ended, or never was. Open another, and resume.
    SessionGone = "session_gone", 410;
    /// A defect of ours; the detail has a reference for the log.
    Internal = "internal", 500;
}

impl ErrorCode {
    /// Whether the same request may succeed later without being changed.
    pub fn retryable(self) -> bool {
        use ErrorCode::*;
        matches!(
            self,
            RateLimited
                | QueueFull
                | StoreUnavailable
                | Draining
                | NodeUnavailable
                | NotYetEnabled
                | HookUnavailable
                | BindTimeout
                | HeartbeatTimeout
                | SlowReader
                | Internal
        )
    }

    /// The WebSocket close code for a session that ends with this error code: 4000 plus a stable number, so that a client
    /// that reads only numbers can branch too. `docs/websocket.md` says what the client does then.
    pub fn close_code(self) -> u16 {
        use ErrorCode::*;
        match self {
            Malformed => 4000,
            Unauthorized => 4001,
            BindTimeout => 4002,
            Replaced => 4003,
            Kicked => 4004,
            LimitExceeded => 4005,
            TokenExpired => 4006,
            HeartbeatTimeout => 4007,
            SlowReader => 4008,
            Draining => 4009,
            NotBound => 4010,
            QueueFull => 4011,
            StoreUnavailable => 4012,
            NodeUnavailable => 4013,
            CursorInvalid => 4014,
            NotFound => 4015,
            InvalidField => 4016,
            Forbidden => 4017,
            RateLimited => 4018,
            AlreadyBound => 4019,
            Internal => 4020,
            UserSuspended => 4021,
            // These refuse requests; they end no session.
            NotAMember
            | Muted
            | Banned
            | Blocked
            | MethodNotAllowed
            | UnsupportedMediaType
            | Conflict
            | ClientMsgIdReused
            | ClientPushIdReused
            | ClientBulkIdReused
            | NotAMessage
            | MessageRecalled
            | VersionConflict
            | AssignmentConflict
            | StreamEnded
            | StreamElsewhere
            | SessionGone
            | NotYetEnabled
            | CursorExpired
            | RefusedByHook
            | HookUnavailable
            | LegalHold
            | ConversationImporting
            | ConversationDeleted => 4999,
        }
    }
}

impl std::fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// The longest detail of a refusal, in bytes. A detail may repeat what the caller wrote, which may be as long as a frame.
const DETAIL_BYTES_MAX: usize = 2 * 1024;
/// How much of a caller's own text a refusal repeats, in characters.
const QUOTED_CHARS_MAX: usize = 64;

/// A caller's own text in quotes, shortened if it is long.
pub fn quoted(text: &str) -> String {
    match text.char_indices().nth(QUOTED_CHARS_MAX) {
        Some((end, _)) => format!("{:?}…", &text[..end]),
        None => format!("{text:?}"),
    }
}

/// A refusal: the answer of every operation that does not do what it was asked for.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {detail}")]
pub struct Refusal {
    /// The stable code that clients branch on.
    pub code: ErrorCode,
    /// A sentence for a person; names the field or limit.
    pub detail: String,
    /// When a retry makes sense, in milliseconds.
    pub retry_after_ms: Option<u64>,
    /// Of `refused_by_hook`: the app server's own code.
    pub reason: Option<Box<str>>,
}

impl Refusal {
    /// A refusal without a time to retry after.
    pub fn new(code: ErrorCode, detail: impl Into<String>) -> Self {
        let mut detail = detail.into();
        if detail.len() > DETAIL_BYTES_MAX {
            detail.truncate(detail.floor_char_boundary(DETAIL_BYTES_MAX - '…'.len_utf8()));
            detail.push('…');
        }
        Refusal { code, detail, retry_after_ms: None, reason: None }
    }

    /// The same refusal with the time after which a retry makes sense, in milliseconds.
    pub fn retry_after(mut self, ms: u64) -> Self {
        self.retry_after_ms = Some(ms);
        self
    }

    /// The same refusal with the app server's own code.
    pub fn with_reason(mut self, reason: Option<String>) -> Self {
        self.reason = reason.map(Into::into);
        self
    }

    /// `limit_exceeded`: names the limit, its value, and the size or count that the request had.
    pub fn limit(name: &str, limit: u64, asked: u64) -> Self {
        Refusal::new(ErrorCode::LimitExceeded, format!("{name} is limited to {limit}, got {asked}"))
    }

    /// `invalid_field`: names the field and says what is wrong with it.
    pub fn field(name: &str, why: impl std::fmt::Display) -> Self {
        Refusal::new(ErrorCode::InvalidField, format!("{name}: {why}"))
    }

    /// `not_found`: names the kind of thing (`user`, say) and the id that was asked for.
    pub fn not_found(what: &str, id: &str) -> Self {
        Refusal::new(ErrorCode::NotFound, format!("no {what} {}", quoted(id)))
    }
}
