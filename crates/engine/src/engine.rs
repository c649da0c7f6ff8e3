//! The operations that belong to no feature: methods of [`Engine`](crate::Engine), each in the module of its kind. In reading
//! order:
//! - [`send`]: accept: who may send what where, before anything is stored; `limits`: how often users send and open conversations;
//! - `message_changes`, `replies`, `mentions`: edits and recalls, answers, who was mentioned;
//! - `reads`, `history`, [`resume`]: unread counts, timelines, inboxes;
//! - `users`, `conversations`: profiles, details, members, mutes; `all_lists`: lists of all of them;
//! - `restrictions`: mutes, bans and who may send; the hand-over of a group; `joining`: invites, and requests to join;
//! - `push_tokens`: where providers reach devices;
//! - [`port`]: what the crate of notifications uses beside these;
//! - `scheduled`: messages for a later time;
//! - `expiring`: messages that disappear;
//! - `bulk_sends`: one message to some of an account's followers;
//! - [`events`]: the feed of all that is committed; `feed_notes`: what comes into it from outside the commits of chat;
//! - [`erasure`]: a person is erased, and what is left of one; legal holds against it;
//! - [`personal_export`]: all that there is of a person, for the person;
//! - `retention`, `purge`: old messages are removed, and recalled bodies leave the store's files;
//! - [`popup_questions`]: which popup suits a user, and what users did with popups, for every listener;
//! - `popup_trigger`, `popup_users`, `popup_pushes`: popups that the app server sends, users as popups see them, and what
//!   their journeys push;
//! - `leader_requests`: what only the leader can answer; `health`: what operators see.

mod all_lists;
pub(crate) mod blocks;
mod bulk_sends;
pub(crate) mod conversations;
pub mod erasure;
pub mod events;
pub(crate) mod expiring;
mod feed_notes;
mod health;
mod history;
mod joining;
pub(crate) mod leader_requests;
pub(crate) mod limits;
mod mentions;
mod message_changes;
pub mod personal_export;
pub(crate) mod popup_pushes;
pub mod popup_questions;
mod popup_trigger;
pub(crate) mod popup_users;
pub mod port;
mod purge;
mod push_tokens;
mod reads;
mod replies;
mod reports;
mod restrictions;
pub mod resume;
mod retention;
pub(crate) mod scheduled;
pub mod send;
pub(crate) mod signals;
pub(crate) mod users;
