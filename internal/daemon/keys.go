package daemon

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"

	"github.com/bouvet-run/bouvet/internal/store"
)

// localOwner is who the unix socket belongs to.
const localOwner = "local"

// Local is the user of the unix socket.
func Local() Owner { return Owner{ID: localOwner, Name: localOwner, Admin: true} }

type ownerKey struct{}

// WithOwner returns a context whose requests are those of an owner that a listener has
// found out about, so that they need no key.
func WithOwner(ctx context.Context, o Owner) context.Context {
	return context.WithValue(ctx, ownerKey{}, o)
}

// keyPrefix begins every API key; 40 hexadecimal digits follow.
const keyPrefix = "e2b_"

var keyPattern = regexp.MustCompile(`^e2b_[0-9a-f]{40}$`)

// shownPrefix is how much of a key is kept to tell it by.
const shownPrefix = len(keyPrefix) + 6

// Key describes an API key.
type Key struct {
	ID     string `json:"id"`
	Prefix string `json:"prefix"`
	Name   string `json:"name"`
	// Owner is the identity that it gives: what belongs to that is reached with any of
	// its keys.
	Owner   string    `json:"owner"`
	Admin   bool      `json:"admin"`
	Created time.Time `json:"created"`
	Used    time.Time `json:"used,omitzero"`
	Revoked time.Time `json:"revoked,omitzero"`
}

// NewKey makes a key in a database and returns it: it is kept nowhere. An empty owner
// means an identity of its own.
func NewKey(ctx context.Context, db *store.Store, name, owner string, admin bool) (key string, k Key, err error) {
	if len(name) > MaxKeyName || len(owner) > MaxKeyName {
		return "", Key{}, fmt.Errorf("%w: names have at most %d bytes", ErrInvalid, MaxKeyName)
	}
	if owner == localOwner || owner == byDaemon {
		return "", Key{}, fmt.Errorf("%w: %q is no identity for a key", ErrInvalid, owner)
	}
	b := make([]byte, 20)
	_, _ = rand.Read(b) // never fails
	key = keyPrefix + hex.EncodeToString(b)
	sum := sha256.Sum256([]byte(key))
	k = Key{ID: newName()[:12], Prefix: key[:shownPrefix], Name: name, Owner: owner, Admin: admin, Created: time.Now()}
	if k.Owner == "" {
		k.Owner = k.ID
	}
	err = db.AddKey(ctx, store.Key{ID: k.ID, Hash: sum[:], Prefix: k.Prefix, Name: k.Name, Owner: k.Owner, Admin: k.Admin, Created: k.Created})
	if err != nil {
		return "", Key{}, err
	}
	return key, k, nil
}

// MaxKeyName bounds the name of a key and of an owner, in bytes.
const MaxKeyName = 100

// Keys describes all keys of a database, the revoked ones too.
func Keys(ctx context.Context, db *store.Store) ([]Key, error) {
	rows, err := db.Keys(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]Key, len(rows))
	for i, r := range rows {
		all[i] = Key{ID: r.ID, Prefix: r.Prefix, Name: r.Name, Owner: r.Owner, Admin: r.Admin, Created: r.Created, Used: r.Used, Revoked: r.Revoked}
	}
	return all, nil
}

// Authenticate tells whose a key is, or whose the context is if a listener has said so:
// then the key is not looked at.
func (s *Service) Authenticate(ctx context.Context, key string) (Owner, error) {
	if o, ok := ctx.Value(ownerKey{}).(Owner); ok {
		return o, nil
	}
	if !keyPattern.MatchString(key) {
		return Owner{}, fmt.Errorf("%w: an API key is %s and 40 hexadecimal digits; bouvet key create makes one", ErrUnauthorized, keyPrefix)
	}
	sum := sha256.Sum256([]byte(key))
	k, err := s.o.Store.KeyOf(ctx, sum[:])
	switch {
	case errors.Is(err, store.ErrNotFound):
		return Owner{}, fmt.Errorf("%w: there is no such API key", ErrUnauthorized)
	case err != nil:
		return Owner{}, err
	case subtle.ConstantTimeCompare(k.Hash, sum[:]) != 1 || !k.Revoked.IsZero():
		return Owner{}, fmt.Errorf("%w: the API key was revoked", ErrUnauthorized)
	}
	s.keyWasUsed(k.ID)
	return Owner{ID: k.Owner, Name: k.Name, Admin: k.Admin}, nil
}

// keyWasUsed writes down when a key is used, to the minute.
func (s *Service) keyWasUsed(id string) {
	now := time.Now()
	minute := now.Format("15:04")
	s.mu.Lock()
	again := s.keyUsed[id] == minute || s.draining
	s.keyUsed[id] = minute
	s.mu.Unlock()
	if again {
		return
	}
	s.background.run(func() {
		if err := s.o.Store.KeyUsed(s.ctx, id, now); err != nil && s.ctx.Err() == nil {
			s.log.LogAttrs(s.ctx, slog.LevelWarn, "cannot write down the use of a key", slog.Any("error", err))
		}
	})
}
