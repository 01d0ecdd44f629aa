package store

import (
	"context"
	"database/sql"
	"slices"
	"time"
)

// Kinds of snapshots.
const (
	// KindPause is what a paused sandbox is; it goes with it.
	KindPause = "pause"
	// KindFork is what copies are made of; it goes with the last of them.
	KindFork = "fork"
	// KindUser is kept until its owner deletes it.
	KindUser = "user"
)

// States of snapshots.
const (
	// Saving means that it is not whole.
	Saving = "saving"
	Ready  = "ready"
	// Deleting means that it goes when nobody uses it any more.
	Deleting = "deleting"
)

// Snapshot is a row of the table of that name.
type Snapshot struct {
	// ID is its name in the store of snapshots, too.
	ID, Owner, Sandbox string
	Kind, State        string
	CreatedAt          time.Time
	Spec               []byte
	// Names are those that it has. Change.Names sets them.
	Names []string
}

func (r *Snapshot) validate() error {
	if err := bound(maxID, r.ID, r.Owner, r.Sandbox, r.Kind, r.State); err != nil {
		return err
	}
	return bound(maxSpec, string(r.Spec))
}

func (c *Change) snapshots(ctx context.Context, tx *sql.Tx) error {
	if r := c.AddSnapshot; r != nil {
		if _, err := tx.ExecContext(ctx, `INSERT INTO snapshots (id, owner, sandbox, kind, state, created_at, spec) VALUES (?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.Owner, r.Sandbox, r.Kind, r.State, nanos(r.CreatedAt), r.Spec); err != nil {
			return err
		}
	}
	if r := c.SetSnapshot; r != nil {
		if err := one(tx.ExecContext(ctx, `UPDATE snapshots SET kind = ?, state = ?, created_at = ?, spec = ? WHERE id = ?`, r.Kind, r.State, nanos(r.CreatedAt), r.Spec, r.ID)); err != nil {
			return err
		}
		if r.State == Deleting {
			if _, err := tx.ExecContext(ctx, `DELETE FROM names WHERE snapshot = ?`, r.ID); err != nil {
				return err
			}
		}
		for _, name := range c.Names {
			if _, err := tx.ExecContext(ctx, `INSERT INTO names (owner, name, snapshot) VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET snapshot = excluded.snapshot`, r.Owner, name, r.ID); err != nil {
				return err
			}
		}
	}
	if c.DropSnapshot != "" {
		if _, err := tx.ExecContext(ctx, `DELETE FROM snapshots WHERE id = ?`, c.DropSnapshot); err != nil {
			return err
		}
	}
	return nil
}

// Snapshots returns all.
func (s *Store) Snapshots(ctx context.Context) ([]Snapshot, error) {
	var all []Snapshot
	err := s.query(ctx, func(rows *sql.Rows) error {
		var r Snapshot
		var created int64
		err := rows.Scan(&r.ID, &r.Owner, &r.Sandbox, &r.Kind, &r.State, &created, &r.Spec)
		r.CreatedAt = fromNanos(created)
		all = append(all, r)
		return err
	}, `SELECT id, owner, sandbox, kind, state, created_at, spec FROM snapshots ORDER BY created_at, id`)
	if err != nil {
		return nil, err
	}
	err = s.query(ctx, func(rows *sql.Rows) error {
		var id, name string
		err := rows.Scan(&id, &name)
		if i := slices.IndexFunc(all, func(r Snapshot) bool { return r.ID == id }); i >= 0 {
			all[i].Names = append(all[i].Names, name)
		}
		return err
	}, `SELECT snapshot, name FROM names ORDER BY name`)
	return all, err
}
