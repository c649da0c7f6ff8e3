//! Which scope of an API key each operation needs. The only table of it: [`authenticate`](crate::Api::authenticate) asks it for every
//! request that shows an API key, the OpenAPI description is marked by it, and a test compares it with `docs/api-keys.md`.

use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::KeyScope,
};

/// Whom an operation is for, among API keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Permission {
    /// Keys with this scope.
    Scope(KeyScope),
    /// Every key that is valid.
    AnyKey,
    /// No key: sessions are users', whose tokens or secrets are asked for.
    NoKey,
    /// Everybody, without a credential.
    Open,
}

use KeyScope::{Admin, Erase, Moderation, Popups, Push, Read, Send, Users};
use Permission::{AnyKey, NoKey, Open, Scope};

/// An operation as the description names it: the method, and the path with its parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OperationName<'a> {
    pub method: &'a str,
    pub path: &'a str,
}

/// The operations that are served without the router.
pub(crate) const SEND: OperationName<'static> = OperationName { method: "POST", path: "/v1/messages" };
pub(crate) const DECIDE: OperationName<'static> = OperationName { method: "POST", path: "/v1/popups/decide" };
pub(crate) const REPORT: OperationName<'static> = OperationName { method: "POST", path: "/v1/popup-events" };
pub(crate) const PUSH: OperationName<'static> = OperationName { method: "POST", path: "/v1/push" };

/// Every operation of the description, in the order of paths.
pub const PERMISSIONS: &[(&str, &str, Permission)] = &[
    ("GET", "/healthz", Open),
    ("GET", "/metrics", Open),
    ("GET", "/readyz", Open),
    ("GET", "/v1/admin/audit", Scope(Admin)),
    ("POST", "/v1/admin/backup", Scope(Admin)),
    ("GET", "/v1/admin/keys", Scope(Admin)),
    ("POST", "/v1/admin/keys", Scope(Admin)),
    ("GET", "/v1/admin/keys/me", AnyKey),
    ("GET", "/v1/admin/keys/{key}", Scope(Admin)),
    ("PATCH", "/v1/admin/keys/{key}", Scope(Admin)),
    ("DELETE", "/v1/admin/keys/{key}", Scope(Admin)),
    ("POST", "/v1/admin/keys/{key}/rotate", Scope(Admin)),
    ("GET", "/v1/admin/nodes", Scope(Admin)),
    ("GET", "/v1/admin/presence", Scope(Admin)),
    ("POST", "/v1/admin/presence/compare", Scope(Admin)),
    ("GET", "/v1/admin/settings", Scope(Admin)),
    ("GET", "/v1/bulk-sends", Scope(Read)),
    ("POST", "/v1/bulk-sends", Scope(Send)),
    ("GET", "/v1/bulk-sends/{bulk_send}", Scope(Read)),
    ("DELETE", "/v1/bulk-sends/{bulk_send}", Scope(Send)),
    ("GET", "/v1/conversations", Scope(Read)),
    ("POST", "/v1/conversations", Scope(Users)),
    ("GET", "/v1/conversations/{conversation}", Scope(Read)),
    ("PATCH", "/v1/conversations/{conversation}", Scope(Users)),
    ("DELETE", "/v1/conversations/{conversation}", Scope(Erase)),
    ("PUT", "/v1/conversations/{conversation}/assignment", Scope(Send)),
    ("GET", "/v1/conversations/{conversation}/desk", Scope(Read)),
    ("PATCH", "/v1/conversations/{conversation}/desk", Scope(Users)),
    ("GET", "/v1/conversations/{conversation}/desk/conversations", Scope(Read)),
    ("GET", "/v1/conversations/{conversation}/invites", Scope(Users)),
    ("POST", "/v1/conversations/{conversation}/invites", Scope(Users)),
    ("DELETE", "/v1/conversations/{conversation}/invites/{invite}", Scope(Users)),
    ("GET", "/v1/conversations/{conversation}/join-requests", Scope(Users)),
    ("POST", "/v1/conversations/{conversation}/join-requests", Scope(Users)),
    ("GET", "/v1/conversations/{conversation}/join-requests/{user}", Scope(Users)),
    ("POST", "/v1/conversations/{conversation}/join-requests/{user}/approve", Scope(Users)),
    ("POST", "/v1/conversations/{conversation}/join-requests/{user}/refuse", Scope(Users)),
    ("GET", "/v1/conversations/{conversation}/legal-hold", Scope(Erase)),
    ("PUT", "/v1/conversations/{conversation}/legal-hold", Scope(Erase)),
    ("DELETE", "/v1/conversations/{conversation}/legal-hold", Scope(Erase)),
    ("GET", "/v1/conversations/{conversation}/members", Scope(Read)),
    ("POST", "/v1/conversations/{conversation}/members", Scope(Users)),
    ("GET", "/v1/conversations/{conversation}/messages", Scope(Read)),
    ("GET", "/v1/conversations/{conversation}/messages/{seq}", Scope(Read)),
    ("PATCH", "/v1/conversations/{conversation}/messages/{seq}", Scope(Moderation)),
    ("DELETE", "/v1/conversations/{conversation}/messages/{seq}", Scope(Moderation)),
    ("GET", "/v1/conversations/{conversation}/messages/{seq}/notifications", Scope(Read)),
    ("PUT", "/v1/conversations/{conversation}/messages/{seq}/pin", Scope(Moderation)),
    ("DELETE", "/v1/conversations/{conversation}/messages/{seq}/pin", Scope(Moderation)),
    ("GET", "/v1/conversations/{conversation}/messages/{seq}/reactions", Scope(Read)),
    ("PUT", "/v1/conversations/{conversation}/messages/{seq}/reactions/{key}", Scope(Send)),
    ("DELETE", "/v1/conversations/{conversation}/messages/{seq}/reactions/{key}", Scope(Send)),
    ("GET", "/v1/conversations/{conversation}/messages/{seq}/receipts", Scope(Read)),
    ("GET", "/v1/conversations/{conversation}/messages/{seq}/replies", Scope(Read)),
    ("POST", "/v1/conversations/{conversation}/messages/{seq}/report", Scope(Moderation)),
    ("GET", "/v1/conversations/{conversation}/messages/{seq}/versions", Scope(Moderation)),
    ("POST", "/v1/conversations/{conversation}/owner", Scope(Users)),
    ("GET", "/v1/conversations/{conversation}/pins", Scope(Read)),
    ("GET", "/v1/conversations/{conversation}/receipts", Scope(Read)),
    ("GET", "/v1/conversations/{conversation}/restrictions", Scope(Moderation)),
    ("PUT", "/v1/conversations/{conversation}/restrictions/{user}", Scope(Moderation)),
    ("DELETE", "/v1/conversations/{conversation}/restrictions/{user}", Scope(Moderation)),
    ("POST", "/v1/conversations/{conversation}/signals", Scope(Send)),
    ("GET", "/v1/erasures", Scope(Erase)),
    ("GET", "/v1/erasures/{erasure}", Scope(Erase)),
    ("GET", "/v1/event-consumers", Scope(Read)),
    ("GET", "/v1/event-consumers/{name}", Scope(Read)),
    ("PUT", "/v1/event-consumers/{name}", Scope(Admin)),
    ("DELETE", "/v1/event-consumers/{name}", Scope(Admin)),
    ("PUT", "/v1/event-consumers/{name}/cursor", Scope(Read)),
    ("GET", "/v1/event-consumers/{name}/dead-letters", Scope(Read)),
    ("POST", "/v1/event-consumers/{name}/dead-letters/delete", Scope(Admin)),
    ("POST", "/v1/event-consumers/{name}/dead-letters/replay", Scope(Admin)),
    ("GET", "/v1/event-consumers/{name}/events", Scope(Read)),
    ("POST", "/v1/event-consumers/{name}/replay", Scope(Admin)),
    ("GET", "/v1/events", Scope(Read)),
    ("GET", "/v1/events/stream", Scope(Read)),
    ("GET", "/v1/export", Scope(Admin)),
    ("POST", "/v1/import", Scope(Admin)),
    ("POST", "/v1/invites/join", Scope(Users)),
    ("GET", "/v1/legal-holds", Scope(Erase)),
    ("POST", "/v1/messages", Scope(Send)),
    ("POST", "/v1/messages/batch", Scope(Send)),
    ("GET", "/v1/notifications/dead-letters", Scope(Read)),
    ("POST", "/v1/notifications/dead-letters/delete", Scope(Admin)),
    ("POST", "/v1/notifications/dead-letters/replay", Scope(Admin)),
    ("POST", "/v1/notifications/explain", Scope(Read)),
    ("GET", "/v1/notifications/policy", Scope(Read)),
    ("PUT", "/v1/notifications/policy", Scope(Admin)),
    ("DELETE", "/v1/notifications/policy", Scope(Admin)),
    ("GET", "/v1/notifications/policy/versions", Scope(Read)),
    ("GET", "/v1/notifications/stats", Scope(Read)),
    ("GET", "/v1/outbox-sources", Scope(Read)),
    ("GET", "/v1/popup-events", Scope(Popups)),
    ("POST", "/v1/popup-events", Scope(Popups)),
    ("GET", "/v1/popup-journeys", Scope(Popups)),
    ("GET", "/v1/popup-journeys/{journey}", Scope(Popups)),
    ("PUT", "/v1/popup-journeys/{journey}", Scope(Popups)),
    ("DELETE", "/v1/popup-journeys/{journey}", Scope(Popups)),
    ("GET", "/v1/popup-journeys/{journey}/counts", Scope(Popups)),
    ("GET", "/v1/popup-segments", Scope(Popups)),
    ("GET", "/v1/popup-segments/{segment}", Scope(Popups)),
    ("PUT", "/v1/popup-segments/{segment}", Scope(Popups)),
    ("DELETE", "/v1/popup-segments/{segment}", Scope(Popups)),
    ("GET", "/v1/popup-segments/{segment}/users/{user}", Scope(Popups)),
    ("GET", "/v1/popup-settings", Scope(Popups)),
    ("PUT", "/v1/popup-settings", Scope(Popups)),
    ("GET", "/v1/popups", Scope(Popups)),
    ("POST", "/v1/popups/decide", Scope(Popups)),
    ("POST", "/v1/popups/explain", Scope(Popups)),
    ("POST", "/v1/popups/trigger", Scope(Popups)),
    ("GET", "/v1/popups/{popup}", Scope(Popups)),
    ("PUT", "/v1/popups/{popup}", Scope(Popups)),
    ("DELETE", "/v1/popups/{popup}", Scope(Popups)),
    ("GET", "/v1/popups/{popup}/assignments", Scope(Popups)),
    ("GET", "/v1/popups/{popup}/counts", Scope(Popups)),
    ("GET", "/v1/popups/{popup}/lift", Scope(Popups)),
    ("PUT", "/v1/popups/{popup}/state", Scope(Popups)),
    ("GET", "/v1/popups/{popup}/versions", Scope(Popups)),
    ("GET", "/v1/presence", Scope(Read)),
    ("POST", "/v1/presence/query", Scope(Read)),
    ("GET", "/v1/push", Scope(Push)),
    ("POST", "/v1/push", Scope(Push)),
    ("GET", "/v1/push/{push}", Scope(Push)),
    ("DELETE", "/v1/push/{push}", Scope(Push)),
    ("GET", "/v1/push/{push}/deliveries", Scope(Push)),
    ("GET", "/v1/push/{push}/devices", Scope(Push)),
    ("GET", "/v1/reports", Scope(Moderation)),
    ("GET", "/v1/reports/{report}", Scope(Moderation)),
    ("PATCH", "/v1/reports/{report}", Scope(Moderation)),
    ("GET", "/v1/scheduled-messages", Scope(Send)),
    ("POST", "/v1/scheduled-messages", Scope(Send)),
    ("GET", "/v1/scheduled-messages/{scheduled}", Scope(Send)),
    ("PATCH", "/v1/scheduled-messages/{scheduled}", Scope(Send)),
    ("DELETE", "/v1/scheduled-messages/{scheduled}", Scope(Send)),
    ("GET", "/v1/stream", NoKey),
    ("POST", "/v1/stream/{stream}", NoKey),
    ("POST", "/v1/streams", Scope(Send)),
    ("POST", "/v1/streams/{conversation}/{seq}", Scope(Send)),
    ("POST", "/v1/streams/{conversation}/{seq}/end", Scope(Send)),
    ("GET", "/v1/users", Scope(Users)),
    ("PUT", "/v1/users", Scope(Users)),
    ("POST", "/v1/users/query", Scope(Users)),
    ("GET", "/v1/users/{user}", Scope(Users)),
    ("DELETE", "/v1/users/{user}", Scope(Erase)),
    ("GET", "/v1/users/{user}/blocks", Scope(Users)),
    ("PUT", "/v1/users/{user}/blocks/{other}", Scope(Users)),
    ("DELETE", "/v1/users/{user}/blocks/{other}", Scope(Users)),
    ("GET", "/v1/users/{user}/conversations", Scope(Read)),
    ("GET", "/v1/users/{user}/conversations/{conversation}", Scope(Read)),
    ("PATCH", "/v1/users/{user}/conversations/{conversation}", Scope(Users)),
    ("PUT", "/v1/users/{user}/conversations/{conversation}/mute", Scope(Users)),
    ("PUT", "/v1/users/{user}/conversations/{conversation}/read", Scope(Users)),
    ("GET", "/v1/users/{user}/desks", Scope(Read)),
    ("GET", "/v1/users/{user}/devices", Scope(Push)),
    ("DELETE", "/v1/users/{user}/devices/{device_id}", Scope(Push)),
    ("PUT", "/v1/users/{user}/devices/{device_id}/push_token", Scope(Push)),
    ("DELETE", "/v1/users/{user}/devices/{device_id}/push_token", Scope(Push)),
    ("PUT", "/v1/users/{user}/devices/{device_id}/tags", Scope(Push)),
    ("PUT", "/v1/users/{user}/do-not-disturb", Scope(Users)),
    ("GET", "/v1/users/{user}/export", Scope(Admin)),
    ("POST", "/v1/users/{user}/kick", Scope(Moderation)),
    ("PUT", "/v1/users/{user}/locale", Scope(Users)),
    ("GET", "/v1/users/{user}/mentions", Scope(Read)),
    ("GET", "/v1/users/{user}/notification-preferences", Scope(Users)),
    ("PUT", "/v1/users/{user}/notification-preferences", Scope(Users)),
    ("GET", "/v1/users/{user}/push_tokens", Scope(Push)),
    ("POST", "/v1/users/{user}/read-all", Scope(Users)),
    ("PUT", "/v1/users/{user}/receipts", Scope(Users)),
    ("POST", "/v1/users/{user}/revoke", Scope(Moderation)),
    ("POST", "/v1/users/{user}/suspend", Scope(Moderation)),
    ("GET", "/v1/users/{user}/sync", Scope(Read)),
    ("GET", "/v1/users/{user}/unread", Scope(Read)),
    ("POST", "/v1/users/{user}/unsuspend", Scope(Moderation)),
];

/// Whom an operation is for; `None`: there is no such operation.
pub fn permission(operation: OperationName<'_>) -> Option<Permission> {
    find(operation).map(|(_, _, permission)| *permission)
}

fn find(operation: OperationName<'_>) -> Option<&'static (&'static str, &'static str, Permission)> {
    // The router answers HEAD as it answers GET.
    let method = if operation.method == "HEAD" { "GET" } else { operation.method };
    PERMISSIONS.iter().find(|(known, path, _)| *path == operation.path && *known == method)
}

/// Checks that a key with these scopes may call the operation. An operation that the table lacks is refused to every key.
///
/// # Errors
/// `forbidden`, with the scope that is missing.
pub(crate) fn check(scopes: &[KeyScope], operation: OperationName<'_>) -> Result<(), Refusal> {
    match permission(operation) {
        Some(AnyKey | Open) => Ok(()),
        Some(Scope(needed)) if scopes.contains(&needed) => Ok(()),
        Some(Scope(needed)) => {
            let why = format!("scope: the API key does not allow this; it needs {:?}", needed.name());
            Err(Refusal::new(ErrorCode::Forbidden, why))
        }
        Some(NoKey) | None => Err(Refusal::new(ErrorCode::Forbidden, "this operation is not for API keys")),
    }
}

/// The operation, if the audit log has an entry for it: it needs `admin`, and it changes what is stored or hands out all that there is of
/// a person. The changes of keys write their entries themselves.
pub(crate) fn audited(method: &str, path: &str) -> Option<OperationName<'static>> {
    const NOTHING_STORED: &str = "/v1/admin/presence/compare";
    const OF_A_PERSON: &str = "/v1/users/{user}/export";
    // The router answers HEAD as it answers GET.
    let method = if method == "HEAD" { "GET" } else { method };
    let mut operations =
        PERMISSIONS.iter().filter(|(known, _, permission)| *permission == Scope(Admin) && *known == method);
    let (method, template, _) = operations.find(|(_, template, _)| is_of_template(path, template))?;
    let changes = *method != "GET" && !template.starts_with("/v1/admin/keys") && *template != NOTHING_STORED;
    let is_audited = changes || *template == OF_A_PERSON;
    is_audited.then_some(OperationName { method, path: template })
}

/// Whether a path is one of those that a template with parameters stands for.
fn is_of_template(path: &str, template: &str) -> bool {
    let (mut parts, mut names) = (path.split('/'), template.split('/'));
    loop {
        match (parts.next(), names.next()) {
            (None, None) => return true,
            (Some(part), Some(name)) if part == name || name.starts_with('{') => {}
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// They are found by the path of the request.
    #[test]
    fn audited_operations_are_found_by_their_paths() {
        let found = |method: &str, path: &str| audited(method, path).map(|operation| operation.path);
        for (method, path, operation) in [
            ("PUT", "/v1/notifications/policy", Some("/v1/notifications/policy")),
            ("PUT", "/v1/event-consumers/search", Some("/v1/event-consumers/{name}")),
            ("POST", "/v1/event-consumers/search/replay", Some("/v1/event-consumers/{name}/replay")),
            ("POST", "/v1/event-consumers/search/replay/x", None),
            ("GET", "/v1/event-consumers/search", None),
            ("GET", "/v1/users/ada/export", Some("/v1/users/{user}/export")),
            ("GET", "/v1/export", None),
            ("PUT", "/v1/event-consumers", None),
            ("DELETE", "/v1/admin/keys/1", None),
            ("POST", "/v1/admin/presence/compare", None),
            ("PUT", "/v1/users", None),
        ] {
            assert_eq!(found(method, path), operation, "{method} {path}");
        }
    }

    #[test]
    fn an_operation_that_the_table_lacks_is_refused() {
        let check =
            |method, path| check(&KeyScope::ALL, OperationName { method, path }).map_err(|refusal| refusal.code);
        assert_eq!(check("HEAD", "/v1/users"), Ok(()));
        assert_eq!(check("DELETE", "/v1/users"), Err(ErrorCode::Forbidden));
        assert_eq!(check("GET", "/v1/stream"), Err(ErrorCode::Forbidden));
    }
}
