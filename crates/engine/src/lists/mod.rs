//! Lists of conversations: what a user's list, or an account's, shows of each conversation, and how sessions learn that a line
//! has changed.
//!
//! A request for a page comes by [`requests`], or for an account's list by [`account_list`]. It reads [`line::ListLine`]s, the
//! states of conversations with what the user has set for them, in the order of the list; leaves out those that the filter
//! does not pass; counts what is unread; and shows the newest entries as far as the reader may see them. [`preferences`]
//! changes what a user has set; [`unread`] counts what is unread in all of them, and reads it all.
//!
//! A change that has no entry (a mute, a read mark, a preference, details) is noted in [`changes`] when its commit is
//! handed out. The thread of [`worker`] sends the lines of users who have a session here, several changes of a line once.

pub mod account_list;
pub(crate) mod changes;
pub(crate) mod line;
mod preferences;
mod requests;
mod unread;
pub(crate) mod worker;
