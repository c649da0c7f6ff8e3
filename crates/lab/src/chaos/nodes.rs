//! Requests to the nodes of a cluster, each of which may be away.

use super::guests::GuestConfig;
use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tidings_client::{ClientError, http::HttpClient};

/// A request without an answer within this is repeated at another node with the same id.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(3);
const RETRY_INTERVAL: Duration = Duration::from_millis(200);

pub(super) struct Nodes<'a> {
    pub(super) all: Vec<HttpClient>,
    stop: &'a AtomicBool,
    patience: Duration,
}

impl<'a> Nodes<'a> {
    pub(super) fn of(config: &GuestConfig, stop: &'a AtomicBool, patience: Duration) -> Self {
        let mut all: Vec<HttpClient> = (0..config.nodes.len()).map(|node| config.http(node)).collect();
        all.iter_mut().for_each(|http| http.set_timeout(REQUEST_TIMEOUT));
        Nodes { all, stop, patience }
    }

    /// Asks every node in turn, beginning with one, until a node accepts; answers which one that was. `retried` hears why each
    /// attempt failed that another follows.
    pub(super) fn until_accepted<T>(
        &mut self,
        first: usize,
        call: impl Fn(&mut HttpClient) -> Result<T, ClientError>,
        mut retried: impl FnMut(&str),
    ) -> Result<(usize, T), String> {
        let count = self.all.len();
        let mut stopping_since = None;
        for node in (0..count).cycle().skip(first % count) {
            let failure = match call(&mut self.all[node]) {
                Ok(accepted) => return Ok((node, accepted)),
                Err(ClientError::Refused { problem, .. }) if problem.retry => problem.code.to_string(),
                Err(ClientError::Io(_)) => "no answer".to_owned(),
                Err(error) => return Err(format!("refused for good: {error}")),
            };
            retried(&failure);
            // During a fault there may be no node that accepts: patience begins when the step ends.
            if self.stop.load(Ordering::Relaxed)
                && stopping_since.get_or_insert_with(Instant::now).elapsed() > self.patience
            {
                return Err(format!("no node accepted it in time: {failure}"));
            }
            std::thread::sleep(RETRY_INTERVAL);
        }
        Err("there is no node".into())
    }
}
