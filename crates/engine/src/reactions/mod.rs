//! Reactions to messages, and pins.
//!
//! A reaction comes by [`requests`], which checks who may give it. Its commit changes the message's row and notes that members
//! are yet to be notified; none of them is notified of each reaction. If members were notified more than a second ago, the same commit
//! appends an entry with all messages whose reactions have changed. If not, the thread of [`worker`] has the entry
//! appended once the second is over; after a crash the leader finds in the store what was left.
//!
//! A pin is a change of its message like any other, with an entry of its own.

pub(crate) mod requests;
pub(crate) mod worker;
