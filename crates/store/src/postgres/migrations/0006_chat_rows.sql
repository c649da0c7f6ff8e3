-- What commits store besides entries and cards, such as who gave which reaction; the server encodes keys and values.
-- needs program: 3

CREATE TABLE chat_rows (key bytea PRIMARY KEY, value bytea NOT NULL);
