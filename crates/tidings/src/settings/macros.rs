//! From one annotated list of settings: the type, its defaults, the sample file, the environment and the flags.

use std::{fmt::Display, net::SocketAddr, path::PathBuf, str::FromStr};

/// A value that can be read from an environment variable or a flag, and shown as TOML.
pub(crate) trait Value: Sized {
    fn read(text: &str) -> Result<Self, String>;
    /// The value as TOML; the flag says whether it is set at all.
    fn show(&self) -> (bool, String);
}

/// One setting, described.
#[derive(Debug, Clone)]
pub(crate) struct Described {
    /// The table that it stands in; empty for the top.
    pub(crate) table: &'static str,
    pub(crate) name: &'static str,
    /// The lines of its documentation.
    pub(crate) doc: Vec<&'static str>,
    pub(crate) is_set: bool,
    pub(crate) default: String,
}

impl Described {
    /// `[webhook] url` is `TIDINGS_WEBHOOK_URL`.
    pub(crate) fn variable(&self) -> String {
        format!("TIDINGS_{}", self.flag().replace('-', "_").to_uppercase())
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
/// are declared by this macro too.
macro_rules! settings {
    (
        $(#[doc = $about:literal])*
        $table:ident {
            $($(#[doc = $doc:literal])+ $field:ident: $type:ty = $default:expr,)*
            $(tables { $($sub:ident: $sub_table:ident,)* })?
        }
    ) => {
        $(#[doc = $about])*
        #[derive(Clone, PartialEq, serde::Deserialize)]
        #[serde(default, deny_unknown_fields)]
        pub(crate) struct $table {
            $($(#[doc = $doc])+ pub(crate) $field: $type,)*
            $($(pub(crate) $sub: $sub_table,)*)?
        }

        impl Default for $table {
            fn default() -> Self {
                $table { $($field: $default,)* $($($sub: Default::default(),)*)? }
            }
        }

        impl $table {
            /// Sets one setting of this table from text. `None`: there is no such setting here.
            pub(crate) fn set(&mut self, name: &str, text: &str) -> Option<Result<(), String>> {
                match name {
                    $(stringify!($field) => Some($crate::settings::macros::Value::read(text).map(|value| self.$field = value)),)*
                    _ => None,
                }
            }

            pub(crate) fn describe_into(table: &'static str, all: &mut Vec<$crate::settings::macros::Described>) {
                let defaults = $table::default();
                $({
                    let (is_set, default) = $crate::settings::macros::Value::show(&defaults.$field);
                    let doc = vec![$($doc.trim()),+];
                    all.push($crate::settings::macros::Described { table, name: stringify!($field), doc, is_set, default });
                })*
                $($($sub_table::describe_into(stringify!($sub), all);)*)?
                let _ = defaults;
            }
        }
    };
}
pub(crate) use settings;

macro_rules! value_by_from_str {
    ($($type:ty, $wanted:literal: $show:expr;)*) => {
        $(impl Value for $type {
            fn read(text: &str) -> Result<Self, String> {
                text.parse().map_err(|error| format!("{text:?} is not {}: {error}", $wanted))
            }

            fn show(&self) -> (bool, String) {
                let show: fn(&$type) -> String = $show;
                (true, show(self))
            }
        })*
    };
}

value_by_from_str! {
    String, "a text": |text| format!("{text:?}");
    PathBuf, "a path": |path| format!("{:?}", path.display().to_string());
    SocketAddr, "an address and a port, such as 127.0.0.1:8080": |address| format!("\"{address}\"");
    bool, "true or false": bool::to_string;
    usize, "a whole number": usize::to_string;
    u64, "a whole number": u64::to_string;
    u32, "a whole number": u32::to_string;
    u8, "a whole number from 0 to 255": u8::to_string;
    f64, "a number": f64::to_string;
}

impl<T: Value + Default> Value for Option<T> {
    fn read(text: &str) -> Result<Self, String> {
        if text.is_empty() { Ok(None) } else { T::read(text).map(Some) }
    }

    fn show(&self) -> (bool, String) {
        match self {
            Some(value) => value.show(),
            None => (false, T::default().show().1),
        }
    }
}

/// Separated by commas in a variable or flag.
impl<T: FromStr<Err: Display> + Display> Value for Vec<T> {
    fn read(text: &str) -> Result<Self, String> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        parts.map(|part| part.parse().map_err(|error| format!("{part:?}: {error}"))).collect()
    }

    fn show(&self) -> (bool, String) {
        (true, format!("{:?}", self.iter().map(T::to_string).collect::<Vec<_>>()))
    }
}
