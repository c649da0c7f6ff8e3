-- An id of the installation, and what its nodes have set.
-- needs program: 7

-- Made once, with the database: nodes name their channels on Redis by it, so that installations that share a Redis do not hear
-- each other. Nodes of the previous version leave it alone.
ALTER TABLE history ADD COLUMN installation uuid NOT NULL DEFAULT gen_random_uuid();

-- What each process tells the others of its settings, as JSON. Beside the table of nodes, and written before a node's row there:
-- a node without a row here runs a program that tells nothing.
CREATE TABLE node_settings (
    boot_id bigint PRIMARY KEY,
    settings text NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
