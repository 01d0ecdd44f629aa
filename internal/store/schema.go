package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// applicationID marks our files: "Bouv" in SQLite's header.
const applicationID = 0x426f7576

// migrations bring a database from the version of their index to the next. One that was
// released is never changed.
var migrations = []string{
	`
CREATE TABLE sandboxes (
	id         TEXT PRIMARY KEY,
	owner      TEXT NOT NULL,
	state      TEXT NOT NULL,
	saved      TEXT NOT NULL, -- the snapshot that it is paused as, or being paused as
	base       TEXT NOT NULL, -- the snapshot that its machine was restored from
	started_at INTEGER NOT NULL,
	end_at     INTEGER NOT NULL,
	ended_at   INTEGER NOT NULL, -- 0 unless state is "ended"
	spec       BLOB NOT NULL
) STRICT;
CREATE INDEX sandboxes_ended ON sandboxes (ended_at) WHERE ended_at != 0;
CREATE TABLE machines (
	id      TEXT PRIMARY KEY,
	sandbox TEXT NOT NULL,
	base    TEXT NOT NULL,
	made_at INTEGER NOT NULL
) STRICT;
CREATE INDEX machines_sandbox ON machines (sandbox);
CREATE TABLE snapshots (
	id         TEXT PRIMARY KEY,
	owner      TEXT NOT NULL,
	sandbox    TEXT NOT NULL,
	kind       TEXT NOT NULL,
	state      TEXT NOT NULL,
	created_at INTEGER NOT NULL,
	spec       BLOB NOT NULL
) STRICT;
CREATE TABLE names (
	owner    TEXT NOT NULL,
	name     TEXT NOT NULL,
	snapshot TEXT NOT NULL REFERENCES snapshots (id) ON DELETE CASCADE,
	PRIMARY KEY (owner, name)
) STRICT, WITHOUT ROWID;
CREATE INDEX names_snapshot ON names (snapshot);
CREATE TABLE keys (
	id         TEXT PRIMARY KEY,
	hash       BLOB NOT NULL UNIQUE,
	prefix     TEXT NOT NULL,
	name       TEXT NOT NULL,
	owner      TEXT NOT NULL,
	admin      INTEGER NOT NULL,
	created_at INTEGER NOT NULL,
	used_at    INTEGER NOT NULL,
	revoked_at INTEGER NOT NULL
) STRICT;
CREATE TABLE events (
	seq     INTEGER PRIMARY KEY AUTOINCREMENT,
	sandbox TEXT NOT NULL,
	at      INTEGER NOT NULL,
	kind    TEXT NOT NULL,
	by      TEXT NOT NULL,
	detail  TEXT NOT NULL
) STRICT;
CREATE INDEX events_sandbox ON events (sandbox, seq);
CREATE TABLE meta (
	key   TEXT PRIMARY KEY,
	value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
`,
}

// check looks at what the file is, and makes it a database of this version if it may.
func (s *Store) check(ctx context.Context, owner bool) error {
	var app, version, tables int
	for _, q := range []struct {
		query string
		to    *int
	}{
		{"PRAGMA application_id", &app},
		{"PRAGMA user_version", &version},
		{"SELECT count(*) FROM sqlite_schema", &tables},
	} {
		if err := s.rw.QueryRowContext(ctx, q.query).Scan(q.to); err != nil {
			return explain(err)
		}
	}
	fresh := app == 0 && version == 0 && tables == 0
	switch {
	case !fresh && app != applicationID:
		return fmt.Errorf("%w: another program made it (application ID %#x); move it away to begin anew, nothing is deleted", ErrForeign, app)
	case version > len(migrations):
		return fmt.Errorf("%w: a newer Bouvet wrote it (version %d, this one knows up to %d); run that one, or move the file away", ErrVersion, version, len(migrations))
	case version < len(migrations) && !owner:
		return fmt.Errorf("%w: an older Bouvet wrote it (version %d, this is %d); start bouvet serve of this version first", ErrVersion, version, len(migrations))
	}
	if !fresh && owner {
		if err := s.verify(ctx); err != nil {
			return err
		}
	}
	if version == len(migrations) {
		return nil
	}
	if _, err := s.rw.ExecContext(ctx, "PRAGMA journal_mode=WAL"); err != nil {
		return explain(err)
	}
	return s.change(ctx, true, func(tx *sql.Tx) error {
		for v := version; v < len(migrations); v++ {
			if _, err := tx.ExecContext(ctx, migrations[v]); err != nil {
				return fmt.Errorf("cannot bring database to version %d: %w", v+1, err)
			}
		}
		_, err := tx.ExecContext(ctx, fmt.Sprintf("PRAGMA application_id=%d; PRAGMA user_version=%d", applicationID, len(migrations)))
		return err
	})
}

// verify reads the whole file.
func (s *Store) verify(ctx context.Context) (err error) {
	rows, err := s.rw.QueryContext(ctx, "PRAGMA integrity_check(1)")
	if err != nil {
		return explain(err)
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			return explain(err)
		}
		if text != "ok" {
			return fmt.Errorf("%w: %.200s; %s", ErrCorrupt, text, remedyDamage)
		}
	}
	return explain(rows.Err())
}
