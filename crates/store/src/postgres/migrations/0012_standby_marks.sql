-- Marks by which a node recognizes standbys: what it has written to the primary appears on the primary's standbys alone.
-- needs program: 10

CREATE TABLE standby_marks (
    -- Chosen at random by the node, for each standby that it reads from.
    id bigint PRIMARY KEY,
    mark bigint NOT NULL,
    at timestamptz NOT NULL DEFAULT now()
) WITH (fillfactor = 50);
