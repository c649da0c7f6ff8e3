-- Terms of the lead: what one node writes for all is taken in its own term alone.
-- needs program: 3

ALTER TABLE leader ADD COLUMN term bigint NOT NULL DEFAULT 0;
