-- Several nodes: what they read back of the commit order, and who they are.
-- needs program: 2

-- In the commit order, for a node that did not hear of a commit.
CREATE INDEX entries_by_position ON entries (position);

-- What commits changed beside timelines, at positions of the same order; bytes are the engine's.
CREATE TABLE changes (
    position bigint PRIMARY KEY,
    at bigint NOT NULL,
    change bytea NOT NULL
);
-- Changes up to this position are removed: who has not come so far cannot follow any more.
ALTER TABLE history ADD COLUMN changes_pruned bigint NOT NULL DEFAULT 0;
CREATE INDEX changes_by_time ON changes USING brin (at);

-- Nodes and their leases, by this server's clock.
CREATE TABLE nodes (
    name text COLLATE "C" PRIMARY KEY,
    boot_id bigint NOT NULL,
    card bytea NOT NULL,
    lease_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- One row: who does the work that one node does for all.
CREATE TABLE leader (
    singleton boolean PRIMARY KEY DEFAULT true CHECK (singleton),
    boot_id bigint NOT NULL,
    lease_until timestamptz NOT NULL
) WITH (fillfactor = 10);
INSERT INTO leader (boot_id, lease_until) VALUES (0, now());
