//! The notification policy: by which channels people are notified of messages, as the app server configures it. `docs/notifications.md` describes
//! the document.
//!
//! In reading order: [`facts`], what is known of a message and of a person; [`mod@check`], a document to rules, or a refusal that
//! names the part; [`compiled`], rules that are evaluated for each message and person, and the templates of its channels;
//! [`policies`], the policy that holds now, how it is stored ([`stored`]) and followed.

mod check;
mod compiled;
mod facts;
mod policies;
mod stored;

pub use check::{CheckedPolicy, check};
pub use compiled::{ChannelDelay, ChannelStep, CompiledPolicy, PolicyRule, Shown, WhyNot};
pub use facts::{MessageFacts, PersonFacts};
pub use policies::NotificationPolicies;
pub(crate) use policies::PolicyParts;
