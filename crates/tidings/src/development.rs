//! Development mode: it makes keys, users, a group and a popup at the start, so that the first message takes a minute.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{
    fs,
    io::{ErrorKind, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tidings_api::chat_page::{ChatPage, DemoUser};
use tidings_domain::model::Actor;
use tidings_engine::Engine;
use tidings_popups::Precondition;
use tidings_protocol::{
    error::{ErrorCode, Refusal},
    http::{ConversationKind, CreateConversation, UserUpsert},
};

/// The demo users, and the group that they are in.
pub(crate) const USERS: [(&str, &str); 3] = [("alice", "Alice"), ("bob", "Bob"), ("carol", "Carol")];
pub(crate) const GROUP: &str = "demo";

/// Answers on the chat page with messages that grow; the page speaks for it.
const ASSISTANT: (&str, &str) = ("assistant", "Assistant");

/// The demo popup: shown at `home`, to each user every ten seconds at most.
const POPUP: &str = r#"{"name": "Demo", "state": "live", "placements": ["home"], "caps": {"gap_s": 10},
    "variants": [{"id": "a", "content": {"title": "Hello", "text": "Asked again within ten seconds: 204, and when to come back."}}]}"#;

/// What greets each user on the chat page, once.
const WELCOME: &str = r#"{"name": "Welcome", "state": "live", "placements": ["chat"], "caps": {"total": 1},
    "variants": [{"id": "a", "content": {"title": "Welcome to Tidings",
        "text": "This is a popup: decided by the server for this user, and shown once, on whichever device comes first.",
        "buttons": [{"id": "ask", "label": "Ask the assistant", "action": {"type": "app", "name": "assistant"}},
                    {"id": "later", "label": "Not now", "action": {"type": "dismiss"}}]}}]}"#;

/// Random keys, kept beside the data so that tokens stay valid across a restart.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Keys {
    pub(crate) api_key: String,
    pub(crate) token_key: String,
}

impl Keys {
    fn file(data_dir: &Path) -> PathBuf {
        data_dir.join("development-keys.toml")
    }

    pub(crate) fn read(data_dir: &Path) -> Result<Option<Keys>> {
        let file = Keys::file(data_dir);
        match fs::read_to_string(&file) {
            Ok(text) => Ok(Some(toml::from_str(&text).with_context(|| format!("reading {}", file.display()))?)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("reading {}", file.display())),
        }
    }

    /// The keys of this folder, generated on first use. Only the owner of the file may read it.
    pub(crate) fn read_or_make(data_dir: &Path) -> Result<Keys> {
        if let Some(keys) = Keys::read(data_dir)? {
            return Ok(keys);
        }
        let random = || format!("{:032x}{:032x}", rand::random::<u128>(), rand::random::<u128>());
        let keys = Keys { api_key: format!("dev-{}", &random()[..32]), token_key: random() };
        fs::create_dir_all(data_dir).with_context(|| format!("making {}", data_dir.display()))?;
        let file = Keys::file(data_dir);
        let mut out = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&file)
            .with_context(|| format!("making {}", file.display()))?;
        out.write_all(toml::to_string(&keys)?.as_bytes()).with_context(|| format!("writing {}", file.display()))?;
        Ok(keys)
    }
}

/// Creates the demo users, their group and the demo popups, unless they exist.
pub(crate) async fn populate(engine: &Arc<Engine>) -> Result<()> {
    let users = [USERS[0], USERS[1], USERS[2], ASSISTANT].map(|(id, name)| UserUpsert {
        id: id.into(),
        name: Some(name.into()),
        ..UserUpsert::default()
    });
    engine.upsert_users(users.to_vec()).await?;
    let group = CreateConversation {
        id: Some(GROUP.into()),
        kind: ConversationKind::Group,
        name: Some("Demo".into()),
        avatar: None,
        attributes: None,
        owner: Some(USERS[0].0.into()),
        members: USERS.iter().map(|(id, _)| (*id).into()).collect(),
        receipts: None,
        history: None,
        mention_all: None,
        blocks: None,
        reactions: None,
        posting: None,
        slow_mode_s: None,
        join_requests: None,
        expires: None,
    };
    engine.create_conversation(&Actor::App, group).await?;
    let of_popups = engine.clone();
    tokio::task::spawn_blocking(move || populate_popups(&of_popups)).await??;
    Ok(())
}

fn populate_popups(engine: &Engine) -> Result<(), Refusal> {
    // Popups are read from the store by a thread of their own.
    engine.popups.flush()?;
    for (id, popup) in [(GROUP, POPUP), ("welcome", WELCOME)] {
        match engine.popups.put(id, popup.as_bytes(), Some("development mode"), Precondition::Absent) {
            // The popup exists from an earlier start, and may have been changed since.
            Err(refusal) if refusal.code == ErrorCode::Conflict => {}
            put => drop(put?),
        }
    }
    Ok(())
}

/// How long a token of the chat page is good; the page fetches another before.
const TOKEN_LIFETIME: Duration = Duration::from_secs(60 * 60);

/// The chat page, which acts as the demo users.
pub(crate) fn chat_page(keys: &Keys) -> ChatPage {
    let user = |(id, name): (&str, &str)| DemoUser { id: id.into(), name: name.into() };
    let key = keys.token_key.clone();
    ChatPage::new(
        USERS.map(user).to_vec(),
        user(ASSISTANT),
        Box::new(move |user| tidings_client::token::sign(&key, user, TOKEN_LIFETIME)),
    )
}

/// The text that warns of development mode and shows what to try first.
pub(crate) fn announce(address: SocketAddr, data_dir: &Path, keys: &Keys) -> String {
    let program = std::env::current_exe().map_or("tidings".into(), |path| for_a_shell(&path));
    // Absolute: the user may paste the commands in a terminal that is in another folder.
    let folder = for_a_shell(&std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.into()));
    let address = as_reached(address);
    let key = &keys.api_key;
    format!(
        r#"
  DEVELOPMENT MODE: made-up keys, demo users (alice, bob, carol), a demo group and a demo popup. Not for production.

  Open http://{address}/ in two browser windows: they are two of the users, who talk to each other.
  From terminals, the same:

  1. Watch what bob receives, in a second terminal:
     {program} listen bob --data-dir {folder}

  2. Send him a message, in a third:
     curl -s http://{address}/v1/messages -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{{"conversation":"demo","from":"alice","body":{{"text":"hello"}}}}'

  3. Get a token for alice, as your own servers would sign it for her app:
     {program} token alice --data-dir {folder}

  4. Ask which popup suits bob on the page "home":
     curl -si http://{address}/v1/popups/decide -H 'Authorization: Bearer {key}' -H 'Content-Type: application/json' -d '{{"user":"bob","placement":"home"}}'

  For the commands of README.md and docs/, which take the key from the shell:
     export TIDINGS_API_KEY={key}

  The console, with plots, users, conversations and popups (it asks for that key): http://{address}/console
  The API to browse (under Authorize it takes that key): http://{address}/docs
"#
    )
}

/// A server that listens at every address, as in a container, is reached from this machine at its own.
fn as_reached(listening: SocketAddr) -> SocketAddr {
    let ip = match listening.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, listening.port())
}

/// A path, quoted for a shell if need be.
fn for_a_shell(path: &Path) -> String {
    let path = path.display().to_string();
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-+".contains(&byte);
    if path.bytes().all(is_plain) { path } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_listens_everywhere_prints_an_address_that_a_browser_opens() {
        let keys = Keys { api_key: "key".into(), token_key: "key".into() };
        for (listening, open) in [
            ("0.0.0.0:8080", "http://127.0.0.1:8080/"),
            ("[::]:8080", "http://[::1]:8080/"),
            ("10.0.0.1:8080", "http://10.0.0.1:8080/"),
        ] {
            let said = announce(listening.parse().expect("an address"), Path::new("data"), &keys);
            assert!(said.contains(&format!("Open {open} in two")), "{said}");
        }
    }
}
