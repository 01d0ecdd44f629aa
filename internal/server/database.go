package server

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/store"
)

// OpenDatabase opens the database of the daemon of a state directory, the default one when
// empty, whether it runs or not.
func OpenDatabase(ctx context.Context, state string) (*store.Store, error) {
	if state != "" && !filepath.IsAbs(state) {
		return nil, fmt.Errorf("%w: state directory %.200q is not an absolute path", ErrConfig, state)
	}
	dir, err := statedir.Daemon(state)
	if err != nil {
		return nil, err
	}
	path := filepath.Join(dir, dbName)
	unlock, err := lock(dir)
	if errors.Is(err, ErrRunning) {
		return store.Open(ctx, path, false) // it is the daemon's to change its version
	}
	if err != nil {
		return nil, err
	}
	defer unlock()
	return store.Open(ctx, path, true)
}
