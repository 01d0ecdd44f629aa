package store

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"
)

// MaxEvents is how many events of one sandbox are kept: the last ones.
const MaxEvents = 1000

// Event is a row of the table of that name.
type Event struct {
	Seq     int64
	Time    time.Time
	Sandbox string
	Kind    string
	By      string
	// Detail is cut where it is longer than 1 KiB.
	Detail string
}

// AddEvents adds events, in their order.
func (s *Store) AddEvents(ctx context.Context, events []Event) error {
	if len(events) == 0 {
		return nil
	}
	if err := s.change(ctx, false, func(tx *sql.Tx) error { return addEvents(ctx, tx, events) }); err != nil {
		return fmt.Errorf("cannot add events: %w", err)
	}
	return nil
}

func addEvents(ctx context.Context, tx *sql.Tx, events []Event) error {
	touched := map[string]bool{}
	for _, e := range events {
		if _, err := tx.ExecContext(ctx, `INSERT INTO events (sandbox, at, kind, by, detail) VALUES (?, ?, ?, ?, ?)`,
			e.Sandbox, nanos(e.Time), cut(e.Kind, maxID), cut(e.By, maxID), cut(e.Detail, maxText)); err != nil {
			return err
		}
		touched[e.Sandbox] = true
	}
	for sandbox := range touched {
		if _, err := tx.ExecContext(ctx, `DELETE FROM events WHERE sandbox = ?1 AND seq <= (SELECT seq FROM events WHERE sandbox = ?1 ORDER BY seq DESC LIMIT 1 OFFSET ?2)`, sandbox, MaxEvents); err != nil {
			return err
		}
	}
	return nil
}

// cut shortens a text to a bound, as valid UTF-8.
func cut(s string, limit int) string {
	if len(s) > limit {
		s = s[:limit]
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// Events returns at most limit events of a sandbox after the one of a number, the oldest
// first.
func (s *Store) Events(ctx context.Context, sandbox string, after int64, limit int) ([]Event, error) {
	var all []Event
	err := s.query(ctx, func(rows *sql.Rows) error {
		var e Event
		var at int64
		err := rows.Scan(&e.Seq, &e.Sandbox, &at, &e.Kind, &e.By, &e.Detail)
		e.Time = fromNanos(at)
		all = append(all, e)
		return err
	}, `SELECT seq, sandbox, at, kind, by, detail FROM events WHERE sandbox = ? AND seq > ? ORDER BY seq LIMIT ?`, sandbox, after, limit)
	return all, err
}

// Meta returns a value that was set, or an empty one.
func (s *Store) Meta(ctx context.Context, key string) (string, error) {
	value := ""
	err := s.query(ctx, func(rows *sql.Rows) error { return rows.Scan(&value) }, `SELECT value FROM meta WHERE key = ?`, key)
	return value, err
}

// SetMeta sets a value.
func (s *Store) SetMeta(ctx context.Context, key, value string) error {
	if err := errors.Join(bound(maxID, key), bound(maxText, value)); err != nil {
		return fmt.Errorf("cannot write to database: %w", err)
	}
	err := s.change(ctx, true, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value`, key, value)
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot write to database: %w", err)
	}
	return nil
}
