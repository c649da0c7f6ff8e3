//! A client's frame as the server reads it.

use super::Attention;
use crate::http;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// A client's frame as the server reads it: all fields of all kinds, so that one pass over the bytes suffices (`serde` would
/// buffer a tagged enum first, and a tagged enum cannot carry a raw body).
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[expect(missing_docs, reason = "the fields are those of `ClientFrame`, and documented there")]
pub struct RawClientFrame<'a> {
    #[serde(borrow)]
    pub t: Cow<'a, str>,
    #[serde(default, rename = "ref")]
    pub reference: Option<u64>,
    #[serde(borrow, default)]
    pub conversation: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub to: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub client_msg_id: Option<Cow<'a, str>>,
    #[serde(borrow, default, rename = "type")]
    pub content_type: Option<Cow<'a, str>>,
    #[serde(borrow, default, deserialize_with = "crate::json::also_null")]
    pub body: Option<&'a RawValue>,
    #[serde(default)]
    pub mentions: Vec<String>,
    #[serde(default)]
    pub silent: bool,
    #[serde(default)]
    pub skip_push: bool,
    #[serde(default)]
    pub seq: Option<u64>,
    #[serde(default)]
    pub if_version: Option<u32>,
    #[serde(default)]
    pub reply_to: Option<u64>,
    #[serde(default)]
    pub expires: Option<http::Expires>,
    #[serde(borrow, default)]
    pub key: Option<Cow<'a, str>>,
    #[serde(default)]
    pub remove: bool,
    #[serde(default)]
    pub offset: Option<u64>,
    #[serde(borrow, default)]
    pub text: Option<Cow<'a, str>>,
    #[serde(default)]
    pub from_seq: Option<u64>,
    #[serde(default)]
    pub to_seq: Option<u64>,
    #[serde(default, deserialize_with = "crate::time::time_or_zero")]
    pub from_time: Option<u64>,
    #[serde(default, deserialize_with = "crate::time::time_or_zero")]
    pub to_time: Option<u64>,
    #[serde(default)]
    pub limit: Option<usize>,
    #[serde(borrow, default)]
    pub after: Option<Cow<'a, str>>,
    #[serde(default)]
    pub filter: Option<http::ListFilter>,
    #[serde(borrow, default)]
    pub search: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub account: Option<Cow<'a, str>>,
    #[serde(default, deserialize_with = "crate::json::also_null")]
    pub assigned_to: Option<Option<String>>,
    #[serde(default, deserialize_with = "crate::json::also_null")]
    pub if_assigned_to: Option<Option<String>>,
    #[serde(default)]
    pub pinned: Option<bool>,
    #[serde(default)]
    pub archived: Option<bool>,
    #[serde(default)]
    pub hidden: Option<bool>,
    #[serde(default, deserialize_with = "crate::json::also_null")]
    pub title: Option<Option<String>>,
    #[serde(default)]
    pub marked_unread: Option<bool>,
    #[serde(default)]
    pub clear_to_seq: Option<u64>,
    #[serde(borrow, default)]
    pub token: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub device_id: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub device_kind: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub cursor: Option<Cow<'a, str>>,
    #[serde(borrow, default)]
    pub app_version: Option<Cow<'a, str>>,
    #[serde(default)]
    pub push: bool,
    #[serde(default)]
    pub compact: bool,
    #[serde(default)]
    pub attention: Attention,
    #[serde(default)]
    pub state: Option<Attention>,
    #[serde(default)]
    pub pushes: Vec<u64>,
    #[serde(default)]
    pub users: Vec<String>,
    #[serde(borrow, default)]
    pub question: Option<&'a RawValue>,
    #[serde(borrow, default)]
    pub events: Option<&'a RawValue>,
}
