//! Kills of a server at random moments, some of them while it opens.

use crate::{LabError, server::OwnServer};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use std::{
    ops::Range,
    time::{Duration, Instant},
};

/// How long a server runs with its clients before it is killed.
const UPTIME_MS: Range<u64> = 20..600;
/// How long a server runs that is killed before it is ready.
const OPENING_UPTIME_MS: Range<u64> = 1..60;
/// How long clients may repeat what was not answered after the last kill.
const SETTLE: Duration = Duration::from_secs(1);

/// So many kills, at the moments of a seed.
pub(crate) struct Kills {
    random: StdRng,
    count: usize,
    killed: usize,
    /// How long clients take to come back to a server that is ready.
    clients_back: Duration,
}

impl Kills {
    pub(crate) fn new(count: usize, seed: u64, clients_back: Duration) -> Self {
        Kills { random: StdRng::seed_from_u64(seed), count, killed: 0, clients_back }
    }

    /// Lets the server run, kills it and starts it again, until all kills are done. `started`: what follows each start, with the time of the
    /// kill.
    pub(crate) fn run(
        mut self,
        server: &mut OwnServer,
        mut started: impl FnMut(&OwnServer, Instant, &mut StdRng) -> Result<(), LabError>,
    ) -> Result<(), LabError> {
        while self.killed < self.count {
            let uptime = self.clients_back + Duration::from_millis(self.random.random_range(UPTIME_MS));
            std::thread::sleep(uptime);
            // Taken before the signal, which favours the server.
            let at = Instant::now();
            server.kill()?;
            // Some are killed again while they open: a kill during recovery must lose nothing either.
            while self.random.random_ratio(1, 5) && self.killed + 1 < self.count {
                server.spawn()?;
                std::thread::sleep(Duration::from_millis(self.random.random_range(OPENING_UPTIME_MS)));
                server.kill()?;
                self.killed += 1;
            }
            server.launch()?;
            self.killed += 1;
            eprintln!("{} of {} kills, the last server lived {} ms", self.killed, self.count, uptime.as_millis());
            started(server, at, &mut self.random)?;
        }
        std::thread::sleep(SETTLE);
        Ok(())
    }
}
