//! From one annotated list of settings: the type, its defaults, the sample file, the environment and the flags.

use ipnet::IpNet;
use serde::{Deserialize, Deserializer, de::Error};
use std::{net::SocketAddr, path::PathBuf};

/// A value that can be read from an environment variable, a flag or the file, and shown as TOML. The error of a wrong value is
/// the same from every source: it names the value, what it should be, and an example.
pub(crate) trait Value: Sized {
    fn read(text: &str) -> Result<Self, String>;
    /// From the file, where a value has a type.
    fn of_toml(value: &toml::Value) -> Result<Self, String> {
        Self::read(&plain(value))
    }
    /// The value as TOML; the flag says whether it is set at all.
    fn show(&self) -> (bool, String);
    /// Whether a value can be any text, and so a secret.
    const IS_FREE_TEXT: bool = false;
}

/// One setting with its name, documentation and value.
#[derive(Debug, Clone)]
pub(crate) struct SettingDescription {
    /// The setting's table; empty for the top level.
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    /// The lines of its documentation.
    pub(crate) doc: Vec<&'static str>,
    pub(crate) is_set: bool,
    /// The value as TOML; for a setting that is not set, an empty value of its type.
    pub(crate) value: String,
    /// Whether the value can be any text, and so a secret.
    pub(crate) is_free_text: bool,
}

impl SettingDescription {
    /// `[webhook] url` is `TIDINGS_WEBHOOK_URL`.
    pub(crate) fn variable(&self) -> String {
        format!("TIDINGS_{}", self.flag().replace('-', "_").to_uppercase())
    }

    /// `[webhook] url` is `webhook.url`.
    pub(crate) fn full_name(&self) -> String {
        if self.table.is_empty() { self.name.to_owned() } else { format!("{}.{}", self.table, self.name) }
    }

    /// `[webhook] url` is `--webhook-url`.
    pub(crate) fn flag(&self) -> String {
        flag(self.table, self.name)
    }
}

pub(crate) fn flag(table: &str, name: &str) -> String {
    let name = name.replace('_', "-");
    if table.is_empty() { name } else { format!("{table}-{name}") }
}

/// Declares a table of settings. Every field has a documentation comment and a default; `tables`
/// are declared by this macro too, and so are the tables of `lists`, of which the file has any number.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        $table:ident {
            $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr,)*
            $(tables { $($sub:ident: $sub_table:ident,)* })?
            $(lists { $($list:ident: $list_table:ident,)* })?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct $table {
            $(
                $(#[doc = $doc])+
                #[serde(deserialize_with = "crate::settings::macros::of_file")]
                pub(crate) $field: $type,
            )*
            $($(pub(crate) $sub: $sub_table,)*)?
            $($(pub(crate) $list: Vec<$list_table>,)*)?
        }

        impl Default for $table {
            fn default() -> Self {
                $table { $($field: $default,)* $($($sub: Default::default(),)*)? $($($list: Vec::new(),)*)? }
            }
        }

        impl $table {
            /// Sets one setting of this table from text. `None`: this table has no such setting.
            pub(crate) fn set(&mut self, name: &str, text: &str) -> Option<Result<(), String>> {
                match name {
                    $(stringify!($field) => Some($crate::settings::macros::Value::read(text).map(|value| self.$field = value)),)*
                    _ => None,
                }
            }

            /// Every setting of this table and those in it, with its present value.
            pub(crate) fn describe_into(&self, table: &'static str, all: &mut Vec<$crate::settings::macros::SettingDescription>) {
                $({
                    let (is_set, value) = $crate::settings::macros::Value::show(&self.$field);
                    let doc = vec![$($doc.trim()),+];
                    let is_free_text = <$type as $crate::settings::macros::Value>::IS_FREE_TEXT;
                    all.push($crate::settings::macros::SettingDescription { table, name: stringify!($field), doc, is_set, value, is_free_text });
                })*
                $($(self.$sub.describe_into(stringify!($sub), all);)*)?
            }
        }
    };
}
pub(crate) use settings;

/// For `serde`: reads a value of the file with the same errors as a variable or a flag; the parser adds line and column.
pub(crate) fn of_file<'de, T: Value, D: Deserializer<'de>>(file: D) -> Result<T, D::Error> {
    T::of_toml(&toml::Value::deserialize(file)?).map_err(D::Error::custom)
}

/// A string without its quotes; any other value as it stands in the file.
fn plain(value: &toml::Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

macro_rules! value_by_from_str {
    ($($type:ty, $wanted:literal, $of_toml:pat => $show:expr;)*) => {
        $(impl Value for $type {

            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|_| format!("{text:?} is not {}", $wanted))
            }

            fn of_toml(value: &toml::Value) -> Result<Self, String> {
                match value {
                    $of_toml => Self::read(&plain(value)),
                    _ => Err(format!("{value} is not {}", $wanted)),
                }
            }

            fn show(&self) -> (bool, String) {
                let show: fn(&$type) -> String = $show;
                (true, show(self))
            }
        })*
    };
}

value_by_from_str! {
    PathBuf, "a path, such as \"/var/lib/tidings\"", toml::Value::String(_) => |path| format!("{:?}", path.display().to_string());
    SocketAddr, "an IP address and a port, such as 127.0.0.1:8080", toml::Value::String(_) => |address| format!("\"{address}\"");
    IpNet, "a network, such as 10.0.0.0/8", toml::Value::String(_) => |network| format!("\"{network}\"");
    bool, "true or false", toml::Value::Boolean(_) => bool::to_string;
    usize, "a whole number of at least 0, such as 1000", toml::Value::Integer(_) => usize::to_string;
    u64, "a whole number of at least 0, such as 1000", toml::Value::Integer(_) => u64::to_string;
    u32, "a whole number from 0 to 4294967295", toml::Value::Integer(_) => u32::to_string;
    u8, "a whole number from 0 to 255", toml::Value::Integer(_) => u8::to_string;
    f64, "a number, such as 0.5", toml::Value::Integer(_) | toml::Value::Float(_) => f64::to_string;
}

impl Value for String {
    const IS_FREE_TEXT: bool = true;

    fn read(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn of_toml(value: &toml::Value) -> Result<Self, String> {
        value.as_str().map(str::to_owned).ok_or_else(|| format!("{value} is not a text, such as \"info\""))
    }

    fn show(&self) -> (bool, String) {
        (true, format!("{self:?}"))
    }
}

impl<T: Value + Default> Value for Option<T> {
    const IS_FREE_TEXT: bool = T::IS_FREE_TEXT;

    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::read(text).map(Some) }
    }

    /// An empty string means unset, as in a variable.
    fn of_toml(value: &toml::Value) -> Result<Self, String> {
        if value.as_str() == Some("") { Ok(None) } else { T::of_toml(value).map(Some) }
    }

    fn show(&self) -> (bool, String) {
        match self {
            Some(value) => value.show(),
            None => (false, T::default().show().1),
        }
    }
}

/// A list: an array in the file, separated by commas in a variable or flag.
impl<T: Value + ToString> Value for Vec<T> {
    const IS_FREE_TEXT: bool = T::IS_FREE_TEXT;

    fn read(text: &str) -> Result<Self, String> {
        text.split(',').map(str::trim).filter(|part| !part.is_empty()).map(T::read).collect()
    }

    fn of_toml(value: &toml::Value) -> Result<Self, String> {
        match value {
            toml::Value::Array(parts) => parts.iter().map(T::of_toml).collect(),
            _ => Err(format!("{value} is not a list: write [{value}]")),
        }
    }

    fn show(&self) -> (bool, String) {
        (true, format!("{:?}", self.iter().map(T::to_string).collect::<Vec<_>>()))
    }
}

/// A setting that has one of a few values, each with its name.
macro_rules! one_of {
    ($type:ty { $($name:literal: $value:expr),+ $(,)? }) => {
        impl $crate::settings::macros::Value for $type {
            fn read(text: &str) -> Result<Self, String> {
                match text {
                    $($name => Ok($value),)+
                    _ => Err(format!("{text:?} is not one of {}", [$($name),+].join(", "))),
                }
            }

            fn show(&self) -> (bool, String) {
                let names = [$(($value, $name)),+];
                let name = names.iter().find(|(value, _)| value == self).map_or("", |(_, name)| name);
                (true, format!("\"{name}\""))
            }
        }
    };
}
pub(crate) use one_of;
