//! Creates the participants on the server: users, conversations, tokens and wishes.

use super::participants::{Participants, device_name};
use crate::{
    LabError,
    offline_push::{fake_providers::FakeProviders, register},
    process,
    server::Target,
    setup,
};
use serde_json::json;
use tidings_client::http::{HttpClient, path_segment};

/// Connections that set up at the same time.
const CONNECTIONS: usize = 8;

/// Creates everything. Requests that do not depend on each other go out on several connections.
pub(crate) fn set_up(target: &Target, participants: &Participants, providers: &FakeProviders) -> Result<(), LabError> {
    let ids: Vec<String> = participants.users.iter().map(|user| user.id.clone()).collect();
    setup::create_users(&mut target.http(), &ids)?;
    in_parts(target, participants.conversations.len(), |http, number| {
        let conversation = &participants.conversations[number];
        let members: Vec<String> = conversation.members.iter().map(|member| ids[*member].clone()).collect();
        if conversation.is_group {
            setup::create_group(http, &conversation.id, &members)?
        } else {
            setup::create_direct(http, &members[0], &members[1])?
        };
        for member in &conversation.muted_by {
            let (user, conversation) = (path_segment(&ids[*member]), path_segment(&conversation.id));
            let path = format!("/v1/users/{user}/conversations/{conversation}/mute");
            http.put::<serde_json::Value>(&path, &json!({ "muted": true }))?;
        }
        Ok(())
    })?;
    in_parts(target, participants.users.len(), |http, number| {
        let user = &participants.users[number];
        for (place, provider) in user.devices.iter().enumerate() {
            register(http, providers, *provider, &user.id, &device_name(place))?;
        }
        if user.undisturbed {
            // Two windows of an hour each would leave a gap; one from a minute to the minute before has all day but that minute.
            let window = json!({ "window": quiet_window() });
            let path = format!("/v1/users/{}/do-not-disturb", path_segment(&user.id));
            http.put::<serde_json::Value>(&path, &window)?;
        }
        Ok(())
    })
}

/// A daily window that covers the next hours: it ends twelve hours from now and begins twelve hours before.
fn quiet_window() -> serde_json::Value {
    let minutes = process::unix_ms() / 60_000;
    let clock = |minutes: u64| format!("{:02}:{:02}", minutes / 60 % 24, minutes % 60);
    json!({ "start": clock(minutes + 12 * 60 + 1), "end": clock(minutes + 12 * 60), "time_zone": "UTC" })
}

/// Does something for each of `count` numbers, on several connections.
fn in_parts(
    target: &Target,
    count: usize,
    work: impl Fn(&mut HttpClient, usize) -> Result<(), LabError> + Sync,
) -> Result<(), LabError> {
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..CONNECTIONS)
            .map(|first| {
                let work = &work;
                let mut http = target.http();
                scope.spawn(move || (first..count).step_by(CONNECTIONS).try_for_each(|number| work(&mut http, number)))
            })
            .collect();
        let ended = |_| LabError::Worker("a thread that sets up has ended".into());
        workers.into_iter().try_for_each(|worker| worker.join().unwrap_or_else(|panic| Err(ended(panic))))
    })
}
