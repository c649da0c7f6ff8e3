//! Notifications: how people learn of messages that no live session of theirs takes.
//!
//! This crate lies above the engine. It reads what the engine has committed, decides for each message and person by which channels
//! the person is notified and when, works the channels, and records what became of each notification. The engine knows nothing of
//! it: what this crate uses of the engine beside the store is in [`tidings_engine::engine::port`]. It opens no socket: providers and
//! the webhook are behind the ports [`Provider`](tidings_domain::providers::Provider) and [`Webhook`](webhook::Webhook).
//!
//! ```text
//!                                                   ┌▶ jobs of the webhook ──▶ webhook
//! commits ─▶ outbox list ─▶ stage: who, how, when? ─┼▶ jobs of a provider ───▶ APNs, FCM, browsers
//! messages that were not acknowledged ──▲           └▶ jobs of this server ──▶ pushes to devices, popups
//! ```
//! In reading order, in which a module uses only those below it:
//! - [`event_consumers`]: who follows the feed of events, and the webhooks to which it is sent;
//! - [`operations`]: the handle that the listeners hold, and what they ask of it;
//! - [`webhook_push`]: the app's webhook; [`provider_push`]: providers; [`internal_channels`]: pushes to devices that hold a connection, and
//!   popups;
//! - `channel_worker`: the thread that each of these channels has; `channel_jobs`: what it is still to do;
//! - `stage`: decides who is notified of a message; [`channel_plan`]: in which order, while no policy is stored;
//! - `notified_marks`: who was reached, so that later channels are cancelled; `offline_recipients`: who is to be notified;
//! - `rule_times`: when the channels of a rule are due;
//! - `quiet_hours`: what would disturb a person waits for their end;
//! - `gate`: whether a person may be notified by a channel now; it is asked here alone;
//! - [`policy`]: what the app server says about channels; `person_facts`, `badge`: what its conditions look at;
//! - `log`: records of it; `stats`: how often each channel was tried;
//! - `presence_webhook`: changes of presence for the webhook;
//! - [`webhook`], `daily_window`, `notification_rows` (what is stored in tables of notifications), `message_runs` (several messages in one row), `json_len`: what several of these share.

mod badge;
mod channel_jobs;
pub mod channel_plan;
mod channel_worker;
mod daily_window;
pub mod event_consumers;
mod gate;
pub mod internal_channels;
mod json_len;
mod log;
mod message_runs;
mod notification_rows;
mod notified_marks;
mod offline_recipients;
pub mod operations;
mod person_facts;
pub mod policy;
mod presence_webhook;
pub mod provider_push;
mod quiet_hours;
mod rule_times;
mod stage;
mod stats;
pub mod webhook;
pub mod webhook_push;

pub use operations::{NotificationParts, Notifications, NotificationsConfig, SilentSession};
pub use quiet_hours::QuietHours;
