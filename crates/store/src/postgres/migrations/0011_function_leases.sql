-- A lease for each function of the cluster. The one row stands for all functions until the gate `function_leases` is open: then
-- the leader's heartbeat sets `is_split` and adds a row for each other function.
-- needs program: 10

ALTER TABLE leader DROP COLUMN singleton;
ALTER TABLE leader ADD COLUMN function text COLLATE "C" PRIMARY KEY DEFAULT 'push',
    ADD COLUMN is_split boolean NOT NULL DEFAULT false;
