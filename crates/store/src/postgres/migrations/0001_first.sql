-- The first form of the database.
-- needs program: 1
--
-- Columns are what the database has to look at; what it only carries (names, bodies) is bytes in the
-- row form of the embedded store. Every table that grows has the column that it can be spread by in
-- front of its key: the conversation, the user or the sender.

-- One row: the numbers given out. Whoever holds its lock is the one that commits entries, so positions
-- become visible in their order.
CREATE TABLE counters (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    users bigint NOT NULL DEFAULT 0,
    conversations bigint NOT NULL DEFAULT 0,
    position bigint NOT NULL DEFAULT 0,
    outbox_done bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 10);
INSERT INTO counters DEFAULT VALUES;

-- One row: what this history is.
CREATE TABLE history (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    epoch bigint NOT NULL,
    -- The days of entries that one part of the timeline holds.
    part_days integer NOT NULL CHECK (part_days > 0),
    -- First results of entries that are gone were removed up to this position.
    dedupe_swept bigint NOT NULL DEFAULT 0
);

CREATE TABLE users (
    no bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    card bytea NOT NULL
);

CREATE TABLE last_seen (
    user_no bigint PRIMARY KEY,
    at bigint NOT NULL
) WITH (fillfactor = 80);

CREATE TABLE conversations (
    no bigint PRIMARY KEY,
    id text COLLATE "C" NOT NULL UNIQUE,
    card bytea NOT NULL
);

-- The newest end of each timeline. Its row lock is the conversation's: who changes the timeline, the
-- members or the card holds it. Narrow and loosely filled, for it changes with every message.
CREATE TABLE heads (
    conversation bigint PRIMARY KEY,
    last_seq bigint NOT NULL DEFAULT 0,
    last_at bigint NOT NULL DEFAULT 0,
    last_position bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

CREATE TABLE members (
    conversation bigint NOT NULL,
    user_no bigint NOT NULL,
    role smallint NOT NULL,
    joined_at bigint NOT NULL,
    joined_seq bigint NOT NULL,
    read_seq bigint NOT NULL,
    -- 0: not muted; -1: for good; otherwise until then.
    muted_until bigint NOT NULL,
    PRIMARY KEY (conversation, user_no)
) WITH (fillfactor = 80);

-- The same from the user's side: a table of its own, so that members can be spread by conversation and
-- this by user.
CREATE TABLE places (
    user_no bigint NOT NULL,
    kind smallint NOT NULL,
    conversation bigint NOT NULL,
    PRIMARY KEY (user_no, kind, conversation)
);

-- The timeline, in parts of some days each: an old part goes by dropping a table. Part 0 holds the newest
-- entries of conversations whose own parts are gone. Parts are made by the program, ahead of need.
CREATE TABLE entries (
    conversation bigint NOT NULL,
    seq bigint NOT NULL,
    part integer NOT NULL,
    position bigint NOT NULL,
    at bigint NOT NULL,
    content bytea NOT NULL,
    PRIMARY KEY (conversation, seq, part)
) PARTITION BY LIST (part);
CREATE TABLE entries_0 PARTITION OF entries FOR VALUES IN (0);

-- Where a conversation's entries of a part begin, so that a range of sequences is looked for only in
-- the parts that hold it.
CREATE TABLE chapters (
    conversation bigint NOT NULL,
    part integer NOT NULL,
    first_seq bigint NOT NULL,
    PRIMARY KEY (conversation, part)
);
-- In the order of sequences, so that a page is read from the parts that hold it and no others.
CREATE INDEX chapters_by_seq ON chapters (conversation, first_seq) INCLUDE (part);
CREATE INDEX chapters_by_part ON chapters (part);

CREATE TABLE parts (
    part integer PRIMARY KEY,
    entries bigint NOT NULL,
    bytes bigint NOT NULL,
    last_position bigint NOT NULL
) WITH (fillfactor = 10);

-- First results by sender and client message id. Not in the timeline's parts: an id must be unique
-- across all of them. A row counts while its entry is there; rows of entries that are gone are swept.
CREATE TABLE dedupe (
    sender bigint NOT NULL,
    client_msg_id text COLLATE "C" NOT NULL,
    conversation bigint NOT NULL,
    seq bigint NOT NULL,
    at bigint NOT NULL,
    position bigint NOT NULL,
    PRIMARY KEY (sender, client_msg_id)
) PARTITION BY HASH (sender);
CREATE TABLE dedupe_0 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 0);
CREATE TABLE dedupe_1 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 1);
CREATE TABLE dedupe_2 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 2);
CREATE TABLE dedupe_3 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 3);
CREATE TABLE dedupe_4 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 4);
CREATE TABLE dedupe_5 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 5);
CREATE TABLE dedupe_6 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 6);
CREATE TABLE dedupe_7 PARTITION OF dedupe FOR VALUES WITH (MODULUS 8, REMAINDER 7);
-- Rows come in the order of positions, so a few bytes per range of pages find the old ones.
CREATE INDEX dedupe_by_position ON dedupe USING brin (position);

CREATE TABLE outbox (
    position bigint PRIMARY KEY,
    conversation bigint NOT NULL,
    seq bigint NOT NULL
);

CREATE TABLE dead_notifications (
    id bigint PRIMARY KEY,
    row bytea NOT NULL
);

-- Rows whose keys and values the engine makes itself.
CREATE TABLE push_rows (
    key bytea PRIMARY KEY,
    value bytea NOT NULL
) WITH (fillfactor = 80);
CREATE TABLE popup_rows (
    key bytea PRIMARY KEY,
    value bytea NOT NULL
) WITH (fillfactor = 80);
