-- Several orders in which commits take positions, side by side, and the cuts that lay one commit order over them.
-- needs program: 10

-- A database of one order has no rows here, and no cuts: positions come from the counters, as before.
CREATE TABLE orders (
    ord smallint PRIMARY KEY,
    -- The last position of this order that was taken. The order's number is in the bits from 48 on.
    position bigint NOT NULL,
    -- How many numbers of conversations were given: the n-th is n times the number of orders, plus the order's.
    conversations bigint NOT NULL
) WITH (fillfactor = 10);

-- A cut puts what an order has committed since the one before into the one commit order.
CREATE TABLE cuts (
    -- Its last position in the one commit order.
    through bigint PRIMARY KEY,
    -- The same in its order, and how many positions it has.
    local_through bigint NOT NULL UNIQUE,
    count bigint NOT NULL,
    -- The earliest time of the commits in it, by the clocks of their nodes; 0: unknown.
    at bigint NOT NULL
);
CREATE INDEX cuts_by_order ON cuts ((local_through >> 48), through);

-- How far each order is cut; null in a database of one order. A program that takes positions from the counters of a database
-- of several orders violates the check, and stores nothing.
ALTER TABLE counters ADD COLUMN cuts bigint[], ADD COLUMN cut_through bigint,
    ADD CONSTRAINT positions_come_from_cuts CHECK (cut_through IS NULL OR cut_through = position);

-- Fixed when the database is made, or when it is divided into orders. Positions up to `one_order_through` are from before.
ALTER TABLE history ADD COLUMN orders smallint NOT NULL DEFAULT 1, ADD COLUMN one_order_through bigint NOT NULL DEFAULT 0;

-- As `parts`, for each order: a row that all commits of a day wait for would put the orders one behind the other.
CREATE TABLE order_parts (
    part integer NOT NULL,
    ord smallint NOT NULL,
    entries bigint NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (part, ord)
) WITH (fillfactor = 10);

-- Whoever cuts locks this table, which stays empty.
CREATE TABLE cutting ();
