//! Attributes: what a request says of the user or the event, parsed without copying.

use serde::{
    Deserialize, Deserializer,
    de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor},
};
use serde_json::value::RawValue;
use std::{borrow::Cow, fmt, marker::PhantomData};
use tidings_protocol::{
    error::Refusal,
    limits::{ATTRIBUTE_LIST_MAX, ATTRIBUTE_VALUE_BYTES_MAX, DECIDE_ATTRIBUTES_MAX},
};

#[derive(Debug, Clone, PartialEq)]
pub enum Value<'a> {
    Text(Cow<'a, str>),
    /// Like most readers of JSON this one rounds whole numbers beyond 2^53.
    Number(f64),
    Bool(bool),
    List(Vec<Cow<'a, str>>),
    /// A value of a kind that rules cannot compare. Only users' profiles have such: they hold any JSON.
    Other,
}

/// Names and values in the order of the text. If a name is repeated, its last value counts; `None` is `null`, which is
/// the same as an absent attribute.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attributes<'a>(Vec<(Cow<'a, str>, Option<Value<'a>>)>);

impl<'a> Attributes<'a> {
    /// The attributes of a request that is parsed already. `field` is their name in the request.
    ///
    /// # Errors
    /// A value is of a kind that attributes cannot have, or goes beyond a limit (`invalid_field`).
    pub fn from_json(field: &str, map: &'a serde_json::Map<String, serde_json::Value>) -> Result<Self, Refusal> {
        if map.len() > DECIDE_ATTRIBUTES_MAX {
            return Err(Refusal::field(field, too_many_attributes(map.len())));
        }
        let mut attributes = Vec::with_capacity(map.len());
        for (name, json) in map {
            let value = from_json(json).map_err(|why| Refusal::field(&format!("{field}.{name}"), why))?;
            attributes.push((Cow::Borrowed(name.as_str()), value));
        }
        Ok(Attributes(attributes))
    }

    /// The attributes of a user's profile, which are any JSON object: nothing is refused, and a value that rules cannot
    /// compare is [`Value::Other`].
    pub fn of_profile(text: &'a str) -> Self {
        let Ok(pairs) = serde_json::from_str::<Pairs<'a>>(text) else { return Attributes::default() };
        let value = |raw: &'a RawValue| {
            let mut deserializer = serde_json::Deserializer::from_str(raw.get());
            ValueSeed("").deserialize(&mut deserializer).unwrap_or(Some(Value::Other))
        };
        Attributes(pairs.0.into_iter().map(|(name, raw)| (name, value(raw))).collect())
    }

    pub fn get(&self, name: &str) -> Option<&Value<'a>> {
        self.0.iter().rev().find(|(own, _)| own == name).and_then(|(_, value)| value.as_ref())
    }

    /// The pairs in the order of the text: a later pair replaces an earlier one of the same name.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, Option<&Value<'a>>)> {
        self.0.iter().map(|(name, value)| (name.as_ref(), value.as_ref()))
    }
}

impl<'a> FromIterator<(&'a str, Value<'a>)> for Attributes<'a> {
    fn from_iter<I: IntoIterator<Item = (&'a str, Value<'a>)>>(pairs: I) -> Self {
        Attributes(pairs.into_iter().map(|(name, value)| (Cow::Borrowed(name), Some(value))).collect())
    }
}

fn from_json(json: &serde_json::Value) -> Result<Option<Value<'_>>, String> {
    use serde_json::Value as Json;
    Ok(Some(match json {
        Json::Null => return Ok(None),
        Json::Bool(truth) => Value::Bool(*truth),
        Json::Number(number) => Value::Number(number.as_f64().ok_or("the number is out of range")?),
        Json::String(text) => Value::Text(Cow::Borrowed(bounded(text)?)),
        Json::Array(items) if items.len() > ATTRIBUTE_LIST_MAX => return Err(too_long_a_list()),
        Json::Array(items) => Value::List(
            items
                .iter()
                .map(|item| Ok(Cow::Borrowed(bounded(item.as_str().ok_or(OF_STRINGS)?)?)))
                .collect::<Result<_, String>>()?,
        ),
        Json::Object(_) => return Err(KINDS.to_owned()),
    }))
}

const KINDS: &str = "an attribute is a string, a number, a boolean or a list of strings";
const OF_STRINGS: &str = "a list may hold strings only";

fn bounded(text: &str) -> Result<&str, String> {
    if text.len() > ATTRIBUTE_VALUE_BYTES_MAX {
        return Err(format!("a string may have at most {ATTRIBUTE_VALUE_BYTES_MAX} bytes, this has {}", text.len()));
    }
    Ok(text)
}

fn too_many_attributes(count: usize) -> String {
    format!("there may be at most {DECIDE_ATTRIBUTES_MAX} attributes, got {count}")
}

fn too_long_a_list() -> String {
    format!("a list may hold at most {ATTRIBUTE_LIST_MAX} strings")
}

// ---- from JSON text, borrowing from it

impl<'de: 'a, 'a> Deserialize<'de> for Attributes<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// `PhantomData` carries the lifetime of the text that the attributes borrow from.
        struct Object<'a>(PhantomData<Attributes<'a>>);
        impl<'de: 'a, 'a> Visitor<'de> for Object<'a> {
            type Value = Attributes<'a>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object of attributes")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Attributes<'a>, A::Error> {
                // Most requests have no more, so the vector is allocated once.
                let mut pairs = Vec::with_capacity(8);
                while let Some(name) = map.next_key_seed(TextSeed)? {
                    if pairs.len() == DECIDE_ATTRIBUTES_MAX {
                        return Err(A::Error::custom(too_many_attributes(pairs.len() + 1)));
                    }
                    let value = map.next_value_seed(ValueSeed(&name))?;
                    pairs.push((name, value));
                }
                Ok(Attributes(pairs))
            }
        }
        deserializer.deserialize_map(Object(PhantomData))
    }
}

/// An object as its names and the texts of its values, in order, repeated names included. Values are not parsed, so
/// their depth does not matter.
pub(super) struct Pairs<'a>(pub(super) Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Pairs<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Object;
        impl<'de> Visitor<'de> for Object {
            type Value = Pairs<'de>;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Pairs<'de>, A::Error> {
                let mut pairs = Vec::new();
                while let Some(name) = map.next_key_seed(TextSeed)? {
                    pairs.push((name, map.next_value()?));
                }
                Ok(Pairs(pairs))
            }
        }
        deserializer.deserialize_map(Object)
    }
}

/// Deserializes a string: borrowed unless it has escapes. (`Cow`'s own implementation always copies.)
pub(crate) struct TextSeed;

impl<'de> DeserializeSeed<'de> for TextSeed {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_str(self)
    }
}

impl<'de> Visitor<'de> for TextSeed {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a string")
    }

    fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
        Ok(Cow::Borrowed(text))
    }

    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Cow::Owned(text.to_owned()))
    }
}

/// Deserializes the value of the attribute with this name, which refusals mention.
struct ValueSeed<'n>(&'n str);

impl ValueSeed<'_> {
    fn refuse<E: Error>(&self, why: impl fmt::Display) -> E {
        E::custom(format_args!("attribute {:?}: {why}", self.0))
    }
}

impl<'de> DeserializeSeed<'de> for ValueSeed<'_> {
    type Value = Option<Value<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ValueSeed<'_> {
    type Value = Option<Value<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(KINDS)
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_bool<E>(self, truth: bool) -> Result<Self::Value, E> {
        Ok(Some(Value::Bool(truth)))
    }

    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(Some(Value::Number(number)))
    }

    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(Some(Value::Number(number as f64)))
    }

    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Some(Value::Number(number as f64)))
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        bounded(text).map_err(|why| self.refuse(why))?;
        Ok(Some(Value::Text(Cow::Borrowed(text))))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        bounded(text).map_err(|why| self.refuse(why))?;
        Ok(Some(Value::Text(Cow::Owned(text.to_owned()))))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut list = Vec::new();
        // Each item is parsed as any value, so that the refusal of one that is no string can name the attribute.
        while let Some(item) = items.next_element_seed(ItemSeed(self.0))? {
            if list.len() == ATTRIBUTE_LIST_MAX {
                return Err(self.refuse(too_long_a_list()));
            }
            list.push(item);
        }
        Ok(Some(Value::List(list)))
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        Err(self.refuse(KINDS))
    }
}

/// Deserializes a string in the list of the attribute with this name.
struct ItemSeed<'n>(&'n str);

impl ItemSeed<'_> {
    fn refuse<T, E: Error>(&self) -> Result<T, E> {
        Err(ValueSeed(self.0).refuse(OF_STRINGS))
    }
}

impl<'de> DeserializeSeed<'de> for ItemSeed<'_> {
    type Value = Cow<'de, str>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for ItemSeed<'_> {
    type Value = Cow<'de, str>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(OF_STRINGS)
    }

    fn visit_borrowed_str<E: Error>(self, text: &'de str) -> Result<Self::Value, E> {
        bounded(text).map(Cow::Borrowed).map_err(|why| ValueSeed(self.0).refuse(why))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        bounded(text).map(|text| Cow::Owned(text.to_owned())).map_err(|why| ValueSeed(self.0).refuse(why))
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        self.refuse()
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Self::Value, E> {
        self.refuse()
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Self::Value, E> {
        self.refuse()
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Self::Value, E> {
        self.refuse()
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Self::Value, E> {
        self.refuse()
    }

    fn visit_seq<A: SeqAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        self.refuse()
    }

    fn visit_map<A: MapAccess<'de>>(self, _: A) -> Result<Self::Value, A::Error> {
        self.refuse()
    }
}
