//! How often each channel was tried, and what came of it, is counted by the hour, added up when asked, and survives a restart.

use crate::provider_world::*;
use std::{sync::Arc, time::Duration};
use tidings_domain::{
    chat_rows::notification_counts_of,
    providers::{ProviderAnswer, Retry},
    store::{RowSpace, RowStore},
};
use tidings_protocol::{error::ErrorCode, http::*};
use tidings_testkit::MemoryStore;

const HOUR_MS: u64 = 60 * 60 * 1_000;

impl World {
    fn stats(&self, from: Option<u64>, to: Option<u64>, channel: Channel) -> Option<ChannelStats> {
        let stats = self.notifications.notification_stats(from, to).unwrap();
        stats.channels.into_iter().find(|stats| stats.channel == channel)
    }
}

fn refused(retry: Retry) -> ProviderAnswer {
    ProviderAnswer::Refused { code: "no".into(), retry }
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_and_what_came_of_them_add_up_and_survive_a_restart() {
    let store: Arc<MemoryStore> = Arc::default();
    let answers = vec![refused(Retry::After(None)), ProviderAnswer::Accepted { id: None }, refused(Retry::Never)];
    let minute = Duration::from_secs(60);
    let setup = Setup { store: store.clone(), answers, backoff: minute, webhook: Some(false), ..Setup::default() };
    let before = world(setup).with_room(&["ada", "ben"]).await;
    before.say("one").await;
    before.until_counted("retried", 1).await;
    before.clock.advance(minute);
    before.until_counted("accepted", 1).await;
    before.say("two").await;
    before.until_counted("dead_refused", 1).await;
    before.webhook.recv_timeout(PATIENCE).unwrap();
    before.webhook.recv_timeout(PATIENCE).unwrap();
    before.stop();

    let after = world(Setup { store: store.clone(), ..Setup::default() });
    after.clock.set(NOON + 2 * HOUR_MS);
    after.say("three").await;
    after.until_counted("accepted", 1).await;
    let stats = after.stats(None, None, Channel::Fcm).unwrap();
    assert_eq!((stats.attempted, stats.accepted, stats.retried, stats.refused), (4, 2, 1, 1));
    assert_eq!(stats.attempted, stats.accepted + stats.retried + stats.refused + stats.token_gone);
    // One took a minute, one no time.
    assert_eq!(stats.median_ms, Some(0));
    assert!(stats.p99_ms.unwrap().abs_diff(60_000) <= 60_000 / 16, "{stats:?}");
    let webhook = after.stats(None, None, Channel::Webhook).unwrap();
    assert_eq!((webhook.attempted, webhook.accepted), (2, 2));
    assert_eq!(after.stats(None, None, Channel::Apns), None);

    // By the hour.
    let first = after.notifications.notification_stats(Some(NOON), Some(NOON + HOUR_MS - 1)).unwrap();
    assert_eq!((first.from, first.to), (NOON, NOON + HOUR_MS));
    assert_eq!(first.channels.iter().find(|stats| stats.channel == Channel::Fcm).unwrap().accepted, 1);
    assert_eq!(after.stats(Some(NOON + HOUR_MS), Some(NOON + HOUR_MS), Channel::Fcm), None);
    assert_eq!(after.stats(Some(NOON + 2 * HOUR_MS), None, Channel::Fcm).unwrap().accepted, 1);
    let refusal = after.notifications.notification_stats(Some(NOON + 1), Some(NOON)).unwrap_err();
    assert_eq!(refusal.code, ErrorCode::InvalidField);

    // After their days they go.
    after.clock.set(NOON + 6 * 24 * HOUR_MS);
    assert_eq!(after.notifications.notification_stats(Some(0), None).unwrap().channels, []);
    let (from, to) = notification_counts_of(0, u64::MAX);
    assert_eq!(store.rows(RowSpace::Chat, &from, &to, 100).unwrap(), []);
    after.stop();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_is_kept_for_each_hour_and_channel_and_not_for_each_message() {
    let store: Arc<MemoryStore> = Arc::default();
    let world = world(Setup { store: store.clone(), ..Setup::default() }).with_room(&["ada", "ben"]).await;
    for hour in 0..3 {
        world.clock.set(NOON + hour * HOUR_MS);
        for _ in 0..50 {
            world.say("hello").await;
        }
        // Of several messages that wait at the same time only the newest is sent.
        let settled = async {
            while world.count("accepted") + world.count("superseded") < (hour + 1) * 50 {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, settled).await.expect("all are settled");
        let stats = world.stats(None, None, Channel::Fcm).unwrap();
        assert_eq!(stats.accepted + stats.superseded, (hour + 1) * 50);
    }
    let (from, to) = notification_counts_of(0, u64::MAX);
    assert_eq!(store.rows(RowSpace::Chat, &from, &to, 1_000).unwrap().len(), 3);
    world.stop();
}
