//! Operations beside plain messages: members edit, recall and react, and say how far they have read.
//!
//! The verifier of plain messages compares bytes across receivers. That is not enough here: whoever resumes or reads history is
//! handed the newest form of a message, whoever was there is handed the first form and then the entries that change it. So
//! every client has a view, kept by the rules of `docs/chat.md`, and at the end each view must be what the acknowledged
//! operations make of the message. An operation whose answer was lost is repeated with the same id; until its answer is known
//! the model admits both that it was done and that it was not.
//!
//! In reading order: [`form`]: a message as a client shows it, and what an entry makes of it; [`model`]: the operations on one
//! message, and the forms that they admit; [`member_views`]: what each client shows in the end; [`operation`]: operations and
//! their frames; [`mod@counts`]: the balance sheet; [`share`]: the option `--mix`.

pub(crate) mod counts;
pub(crate) mod form;
pub(crate) mod member_views;
pub(crate) mod model;
pub(crate) mod operation;
pub(crate) mod share;

/// The reactions that members give: few, so that they meet on the same ones.
pub(crate) const REACTION_KEYS: [&str; 3] = ["👍", "🎉", "seen"];
