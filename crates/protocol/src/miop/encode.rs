//! From frames to bytes, in the one canonical form: fields in the order of their tags, numbers in their shortest form, and
//! no field whose value its absence would mean.

use super::{
    Frame,
    fields::{put_field, put_number_field, put_optional, put_optional_number},
    kind, put_head, put_number,
};

impl Frame<'_> {
    /// Appends the frame, header and all.
    pub fn put(&self, out: &mut Vec<u8>) {
        let mut payload = Vec::new();
        let kind = match self {
            Frame::Heartbeat { interval_s } => {
                put_optional_number(&mut payload, 1, *interval_s);
                kind::HEARTBEAT
            }
            Frame::Bind(bind) => {
                put_number_field(&mut payload, 1, bind.version);
                put_field(&mut payload, 2, bind.token.as_bytes());
                put_field(&mut payload, 3, bind.device_id.as_bytes());
                put_optional(&mut payload, 4, bind.device_kind);
                put_optional(&mut payload, 5, bind.app_version);
                put_optional(&mut payload, 6, bind.cursor);
                put_optional_number(&mut payload, 7, bind.wants);
                put_optional_number(&mut payload, 8, bind.heartbeat_s);
                kind::BIND
            }
            Frame::Bound(bound) => {
                put_number_field(&mut payload, 1, bound.version);
                put_field(&mut payload, 2, bound.session.as_bytes());
                put_field(&mut payload, 3, bound.user.as_bytes());
                put_number_field(&mut payload, 4, bound.heartbeat_s);
                put_number_field(&mut payload, 5, bound.frame_bytes_max);
                put_optional(&mut payload, 6, bound.cursor);
                if let Some(resume) = bound.resume {
                    put_field(&mut payload, 7, resume);
                }
                put_optional_number(&mut payload, 8, bound.pushes.map(u64::from));
                kind::BOUND
            }
            Frame::Push(push) => {
                put_number_field(&mut payload, 1, push.push);
                put_number_field(&mut payload, 2, push.expires_at);
                put_optional(&mut payload, 3, push.collapse_key);
                if push.priority != 0 {
                    put_number_field(&mut payload, 4, push.priority);
                }
                put_field(&mut payload, 5, push.content_type.as_bytes());
                put_field(&mut payload, 6, push.body);
                kind::PUSH
            }
            Frame::Ack { pushes } => {
                let mut list = Vec::with_capacity(pushes.len() * 4);
                for push in pushes {
                    put_number(&mut list, *push);
                }
                put_field(&mut payload, 1, &list);
                kind::ACK
            }
            Frame::Chat { json } => {
                put_head(out, kind::CHAT, json.len());
                out.extend_from_slice(json);
                return;
            }
            Frame::Unbind { reason } => {
                put_optional(&mut payload, 1, *reason);
                kind::UNBIND
            }
            Frame::Redirect { address, after_ms } => {
                put_optional(&mut payload, 1, *address);
                put_number_field(&mut payload, 2, *after_ms);
                kind::REDIRECT
            }
            Frame::Error(error) => {
                put_field(&mut payload, 1, error.code.as_bytes());
                put_field(&mut payload, 2, error.message.as_bytes());
                put_number_field(&mut payload, 3, u64::from(error.retry));
                put_optional_number(&mut payload, 4, error.retry_after_ms);
                put_number_field(&mut payload, 5, u64::from(error.fatal));
                kind::ERROR
            }
            Frame::Skipped { kind } => *kind,
        };
        put_head(out, kind, payload.len());
        out.extend_from_slice(&payload);
    }

    /// The frame's bytes, header and all.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.put(&mut out);
        out
    }
}
