package daemon

import (
	"context"
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/store"
	"github.com/bouvet-run/bouvet/vm"
)

// Images finds the images that templates are made of. image.Store is one.
type Images interface {
	List(ctx context.Context) ([]image.Info, error)
}

// Options are what a Service works with. All but those that say so must be set.
type Options struct {
	// Manager makes the sandboxes' machines. The Service ends them all when it is closed.
	Manager *bouvet.Manager
	// Features are those of the manager's driver.
	Features vm.Features
	// Store is where sandboxes are written down, Snapshots where paused and saved ones
	// are. Nobody else uses them.
	Store     *store.Store
	Snapshots *snapstore.Store
	// Images are the templates. Without it there are none.
	Images Images
	// Pins holds the images of snapshots, as the manager's does those of machines; nil for
	// images that nobody removes.
	Pins bouvet.Images
	// Adopt takes over a machine of a former process, as Manager.Adopt does, and Detach
	// lets go of all without ending them. With both, machines are made to outlive this
	// process; both are nil where the driver cannot.
	Adopt  func(ctx context.Context, id bouvet.SandboxID, cfg bouvet.Config) (*bouvet.Sandbox, error)
	Detach func(ctx context.Context) error
	// Sweep removes what dead processes left of machines; nil for nothing.
	Sweep func(ctx context.Context) error
	// Limits bound what there may be at once.
	Limits Limits
	// MemoryMiB and VCPUs are those of a sandbox that asks for none; DefaultMemoryMiB and
	// bouvet.DefaultVCPUs when 0. DiskMiB is that of every sandbox, 0 for files in memory.
	MemoryMiB, VCPUs, DiskMiB int
	// Observe is told how long each operation took ("create", "pause", "resume",
	// "snapshot", "kill"), and what came of it. It must return soon, and may be nil.
	Observe func(operation string, took time.Duration, err error)
	// Log receives events; nil means none.
	Log *slog.Logger
	// Failpoint is called with the name of each step of the journal, after it was done.
	// It is for tests, and may be nil.
	Failpoint func(step string)
}

// DefaultMemoryMiB is the memory of a sandbox that asks for none.
const DefaultMemoryMiB = 512

const (
	// journalTimeout bounds a write to the database that nobody's context may end.
	journalTimeout = 15 * time.Second
	// createTimeout, saveTimeout and resumeTimeout bound what is done with a sandbox.
	createTimeout = 5 * time.Minute
	saveTimeout   = 10 * time.Minute
	resumeTimeout = 5 * time.Minute
)

// Machines that start take turns: each then takes as long as one, and not as long as all.
const (
	minBoots    = 4
	bootsPerCPU = 2
)

// A Service keeps sandboxes. Its methods are safe for concurrent use.
type Service struct {
	o   Options
	log *slog.Logger

	ctx        context.Context // ends what is under way
	cancel     context.CancelCauseFunc
	events     *eventLog
	boots      chan struct{} // one for each machine that starts
	background crew

	mu       sync.Mutex
	draining bool              // guarded by mu
	boxes    map[ID]*box       // guarded by mu
	snaps    map[string]*snap  // guarded by mu
	pins     map[string]*pin   // by the digests of images; guarded by mu
	load     load              // guarded by mu
	owners   map[string]int    // machines of each owner; guarded by mu
	keyUsed  map[string]string // the minute in which a key was last seen; guarded by mu
}

// New returns a Service with the sandboxes that the database knows: those that live are
// taken over where the driver can, paused ones stay, and what else a former process left
// is removed. ctx bounds the call alone.
func New(ctx context.Context, o Options) (*Service, error) {
	if o.Manager == nil || o.Store == nil || o.Snapshots == nil {
		return nil, fmt.Errorf("cannot start the service: %w: a manager, a database and a store of snapshots are needed", ErrInvalid)
	}
	if (o.Adopt == nil) != (o.Detach == nil) {
		return nil, fmt.Errorf("cannot start the service: %w: Adopt and Detach belong together", ErrInvalid)
	}
	if o.MemoryMiB == 0 {
		o.MemoryMiB = DefaultMemoryMiB
	}
	if o.VCPUs == 0 {
		o.VCPUs = bouvet.DefaultVCPUs
	}
	var err error
	if o.Limits, err = o.Limits.withDefaults(); err != nil {
		return nil, fmt.Errorf("cannot start the service: %w", err)
	}
	if o.Observe == nil {
		o.Observe = func(string, time.Duration, error) {}
	}
	if o.Failpoint == nil {
		o.Failpoint = func(string) {}
	}
	s := &Service{
		o: o, log: o.Log,
		boxes: map[ID]*box{}, snaps: map[string]*snap{}, pins: map[string]*pin{}, owners: map[string]int{}, keyUsed: map[string]string{},
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.boots = make(chan struct{}, max(minBoots, bootsPerCPU*runtime.NumCPU()))
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.events = newEventLog(o.Store, s.log)
	if err := s.recover(ctx); err != nil {
		s.cancel(nil)
		s.background.close()
		s.events.close()
		return nil, fmt.Errorf("cannot take over the sandboxes of a former process: %w", err)
	}
	s.background.run(s.purge)
	return s, nil
}

// newID returns a fresh ID: rand.Text has 5 bits a character.
func newID() ID { return ID("i" + newName()) }

// newName returns 20 characters that hold 100 random bits.
func newName() string { return strings.ToLower(rand.Text()[:20]) }

// newToken returns a secret of 43 characters.
func newToken() string {
	b := make([]byte, 32)
	_, _ = rand.Read(b) // never fails
	return base64.RawURLEncoding.EncodeToString(b)
}

// find returns a sandbox that an owner may know of.
func (s *Service) find(owner Owner, id ID) (*box, error) {
	b := s.box(id)
	if b == nil || !b.told() || !owner.owns(b.owner) {
		return nil, fmt.Errorf("sandbox %q: %w", id, ErrNotFound)
	}
	return b, nil
}

// owns reports whether what belongs to the owner of that ID belongs to o.
func (o Owner) owns(id string) bool { return o.Admin || o.ID == id }

func (s *Service) box(id ID) *box {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.boxes[id]
}

// every returns all sandboxes at this moment.
func (s *Service) every() []*box {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make([]*box, 0, len(s.boxes))
	for _, b := range s.boxes {
		all = append(all, b)
	}
	return all
}

// apply writes to the database, whatever has become of the request that caused it.
func (s *Service) apply(c store.Change) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), journalTimeout)
	defer cancel()
	return s.o.Store.Apply(ctx, c)
}

// event is an entry of the journal's own.
func event(id ID, kind, by, detail string) store.Event {
	return store.Event{Time: time.Now(), Sandbox: string(id), Kind: kind, By: by, Detail: detail}
}

// byDaemon is who does what nobody asked for.
const byDaemon = "daemon"

// Ended sandboxes are remembered for keepEnded, and at most maxEnded of them.
const (
	keepEnded  = 7 * 24 * time.Hour
	maxEnded   = 10000
	purgeEvery = time.Hour
)

// purge forgets what ended long ago.
func (s *Service) purge() {
	tick := time.NewTicker(purgeEvery)
	defer tick.Stop()
	for {
		if err := s.o.Store.Purge(s.ctx, time.Now().Add(-keepEnded), maxEnded); err != nil && s.ctx.Err() == nil {
			s.log.LogAttrs(s.ctx, slog.LevelWarn, "cannot forget ended sandboxes", slog.Any("error", err))
		}
		select {
		case <-tick.C:
		case <-s.ctx.Done():
			return
		}
	}
}

// errClosed ends what is under way when the service is closed.
var errClosed = errors.New("the service is closed")
