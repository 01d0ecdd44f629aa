package e2b

import (
	"context"
	"time"

	"github.com/bouvet-run/bouvet/internal/daemon"
)

// Backend is what the control plane needs of daemon.Service, whose documentation says
// what each method does.
type Backend interface {
	Authenticate(ctx context.Context, key string) (daemon.Owner, error)

	Create(ctx context.Context, owner daemon.Owner, o daemon.CreateOptions) (daemon.Sandbox, error)
	// Connect returns a running sandbox, which it resumes if it is paused (resumed says
	// so; memory false drops its memory). ttl 0 leaves the end; it never comes sooner.
	Connect(ctx context.Context, owner daemon.Owner, id daemon.ID, ttl time.Duration, memory bool) (sb daemon.Sandbox, resumed bool, err error)
	Get(ctx context.Context, owner daemon.Owner, id daemon.ID) (daemon.Sandbox, error)
	List(ctx context.Context, owner daemon.Owner, f daemon.Filter) (daemon.Page, error)
	Kill(ctx context.Context, owner daemon.Owner, id daemon.ID) error
	// SetTimeout sets the end to now + d; Refresh does unless that were sooner.
	SetTimeout(ctx context.Context, owner daemon.Owner, id daemon.ID, d time.Duration) error
	Refresh(ctx context.Context, owner daemon.Owner, id daemon.ID, d time.Duration) error
	Pause(ctx context.Context, owner daemon.Owner, id daemon.ID, memory bool) error
	SetNetwork(ctx context.Context, owner daemon.Owner, id daemon.ID, n daemon.Network) error

	Snapshot(ctx context.Context, owner daemon.Owner, id daemon.ID, name string) (daemon.Snapshot, error)
	Snapshots(ctx context.Context, owner daemon.Owner, sandbox daemon.ID, name, token string, limit int) (page []daemon.Snapshot, next string, err error)
	// Fork makes n copies; an entry says how that went. The original goes on.
	Fork(ctx context.Context, owner daemon.Owner, id daemon.ID, n int, ttl time.Duration) ([]daemon.Forked, error)

	Templates(ctx context.Context, owner daemon.Owner) ([]daemon.Template, error)
	// Template finds one by its ID or any of its names.
	Template(ctx context.Context, owner daemon.Owner, name string) (daemon.Template, error)
	DeleteTemplate(ctx context.Context, owner daemon.Owner, id string) error

	Metrics(ctx context.Context, owner daemon.Owner, id daemon.ID, from, to time.Time) ([]daemon.Metric, error)
	// Events returns at most limit entries after the cursor, oldest first.
	Events(ctx context.Context, owner daemon.Owner, id daemon.ID, after int64, limit int) ([]daemon.Event, error)
}

// Data is what the data plane needs of daemon.Service.
type Data interface {
	// Use takes a running sandbox in hand, and wakes a paused one whose AutoResume is
	// set. It asks nothing about who: the caller checks tokens against Use.Sandbox. It
	// fails with daemon.ErrNotFound, or ErrConflict for a paused one that stays so.
	Use(ctx context.Context, id daemon.ID) (*daemon.Use, error)
	// Running returns the running sandboxes of everybody, for signed requests that do
	// not say which.
	Running() []daemon.Sandbox
	// Log adds an entry to a sandbox's events. It does not block.
	Log(id daemon.ID, kind, by, detail string)
}
