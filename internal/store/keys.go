package store

import (
	"context"
	"database/sql"
	"fmt"
	"time"
)

// Key is a row of the table of that name: all that is known of an API key but itself.
type Key struct {
	ID string
	// Hash is the SHA-256 of the key.
	Hash []byte
	// Prefix is how the key begins, for people.
	Prefix, Name string
	// Owner is the identity that it gives.
	Owner                  string
	Admin                  bool
	Created, Used, Revoked time.Time
}

// AddKey adds a key.
func (s *Store) AddKey(ctx context.Context, k Key) error {
	if err := bound(maxID, k.ID, string(k.Hash), k.Prefix, k.Name, k.Owner); err != nil {
		return fmt.Errorf("cannot add key: %w", err)
	}
	err := s.change(ctx, true, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO keys (id, hash, prefix, name, owner, admin, created_at, used_at, revoked_at) VALUES (?, ?, ?, ?, ?, ?, ?, 0, 0)`,
			k.ID, k.Hash, k.Prefix, k.Name, k.Owner, k.Admin, nanos(k.Created))
		return err
	})
	if err != nil {
		return fmt.Errorf("cannot add key: %w", err)
	}
	return nil
}

const keyColumns = `SELECT id, hash, prefix, name, owner, admin, created_at, used_at, revoked_at FROM keys`

func scanKey(rows *sql.Rows) (k Key, err error) {
	var created, used, revoked int64
	err = rows.Scan(&k.ID, &k.Hash, &k.Prefix, &k.Name, &k.Owner, &k.Admin, &created, &used, &revoked)
	k.Created, k.Used, k.Revoked = fromNanos(created), fromNanos(used), fromNanos(revoked)
	return k, err
}

// Keys returns all keys, the revoked ones too, in the order of their making.
func (s *Store) Keys(ctx context.Context) ([]Key, error) {
	var all []Key
	err := s.query(ctx, func(rows *sql.Rows) error {
		k, err := scanKey(rows)
		all = append(all, k)
		return err
	}, keyColumns+` ORDER BY created_at, id`)
	return all, err
}

// KeyOf returns the key with a hash, or ErrNotFound.
func (s *Store) KeyOf(ctx context.Context, hash []byte) (Key, error) {
	var found []Key
	err := s.query(ctx, func(rows *sql.Rows) error {
		k, err := scanKey(rows)
		found = append(found, k)
		return err
	}, keyColumns+` WHERE hash = ?`, hash)
	switch {
	case err != nil:
		return Key{}, err
	case len(found) == 0:
		return Key{}, fmt.Errorf("key: %w", ErrNotFound)
	}
	return found[0], nil
}

// RevokeKey revokes the key of an ID. It may have been revoked before.
func (s *Store) RevokeKey(ctx context.Context, id string, at time.Time) error {
	err := s.change(ctx, true, func(tx *sql.Tx) error {
		return one(tx.ExecContext(ctx, `UPDATE keys SET revoked_at = CASE revoked_at WHEN 0 THEN ? ELSE revoked_at END WHERE id = ?`, nanos(at), id))
	})
	if err != nil {
		return fmt.Errorf("cannot revoke key %.40q: %w", id, err)
	}
	return nil
}

// KeyUsed remembers when a key was used.
func (s *Store) KeyUsed(ctx context.Context, id string, at time.Time) error {
	return s.change(ctx, false, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(ctx, `UPDATE keys SET used_at = max(used_at, ?) WHERE id = ?`, nanos(at), id)
		return err
	})
}
