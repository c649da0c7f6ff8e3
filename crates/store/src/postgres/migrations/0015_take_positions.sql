-- Positions are taken by a function. A statement that waits for a row by itself is prepared anew once it has it, all parts of it, while others
-- wait in turn; a function's own statement is one of a line.
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
