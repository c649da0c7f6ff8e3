//! Each committed row of an outbox is stored once, in the order of its conversation, and none that was rolled back, whatever is killed
//! meanwhile. `OUTBOX_ROWS`, `OUTBOX_KILLS` and `OUTBOX_SEED` make it larger: 100,000 rows and 10 kills take minutes.

use crate::{
    app_database::{AppConnection, AppDatabase, Kind, is_deadlock},
    postgres::PostgresServer,
    redis::{RedisServer, wait_until},
    support::*,
    the_outbox_is_followed::messages,
};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::{BTreeMap, HashMap},
    process::Command,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tidings_protocol::http::UserUpsert;

const WRITERS: usize = 16;
const GROUPS: usize = 60;
const USERS: usize = 12;
/// Of a transaction.
const MESSAGES_MAX: usize = 6;
const ROLLED_BACK: f64 = 0.3;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().unwrap())
}

/// When a message's transaction began and had committed, by a count of such moments.
#[derive(Clone, Copy)]
struct Moments {
    began: u64,
    committed: u64,
}

/// What the writers did.
#[derive(Default)]
struct Written {
    clock: AtomicU64,
    /// By text: the conversation, and when.
    committed: Mutex<HashMap<String, (String, Moments)>>,
    rolled_back: Mutex<Vec<String>>,
    deadlocks: AtomicU64,
    rows: AtomicU64,
}

impl Written {
    fn tick(&self) -> u64 {
        self.clock.fetch_add(1, SeqCst)
    }

    /// Transactions until there are enough committed rows.
    fn write(&self, mut app: AppConnection, writer: usize, seed: u64, rows: u64) {
        let mut random = StdRng::seed_from_u64(seed * 1_000 + writer as u64);
        let mut number = 0;
        while self.rows.load(SeqCst) < rows {
            let mut sends: Vec<(String, Value, String)> = Vec::new();
            for _ in 0..random.random_range(1..=MESSAGES_MAX) {
                number += 1;
                let text = format!("w{writer}-{number}");
                let user = |n: usize| format!("user{n:02}");
                let one = random.random_range(0..USERS);
                let (conversation, mut request) = if random.random_bool(0.2) {
                    let other = (one + random.random_range(1..USERS)) % USERS;
                    (format!("{}~{}", user(one.min(other)), user(one.max(other))), json!({ "to": user(other) }))
                } else {
                    // A few of them have most of the messages.
                    let group = format!("g{}", (GROUPS as f64 * random.random::<f64>().powi(3)) as usize);
                    (group.clone(), json!({ "conversation": group }))
                };
                request["from"] = user(one).into();
                request["body"] = json!({ "text": text });
                sends.push((conversation, request, text));
            }
            let at_once = random.random_bool(0.5);
            let keeps = !random.random_bool(ROLLED_BACK);
            let began = self.tick();
            app.begin();
            let conversations: Vec<&str> = sends.iter().map(|(conversation, ..)| conversation.as_str()).collect();
            let sent = if at_once {
                app.call("tidings_send_all", &sends.iter().map(|(_, request, _)| request.clone()).collect())
            } else {
                app.lock(&conversations).and_then(|locked| {
                    sends.iter().try_for_each(|(_, request, _)| app.call("tidings_send", request).map(drop))?;
                    Ok(locked)
                })
            };
            if let Err(error) = &sent {
                assert!(is_deadlock(error), "{error}");
                self.deadlocks.fetch_add(1, SeqCst);
            }
            let is_committed = sent.is_ok() && keeps;
            app.run(if is_committed { "COMMIT" } else { "ROLLBACK" });
            let moments = Moments { began, committed: self.tick() };
            if is_committed {
                self.rows.fetch_add(sends.len() as u64, SeqCst);
                let rows = sends.into_iter().map(|(conversation, _, text)| (text, (conversation, moments)));
                self.committed.lock().unwrap().extend(rows);
            } else {
                self.rolled_back.lock().unwrap().extend(sends.into_iter().map(|(.., text)| text));
            }
        }
    }
}

/// The nodes that may follow. One is killed at a time.
pub(crate) struct Nodes {
    commands: Vec<Box<dyn Fn() -> Command>>,
    pub(crate) running: Vec<Server>,
}

impl Nodes {
    pub(crate) fn start(commands: Vec<Box<dyn Fn() -> Command>>) -> Nodes {
        let running = commands.iter().map(|command| Server::start(&mut command())).collect();
        Nodes { commands, running }
    }

    /// Kills the node that leads, and starts it again.
    pub(crate) fn kill_leader(&mut self) {
        let is_leader = |server: &Server| {
            let metrics = server.http().exchange("GET", "/metrics", b"").unwrap();
            self.running.len() == 1 || text(&metrics.body).lines().any(|line| line == "tidings_cluster_leader 1")
        };
        let mut leader = None;
        wait_until("a node leads", || {
            leader = self.running.iter().position(is_leader);
            leader.is_some()
        });
        let leader = leader.unwrap();
        self.running[leader].signal("KILL");
        self.running[leader].wait();
        self.running[leader] = Server::start(&mut self.commands[leader]());
    }
}

fn check(kind: Kind, commands: impl FnOnce(&str) -> Vec<Box<dyn Fn() -> Command>>) {
    let (rows, kills, seed) = (number("OUTBOX_ROWS", 2_000), number("OUTBOX_KILLS", 2), number("OUTBOX_SEED", 7));
    let database = AppDatabase::new(kind);
    let mut nodes = Nodes::start(commands(&database.settings("shop")));
    let names: Vec<String> = (0..USERS).map(|n| format!("user{n:02}")).collect();
    wait_until("the node is ready", || nodes.running[0].http().is_ready());
    let mut http = nodes.running[0].http();
    http.upsert_users(names.iter().map(|id| UserUpsert { id: id.clone(), ..UserUpsert::default() }).collect()).unwrap();
    for n in 0..GROUPS {
        let group = json!({ "id": format!("g{n}"), "kind": "group", "owner": names[0], "members": names[1..] });
        http.create_conversation(&serde_json::from_value(group).unwrap()).unwrap();
    }

    let written = Written::default();
    let began = Instant::now();
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (written, app) = (&written, database.connect());
            scope.spawn(move || written.write(app, writer, seed, rows));
        }
        let mut app = database.connect();
        for kill in 1..=kills {
            let after = rows * kill / (kills + 1);
            let deadline = Instant::now() + Duration::from_secs(60 + rows / 100);
            while app.count("state = 'done'") < after {
                assert!(Instant::now() < deadline, "seed {seed}: {} of {after} rows", app.count("state = 'done'"));
                std::thread::sleep(Duration::from_millis(5));
            }
            nodes.kill_leader();
        }
    });
    let wrote = began.elapsed();
    let mut app = database.connect();
    let deadline = Instant::now() + Duration::from_secs(60 + rows / 100);
    while app.count("state = 'waiting'") > 0 {
        assert!(Instant::now() < deadline, "seed {seed}: {} rows wait", app.count("state = 'waiting'"));
        std::thread::sleep(Duration::from_millis(5));
    }
    let stored = began.elapsed();

    let committed = written.committed.into_inner().unwrap();
    let rolled_back = written.rolled_back.into_inner().unwrap();
    assert_eq!(app.count("state = 'done'") as usize, committed.len(), "seed {seed}");
    let mut expected: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    committed.iter().for_each(|(text, (conversation, _))| expected.entry(conversation).or_default().push(text));
    let mut stored_rows = 0;
    let results = app.run("SELECT request, result FROM tidings_outbox");
    let seqs: HashMap<String, u64> = results.into_iter().map(|row| seq_of_row(&row)).collect();
    for (conversation, mut texts) in expected {
        let found = messages(&nodes.running[0], conversation);
        let mut latest_begin = 0;
        for (seq, text) in &found {
            let (_, moments) = committed.get(text).unwrap_or_else(|| panic!("seed {seed}: {text} was rolled back"));
            assert!(
                moments.committed > latest_begin,
                "seed {seed}: {text} had committed before the one before it began"
            );
            latest_begin = latest_begin.max(moments.began);
            assert_eq!(seqs[text], *seq, "seed {seed}: the row of {text} names another message");
        }
        // Of one writer, in the writer's own order.
        let mut last: HashMap<&str, u32> = HashMap::new();
        for (_, text) in &found {
            let (writer, number) = text.split_once('-').unwrap();
            let number = number.parse().unwrap();
            assert!(last.insert(writer, number).is_none_or(|before| before < number), "seed {seed}: {text} is late");
        }
        stored_rows += found.len();
        let mut found: Vec<&str> = found.iter().map(|(_, text)| text.as_str()).collect();
        found.sort_unstable();
        texts.sort_unstable();
        assert_eq!(found, texts, "seed {seed}: {conversation}");
    }
    println!(
        "{kind:?}, {} nodes, seed {seed}: {stored_rows} rows committed and stored once, {} rolled back, {} deadlocks, {kills} kills; \
         written in {wrote:.1?}, stored in {stored:.1?}",
        nodes.running.len(),
        rolled_back.len(),
        written.deadlocks.into_inner(),
    );
}

/// The text of a row's message, and the `seq` that was written back.
fn seq_of_row(row: &[Option<String>]) -> (String, u64) {
    let json = |n: usize| serde_json::from_str::<Value>(row[n].as_deref().unwrap()).unwrap();
    (json(0)["body"]["text"].as_str().unwrap().to_owned(), json(1)["seq"].as_u64().unwrap())
}

fn embedded(settings: &str) -> Vec<Box<dyn Fn() -> Command>> {
    let folder = Folder::new();
    std::fs::write(folder.path().join("tidings.toml"), settings).unwrap();
    vec![Box::new(move || {
        let mut command = folder.program(&["serve"]);
        command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY);
        command
    })]
}

/// Two nodes on a database of their own, in the file's settings.
pub(crate) fn two_nodes(settings: &str) -> Vec<Box<dyn Fn() -> Command>> {
    some_nodes(&["first", "second"], 2_000, settings)
}

/// Nodes with these names and this lease, in milliseconds.
pub(crate) fn some_nodes(names: &[&'static str], lease_ms: u64, settings: &str) -> Vec<Box<dyn Fn() -> Command>> {
    let redis = std::rc::Rc::new(RedisServer::start(&[]));
    let postgres = PostgresServer::shared();
    let url = postgres.database();
    let node = |name: &&'static str| -> Box<dyn Fn() -> Command> {
        let name = *name;
        let (folder, redis, postgres, url) = (Folder::new(), redis.clone(), postgres.clone(), url.clone());
        std::fs::write(folder.path().join("tidings.toml"), settings).unwrap();
        Box::new(move || {
            // It runs as long as a node may be started.
            let _ = &postgres;
            let mut command = folder.program(&["serve"]);
            command.env("TIDINGS_API_KEY", API_KEY).env("TIDINGS_TOKEN_KEY", TOKEN_KEY).env("TIDINGS_STORE_URL", &url);
            command.env("TIDINGS_CLUSTER_NAME", name).env("TIDINGS_CLUSTER_REDIS", redis.url());
            command
                .env("TIDINGS_CLUSTER_SECRET", "the secret of the nodes")
                .env("TIDINGS_CLUSTER_LEASE_MS", lease_ms.to_string());
            command.env("TIDINGS_LINK_LISTEN", "127.0.0.1:0");
            command
        })
    };
    names.iter().map(node).collect()
}

#[test]
fn of_postgres_by_a_server_that_is_killed() {
    check(Kind::Postgres, embedded);
}

#[test]
fn of_mariadb_by_a_server_that_is_killed() {
    check(Kind::Mariadb, embedded);
}

#[test]
fn of_postgres_by_leaders_that_are_killed() {
    check(Kind::Postgres, two_nodes);
}

#[test]
fn of_mariadb_by_leaders_that_are_killed() {
    check(Kind::Mariadb, two_nodes);
}
