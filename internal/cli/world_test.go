package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/internal/kernel"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/local"
	"github.com/bouvet-run/bouvet/vm"
)

// A testWorld runs command lines in-process.
type testWorld struct {
	*world
	out, err syncBuffer
	env      map[string]string
	signals  chan os.Signal
}

func newTestWorld(t *testing.T, b backend) *testWorld {
	t.Helper()
	w := &testWorld{env: map[string]string{}, signals: make(chan os.Signal, 16)}
	w.world = &world{
		stdin: strings.NewReader(""), stdout: &w.out, stderr: &w.err,
		lookupEnv: func(key string) (string, bool) { v, ok := w.env[key]; return v, ok },
		notify:    func(...os.Signal) (<-chan os.Signal, func()) { return w.signals, func() {} },
		backend:   b,
	}
	return w
}

func (w *testWorld) run(t *testing.T, args ...string) int {
	t.Helper()
	return run(t.Context(), w.world, args)
}

// A syncBuffer may be read while it is written.
type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// A fakeBackend has a real store and whatever driver a test gives it.
type fakeBackend struct {
	store    *image.Store
	kernels  string
	state    string // of snapshots and logs
	driver   vm.Driver
	buildErr error
	built    int
	trials   []local.Trial
	tryErr   error
}

func newFakeBackend(t *testing.T) *fakeBackend {
	t.Helper()
	store, err := image.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return &fakeBackend{store: store, kernels: t.TempDir(), state: t.TempDir()}
}

var errNoDriver = errors.New("no driver in this test")

func (b *fakeBackend) Images() (*image.Store, error) { return b.store, nil }

func (b *fakeBackend) Snapshots() (*snapstore.Store, error) {
	dir, err := statedir.Snapshots(b.state)
	if err != nil {
		return nil, err
	}
	return snapstore.Open(dir)
}

func (b *fakeBackend) Bases() (bouvet.Bases, error) {
	dir, err := statedir.Bases(b.state)
	if err != nil {
		return nil, err
	}
	return snapstore.OpenBases(dir)
}

func (b *fakeBackend) Logs() (string, error) { return statedir.Logs(b.state) }

func (b *fakeBackend) Kernels() (*kernel.Store, error) { return kernel.Open(b.kernels) }

func (b *fakeBackend) BuildDefault(ctx context.Context, store *image.Store, opts image.BuildOptions) (image.Info, error) {
	b.built++
	if b.buildErr != nil {
		return image.Info{}, b.buildErr
	}
	opts.Progress(image.Event{Stage: "pretending"})
	return store.ImportTar(ctx, image.DefaultName, tarOf("etc/passwd", "root:x:0:0::/root:/bin/sh\n"), image.ImportOptions{Source: "a test"})
}

func (b *fakeBackend) Driver(context.Context, string, *slog.Logger) (vm.Driver, error) {
	if b.driver == nil {
		return nil, errNoDriver
	}
	return b.driver, nil
}

func (b *fakeBackend) Try(context.Context, *slog.Logger) ([]local.Trial, error) {
	return b.trials, b.tryErr
}

func (b *fakeBackend) Sweep(ctx context.Context, remove bool, _ *slog.Logger) ([]vm.Leftover, error) {
	if b.driver == nil {
		return nil, nil
	}
	return b.driver.Sweep(ctx, remove)
}

var _ io.Writer = (*syncBuffer)(nil)
