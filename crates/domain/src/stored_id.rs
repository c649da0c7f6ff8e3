//! Ids that a store can be asked for.
//!
//! Whoever names a user or a conversation writes any text: as long as a frame, with characters that a database refuses. Such a
//! text is the id of nobody, and a store must not see it: fjall ends the process at a key of 65,536 bytes, and PostgreSQL
//! refuses a statement with a NUL. So the look-ups of [`Store`](crate::store::Store) take a [`StoredId`], which has one
//! constructor.

use tidings_protocol::limits::CONVERSATION_ID_BYTES_MAX;

/// A text that may be the id of a stored user or conversation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredId<'a>(&'a str);

impl<'a> StoredId<'a> {
    /// `None`: no user and no conversation has this id.
    ///
    /// ```
    /// use tidings_domain::stored_id::StoredId;
    ///
    /// assert_eq!(StoredId::parse("ann~bob").map(StoredId::as_str), Some("ann~bob"));
    /// assert_eq!(StoredId::parse(&"x".repeat(130)), None);
    /// assert_eq!(StoredId::parse("a\0b"), None);
    /// ```
    pub fn parse(id: &'a str) -> Option<Self> {
        let can_exist = (1..=CONVERSATION_ID_BYTES_MAX).contains(&id.len()) && !id.contains('\0');
        can_exist.then_some(StoredId(id))
    }

    /// The id's text.
    pub fn as_str(self) -> &'a str {
        self.0
    }
}
