-- Which feature gates are open: what all nodes understand, and some may have written. When the first one opens, "needs program"
-- of this version becomes the version itself: a program without gates cannot go on from then on.
-- needs program: 7

CREATE TABLE gates (
    name text COLLATE "C" PRIMARY KEY,
    opened_at timestamptz NOT NULL DEFAULT now()
);
