//! The kinds of entries: a number in stores, a name for clients. Those of later versions are [`EntryKind::Opaque`]: they keep
//! their numbers and have no meaning here.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use std::{borrow::Cow, fmt};
use utoipa::{
    PartialSchema, ToSchema,
    openapi::{ObjectBuilder, RefOr, Schema, Type},
};

macro_rules! kinds {
    ($($(#[$doc:meta])* $kind:ident = $number:literal, $name:literal;)*) => {
        /// What an entry is. New kinds get new numbers; a client skips kinds that it does not know.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum EntryKind {
            $($(#[$doc])* $kind,)*
            /// A kind of a later version, with its number; 0 if the number is not known. A reader is shown that there is such an
            /// entry, and nothing of it.
            Opaque(u8),
        }

        impl EntryKind {
            /// The kinds that this version knows.
            pub const KNOWN: &[EntryKind] = &[$(EntryKind::$kind),*];

            /// The number, which never changes.
            pub fn number(self) -> u8 {
                match self { $(EntryKind::$kind => $number,)* EntryKind::Opaque(number) => number }
            }

            /// The kind with this number.
            pub fn of_number(number: u8) -> EntryKind {
                match number { $($number => EntryKind::$kind,)* other => EntryKind::Opaque(other) }
            }

            /// The name on the wire.
            pub fn name(self) -> &'static str {
                match self { $(EntryKind::$kind => $name,)* EntryKind::Opaque(_) => OPAQUE }
            }

            fn of_name(name: &str) -> EntryKind {
                match name { $($name => EntryKind::$kind,)* _ => EntryKind::Opaque(0) }
            }
        }
    };
}

/// The name of all kinds that a node does not know.
const OPAQUE: &str = "opaque";

kinds! {
    /// What a user or an app server has sent.
    Message = 1, "message";
    /// Gives an earlier message, its `target`, another body.
    Edit = 2, "edit";
    /// Takes an earlier message, its `target`, back.
    Recall = 3, "recall";
    /// Members were added, removed, or changed role.
    MemberChange = 4, "member_change";
    /// The conversation's details changed, or it was created.
    ConversationChange = 5, "conversation_change";
    /// Messages have other reactions: `body.changes` has the new ones of each. One entry has all within a second.
    Reactions = 6, "reactions";
    /// A message, the `target`, was pinned or is no longer: `body.pinned` says which.
    Pins = 7, "pins";
    /// Of a conversation with an account: `body.assigned_to` is the agent who has it from here on, or `null`.
    Assignment = 8, "assignment";
}

impl EntryKind {
    /// Whether it is a kind of a later version.
    pub fn is_opaque(self) -> bool {
        matches!(self, EntryKind::Opaque(_))
    }
}

/// A name in JSON. In binary forms a number from 0 on, as an enum without data has it: kinds of later versions, too.
impl Serialize for EntryKind {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        if out.is_human_readable() {
            return out.serialize_str(self.name());
        }
        out.serialize_unit_variant("EntryKind", self.number().wrapping_sub(1).into(), self.name())
    }
}

impl<'de> Deserialize<'de> for EntryKind {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        if from.is_human_readable() {
            return Cow::<'de, str>::deserialize(from).map(|name| EntryKind::of_name(&name));
        }
        from.deserialize_enum("EntryKind", &[], KindVisitor)
    }
}

struct KindVisitor;

impl<'de> de::Visitor<'de> for KindVisitor {
    type Value = EntryKind;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the number of a kind of entry")
    }

    fn visit_enum<A: de::EnumAccess<'de>>(self, data: A) -> Result<EntryKind, A::Error> {
        let (index, variant) = data.variant::<u32>()?;
        de::VariantAccess::unit_variant(variant)?;
        let index = u8::try_from(index).map_err(|_| de::Error::custom("no kind of entry has such a number"))?;
        Ok(EntryKind::of_number(index.wrapping_add(1)))
    }
}

impl PartialSchema for EntryKind {
    fn schema() -> RefOr<Schema> {
        let names = EntryKind::KNOWN.iter().map(|kind| kind.name()).chain([OPAQUE]);
        let about = "What an entry is: `opaque` is an entry of a kind that the node does not know, while nodes of two versions run. \
                     A client skips kinds that it does not know.";
        ObjectBuilder::new().schema_type(Type::String).enum_values(Some(names)).description(Some(about)).into()
    }
}

impl ToSchema for EntryKind {}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn every_number_is_a_kind_and_stays_itself_in_binary_forms() {
        for number in 0..=u8::MAX {
            let kind = EntryKind::of_number(number);
            assert_eq!((kind.number(), kind.is_opaque()), (number, !(1..=8).contains(&number)));
            let json = serde_json::to_string(&kind).unwrap();
            let read: EntryKind = serde_json::from_str(&json).unwrap();
            assert_eq!(read, if kind.is_opaque() { EntryKind::Opaque(0) } else { kind });
        }
        assert_eq!(serde_json::from_str::<EntryKind>(r#""of_a_later_version""#).unwrap(), EntryKind::Opaque(0));
        assert_eq!(serde_json::to_string(&EntryKind::MemberChange).unwrap(), r#""member_change""#);
    }
}
