-- A lease may be for functions besides the row's own, which have no lease of their own yet: popups are led with pushes until the gate
-- `popups_lease` is open. Then the leader's heartbeat adds a row for them. Earlier programs pass over the column.
-- needs program: 10

ALTER TABLE leader ADD COLUMN also_for text[] COLLATE "C" NOT NULL DEFAULT '{}';
UPDATE leader SET also_for = '{popups}' WHERE function = 'push';
