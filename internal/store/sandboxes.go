package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"
)

// State is where a sandbox is between two things that exist.
type State string

// The states of a sandbox. Those that end in "ing", but running, are intents.
const (
	Creating State = "creating"
	Running  State = "running"
	Pausing  State = "pausing"
	Paused   State = "paused"
	Resuming State = "resuming"
	Killing  State = "killing"
	// Ended ones are kept for a while: their events can be read, and their IDs are
	// not used again.
	Ended State = "ended"
)

// Sandbox is a row of the table of that name.
type Sandbox struct {
	ID, Owner string
	State     State
	// Saved is the snapshot that it is paused as, or being paused as; Base is the one
	// that its machine was restored from.
	Saved, Base             string
	StartedAt, EndAt, Ended time.Time
	// Spec is what else its owner knows, as JSON.
	Spec []byte
}

// Machine is a machine that exists, or was to be made, or is not quite gone.
type Machine struct {
	ID      string
	Sandbox string
	// Base is the snapshot that it was restored from, or empty.
	Base string
	Made time.Time
}

// Bounds of texts, in bytes.
const (
	maxID   = 128
	maxSpec = 1 << 20
	maxText = 1 << 10
)

// bound reports an error if one of the texts is longer than its bound.
func bound(limit int, texts ...string) error {
	for _, t := range texts {
		if len(t) > limit {
			return fmt.Errorf("%w: %d bytes of at most %d", ErrTooLong, len(t), limit)
		}
	}
	return nil
}

func (r *Sandbox) validate() error {
	if err := bound(maxID, r.ID, r.Owner, string(r.State), r.Saved, r.Base); err != nil {
		return err
	}
	return bound(maxSpec, string(r.Spec))
}

// nanos is a time as the tables have it: 0 for none.
func nanos(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixNano()
}

func fromNanos(n int64) time.Time {
	if n == 0 {
		return time.Time{}
	}
	return time.Unix(0, n)
}

// A Change is what one transaction does. Its parts are done in the order of its fields.
type Change struct {
	// Insert is a new row, Update one that exists.
	Insert, Update *Sandbox
	// Forget removes a row that never became a sandbox.
	Forget string
	// AddMachine and DropMachine are rows of machines.
	AddMachine  *Machine
	DropMachine string
	// AddSnapshot, SetSnapshot and DropSnapshot are rows of snapshots.
	AddSnapshot  *Snapshot
	SetSnapshot  *Snapshot
	DropSnapshot string
	// Names are given to SetSnapshot, and taken from others.
	Names []string
	// Events are added.
	Events []Event
	// Durable ones survive the host's death, others that of the process.
	Durable bool
}

// Apply makes a change, or nothing of it.
func (s *Store) Apply(ctx context.Context, c Change) error {
	if err := c.validate(); err != nil {
		return fmt.Errorf("cannot write to database: %w", err)
	}
	err := s.change(ctx, c.Durable, func(tx *sql.Tx) error {
		return errors.Join(c.sandboxes(ctx, tx), c.machines(ctx, tx), c.snapshots(ctx, tx), addEvents(ctx, tx, c.Events))
	})
	if err != nil {
		return fmt.Errorf("cannot write to database: %w", err)
	}
	return nil
}

func (c *Change) validate() error {
	var errs []error
	for _, r := range []*Sandbox{c.Insert, c.Update} {
		if r != nil {
			errs = append(errs, r.validate())
		}
	}
	if m := c.AddMachine; m != nil {
		errs = append(errs, bound(maxID, m.ID, m.Sandbox, m.Base))
	}
	for _, r := range []*Snapshot{c.AddSnapshot, c.SetSnapshot} {
		if r != nil {
			errs = append(errs, r.validate())
		}
	}
	return errors.Join(append(errs, bound(maxID, c.Names...))...)
}

func (c *Change) sandboxes(ctx context.Context, tx *sql.Tx) error {
	if r := c.Insert; r != nil {
		if _, err := tx.ExecContext(ctx, `INSERT INTO sandboxes (id, owner, state, saved, base, started_at, end_at, ended_at, spec) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			r.ID, r.Owner, r.State, r.Saved, r.Base, nanos(r.StartedAt), nanos(r.EndAt), nanos(r.Ended), r.Spec); err != nil {
			return err
		}
	}
	if r := c.Update; r != nil {
		if err := one(tx.ExecContext(ctx, `UPDATE sandboxes SET state = ?, saved = ?, base = ?, started_at = ?, end_at = ?, ended_at = ?, spec = ? WHERE id = ?`,
			r.State, r.Saved, r.Base, nanos(r.StartedAt), nanos(r.EndAt), nanos(r.Ended), r.Spec, r.ID)); err != nil {
			return err
		}
	}
	if c.Forget != "" {
		if _, err := tx.ExecContext(ctx, `DELETE FROM sandboxes WHERE id = ?`, c.Forget); err != nil {
			return err
		}
	}
	return nil
}

func (c *Change) machines(ctx context.Context, tx *sql.Tx) error {
	if m := c.AddMachine; m != nil {
		if _, err := tx.ExecContext(ctx, `INSERT INTO machines (id, sandbox, base, made_at) VALUES (?, ?, ?, ?)`, m.ID, m.Sandbox, m.Base, nanos(m.Made)); err != nil {
			return err
		}
	}
	if c.DropMachine != "" {
		if _, err := tx.ExecContext(ctx, `DELETE FROM machines WHERE id = ?`, c.DropMachine); err != nil {
			return err
		}
	}
	return nil
}

// one fails unless one row was touched.
func one(r sql.Result, err error) error {
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		return errors.Join(ErrNotFound, err)
	}
	return nil
}

// query calls scan for each row.
func (s *Store) query(ctx context.Context, scan func(*sql.Rows) error, query string, args ...any) (err error) {
	rows, err := s.ro.QueryContext(ctx, query, args...)
	if err != nil {
		return fmt.Errorf("cannot read database: %w", explain(err))
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := scan(rows); err != nil {
			return fmt.Errorf("cannot read database: %w", explain(err))
		}
	}
	if err := rows.Err(); err != nil {
		return fmt.Errorf("cannot read database: %w", explain(err))
	}
	return nil
}

// Sandboxes returns all but the ended ones.
func (s *Store) Sandboxes(ctx context.Context) ([]Sandbox, error) {
	var all []Sandbox
	err := s.query(ctx, func(rows *sql.Rows) error {
		var r Sandbox
		var started, end int64
		err := rows.Scan(&r.ID, &r.Owner, &r.State, &r.Saved, &r.Base, &started, &end, &r.Spec)
		r.StartedAt, r.EndAt = fromNanos(started), fromNanos(end)
		all = append(all, r)
		return err
	}, `SELECT id, owner, state, saved, base, started_at, end_at, spec FROM sandboxes WHERE ended_at = 0 ORDER BY started_at`)
	return all, err
}

// Owner returns whose sandbox it is or, if it has ended, was.
func (s *Store) Owner(ctx context.Context, sandbox string) (string, error) {
	owner := ""
	err := s.query(ctx, func(rows *sql.Rows) error { return rows.Scan(&owner) }, `SELECT owner FROM sandboxes WHERE id = ?`, sandbox)
	if err == nil && owner == "" {
		err = fmt.Errorf("sandbox %.40q: %w", sandbox, ErrNotFound)
	}
	return owner, err
}

// Machines returns all machines that are not known to be gone.
func (s *Store) Machines(ctx context.Context) ([]Machine, error) {
	var all []Machine
	err := s.query(ctx, func(rows *sql.Rows) error {
		var m Machine
		var made int64
		err := rows.Scan(&m.ID, &m.Sandbox, &m.Base, &made)
		m.Made = fromNanos(made)
		all = append(all, m)
		return err
	}, `SELECT id, sandbox, base, made_at FROM machines ORDER BY made_at`)
	return all, err
}

// Purge forgets sandboxes that ended before a time, and all but the last keep ones.
func (s *Store) Purge(ctx context.Context, before time.Time, keep int) error {
	err := s.change(ctx, false, func(tx *sql.Tx) error {
		for _, q := range []struct {
			query string
			args  []any
		}{
			{`DELETE FROM sandboxes WHERE ended_at != 0 AND ended_at < ?`, []any{nanos(before)}},
			{`DELETE FROM sandboxes WHERE ended_at != 0 AND id NOT IN (SELECT id FROM sandboxes WHERE ended_at != 0 ORDER BY ended_at DESC LIMIT ?)`, []any{keep}},
			{`DELETE FROM events WHERE sandbox NOT IN (SELECT id FROM sandboxes)`, nil},
		} {
			if _, err := tx.ExecContext(ctx, q.query, q.args...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("cannot purge database: %w", err)
	}
	return nil
}
