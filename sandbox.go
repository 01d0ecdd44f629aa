package bouvet

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bouvet-run/bouvet/vm"
)

const (
	// goneWait is how long a broken stream waits to learn whether the machine
	// died: a driver tells within a second.
	goneWait = time.Second
	// cleanupTimeout bounds what is undone when nobody's context may bound it.
	cleanupTimeout = 30 * time.Second
	// entropySeedLen is how many random bytes a guest's kernel is given.
	entropySeedLen = 32
)

// A Sandbox is a running machine with an agent that answers. Its methods are
// safe for concurrent use; several commands may run at once.
type Sandbox struct {
	id      SandboxID
	config  Config
	created time.Time
	machine vm.Machine
	client  *AgentClient
	log     *slog.Logger
	release func() // gives the image, and the snapshot, back
	manager *Manager
	clock   *stopwatch    // of commands' timeouts
	moving  chan struct{} // a mutex of Pause, Resume and Snapshot, that a context can end the wait for

	seeded  atomic.Bool   // the guest's kernel was given entropy
	tearing chan struct{} // a mutex that a context can end the wait for
	shown   bool          // the console was handed over; guarded by tearing
	torn    bool          // all is removed; guarded by tearing
	done    chan struct{} // closed when the state becomes Destroyed

	mu       sync.Mutex
	state    State         // Ready, Paused or Destroyed; guarded by mu
	running  int           // commands; guarded by mu
	starting int           // those that the agent has not answered yet; guarded by mu
	reason   error         // why it was destroyed, nil for Destroy; guarded by mu
	saves    int           // Snapshots begun; guarded by mu
	saved    chan struct{} // closed at the end of the Snapshot under way, nil without one; guarded by mu
	started  chan struct{} // closed when starting becomes 0, if a Snapshot waits for that; guarded by mu
}

// newSandbox takes over the machine and its client and watches over them.
func newSandbox(m *Manager, cfg Config, created time.Time, machine vm.Machine, client *AgentClient, release func()) *Sandbox {
	s := &Sandbox{
		id: cfg.ID, config: cfg, created: created, machine: machine, client: client, release: release,
		manager: m, clock: client.clock, moving: make(chan struct{}, 1),
		log: client.log, state: Ready, tearing: make(chan struct{}, 1), done: make(chan struct{}),
	}
	client.explain = s.explain
	// The host kills in a guest where that has no kernel of its own (gVisor).
	if counts, ok := machine.(interface{ OOMKills() int }); ok {
		client.oomKills = counts.OOMKills
	}
	go s.watch()
	return s
}

// watch waits for the machine's end and, when that came by itself, clears up.
func (s *Sandbox) watch() {
	<-s.machine.Done()
	err := s.machine.Err()
	if !errors.Is(err, vm.ErrGone) {
		err = vm.ErrGone
	}
	if !s.markDestroyed(&VMError{err}) {
		return
	}
	s.log.LogAttrs(context.Background(), slog.LevelWarn, "sandbox ended by itself", slog.String("id", s.id.String()), guestAttr("reason", err.Error()))
	ctx, cancel := context.WithTimeout(context.Background(), cleanupTimeout)
	defer cancel()
	if err := s.tearDown(ctx, 0); err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "cannot clear up after sandbox", slog.String("id", s.id.String()), slog.Any("error", err))
	}
}

// markDestroyed ends the sandbox for its callers. It reports whether it still
// lived.
func (s *Sandbox) markDestroyed(reason error) bool {
	s.mu.Lock()
	if s.state == Destroyed {
		s.mu.Unlock()
		return false
	}
	s.state, s.reason = Destroyed, reason
	close(s.done)
	s.mu.Unlock()
	s.client.shutdown(first(reason, error(&InvalidStateError{Expected: Ready, Actual: Destroyed})))
	return true
}

// ID returns the sandbox's ID.
func (s *Sandbox) ID() SandboxID { return s.id }

// Config returns the configuration it was created with, defaults filled in.
func (s *Sandbox) Config() Config { return s.config }

// CreatedAt returns when its creation began.
func (s *Sandbox) CreatedAt() time.Time { return s.created }

// Client returns the client of its agent, for all that Sandbox has no method for.
func (s *Sandbox) Client() *AgentClient { return s.client }

// Machine returns the machine under it.
func (s *Sandbox) Machine() vm.Machine { return s.machine }

// State returns what the sandbox is doing.
func (s *Sandbox) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state == Ready && s.running > 0 {
		return Executing
	}
	return s.state
}

// Done is closed once the sandbox is destroyed or its machine has died.
func (s *Sandbox) Done() <-chan struct{} { return s.done }

// Err says why the sandbox ended by itself: an error wrapping ErrVM and
// vm.ErrGone. It is nil while it lives, and after Destroy.
func (s *Sandbox) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reason
}

// check returns an error unless the sandbox lives.
func (s *Sandbox) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkLocked()
}

func (s *Sandbox) checkLocked() error {
	switch {
	case s.reason != nil:
		return s.reason
	case s.state != Ready:
		return &InvalidStateError{Expected: Ready, Actual: s.state}
	default:
		return nil
	}
}

// begin counts a command that starts, once no snapshot is under way.
func (s *Sandbox) begin(ctx context.Context) error {
	for {
		s.mu.Lock()
		err, saved := s.checkLocked(), s.saved
		if err == nil && saved == nil {
			s.running++
			s.starting++
		}
		s.mu.Unlock()
		if err != nil || saved == nil {
			return err
		}
		if err := s.awaitSaved(ctx, saved); err != nil {
			return err
		}
	}
}

// begun says that the agent has answered a command that starts.
func (s *Sandbox) begun() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.starting--; s.starting == 0 && s.started != nil {
		close(s.started)
		s.started = nil
	}
}

// end counts a command that has ended.
func (s *Sandbox) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.running--
}

// explain turns a broken stream into the machine's death, if that is why.
func (s *Sandbox) explain(err error) error {
	if !errors.Is(err, ErrIO) && !errors.Is(err, ErrConnection) || errors.Is(err, vm.ErrGone) {
		return err
	}
	late := time.NewTimer(goneWait)
	defer late.Stop()
	select {
	case <-s.done:
		return fmt.Errorf("%w (%w)", s.check(), err)
	case <-late.C:
		return err
	}
}

// Execute runs cmd with "sh -c" and returns when it has ended: an ExecResult
// whatever its exit code, a TimeoutError when Config.Timeout struck.
func (s *Sandbox) Execute(ctx context.Context, cmd string) (*ExecResult, error) {
	return s.execute(ctx, func(opts *ExecOptions) (*ExecResult, error) { return s.client.Exec(ctx, cmd, opts) })
}

// ExecuteCode runs code with the interpreter of lang, Config.Language when empty.
// Otherwise as Execute.
func (s *Sandbox) ExecuteCode(ctx context.Context, lang, code string) (*ExecResult, error) {
	lang = first(lang, s.config.Language)
	return s.execute(ctx, func(opts *ExecOptions) (*ExecResult, error) { return s.client.ExecCode(ctx, lang, code, opts) })
}

func (s *Sandbox) execute(ctx context.Context, run func(*ExecOptions) (*ExecResult, error)) (r *ExecResult, err error) {
	if err := s.begin(ctx); err != nil {
		return nil, err
	}
	defer s.end()
	s.begun() // a frozen agent's refusal is told by its code
	err = s.unfrozen(ctx, func() error {
		r, err = run(&ExecOptions{Env: s.config.Env, Timeout: s.config.Timeout})
		return err
	})
	return r, err
}

// ReadFile returns the content of a text file of at most 10 MiB.
func (s *Sandbox) ReadFile(ctx context.Context, path string) (string, error) {
	if err := s.check(); err != nil {
		return "", err
	}
	return s.client.ReadFile(ctx, path)
}

// WriteFile replaces the content of a text file, making it and its parents if
// they are missing.
func (s *Sandbox) WriteFile(ctx context.Context, path, content string) error {
	if err := s.check(); err != nil {
		return err
	}
	return s.unfrozen(ctx, func() error { return s.client.WriteFile(ctx, path, content) })
}

// ListDir returns the entries of a directory, sorted by name.
func (s *Sandbox) ListDir(ctx context.Context, path string) ([]FileEntry, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	return s.client.ListDir(ctx, path)
}

// Command returns a Cmd that runs name with args in the sandbox, with the
// environment and the timeout of its Config unless the Cmd's own say otherwise.
func (s *Sandbox) Command(ctx context.Context, name string, args ...string) *Cmd {
	return s.adopt(s.client.Command(ctx, name, args...))
}

// Attach returns a Cmd that joins a detached command; see AgentClient.Attach.
func (s *Sandbox) Attach(ctx context.Context, id string, replayFrom int64) *Cmd {
	return s.adopt(s.client.Attach(ctx, id, replayFrom))
}

func (s *Sandbox) adopt(c *Cmd) *Cmd {
	if c.attach == "" {
		c.env, c.deadline = s.config.Env, s.config.Timeout
	}
	c.ended, c.launched = s.end, s.begun
	c.began = func() ([]byte, error) {
		if err := s.begin(c.ctx); err != nil {
			return nil, err
		}
		if c.attach != "" || s.seeded.Swap(true) {
			return nil, nil
		}
		seed := make([]byte, entropySeedLen)
		_, _ = rand.Read(seed) // never fails
		return seed, nil
	}
	return c
}

// Destroy ends the sandbox and removes every trace of it. Commands under way end
// with an InvalidStateError. It is idempotent and safe for concurrent use; when
// ctx ends first it may be called again.
func (s *Sandbox) Destroy(ctx context.Context) error {
	grace := max(s.config.StopGrace, 0)
	if s.State() == Paused {
		grace = 0 // it cannot stop by itself
	}
	s.markDestroyed(nil)
	return s.tearDown(ctx, grace)
}

// tearDown removes the machine and gives the image back, once.
func (s *Sandbox) tearDown(ctx context.Context, grace time.Duration) error {
	select {
	case s.tearing <- struct{}{}:
		defer func() { <-s.tearing }()
	case <-ctx.Done():
		return fmt.Errorf("cannot destroy sandbox %s: %w", s.id, context.Cause(ctx))
	}
	if s.torn {
		return nil
	}
	if !s.shown {
		s.shown = true
		s.manager.console(s.id, s.machine)
	}
	if err := s.machine.Destroy(ctx, grace); err != nil {
		return &VMError{fmt.Errorf("cannot destroy machine %s: %w", s.id, err)}
	}
	s.release()
	s.torn = true
	return nil
}
