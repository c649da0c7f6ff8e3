-- Positions are taken in a function. When a statement has waited for a row, PostgreSQL sets the whole statement up again before it goes on,
-- while all other commits wait for it. In a function it sets up this one update.
-- needs program: 10

CREATE FUNCTION take_positions(wanted bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
BEGIN
    UPDATE tidings.counters SET position = position + wanted RETURNING position - wanted INTO STRICT before;
    RETURN before;
END $$;

CREATE FUNCTION take_positions_of(number smallint, wanted bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
BEGIN
    UPDATE tidings.orders SET position = position + wanted WHERE ord = number RETURNING position - wanted INTO STRICT before;
    RETURN before;
END $$;
