package vmtest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

var snapshotSections = []section{
	{"directory", snapshotDirectory},
	{"running and paused", snapshotStates},
	{"T30 snapshot under traffic", snapshotTraffic},
	{"T39 snapshot cancelled at random instants", snapshotCancelled},
	{"T26 kill -9 within a snapshot", snapshotKilled},
	{"restore", restoreAnswers},
	{"T39 restore cancelled at random instants", restoreCancelled},
	{"restored machines run on", restoreRunsOn},
	{"nothing runs before the thaw", restoreFrozen},
	{"T30 renewals", restoreRenewals},
	{"T30 ten clones", restoreClones},
	{"snapshot of a restored machine", restoreGenerations},
	{"T31 refusals", restoreRefusals},
}

// saves skips the section where the driver cannot save machines; it says so properly.
func (e *env) saves() {
	e.Helper()
	if e.d.Features().Snapshot {
		return
	}
	dir := e.privateDir()
	if err := e.create(e.config()).Snapshot(e.context(), dir); !errors.Is(err, vm.ErrUnsupported) {
		e.Errorf("Snapshot: got %v, want ErrUnsupported", err)
	}
	if _, err := e.d.Restore(e.context(), e.config(), dir); !errors.Is(err, vm.ErrUnsupported) {
		e.Errorf("Restore: got %v, want ErrUnsupported", err)
	}
	e.Skip("the driver cannot save machines on this host: its Features say so")
}

// privateDir makes a directory that can take a snapshot.
func (e *env) privateDir() string {
	e.Helper()
	dir := filepath.Join(e.TempDir(), "snapshot")
	if err := os.Mkdir(dir, 0o700); err != nil {
		e.Fatal(err)
	}
	return dir
}

// imageDigests are those of images that were read already, by path.
var imageDigests sync.Map

// digested returns c with the digest of its image, where that is a real one: each
// snapshot would have to find it out otherwise.
func (e *env) digested(c vm.Config) vm.Config {
	e.Helper()
	if e.fake() {
		return c
	}
	known, ok := imageDigests.Load(c.Image)
	if !ok {
		sum, err := snapshot.ImageDigest(e.context(), &c)
		if err != nil {
			e.Fatal(err)
		}
		known, _ = imageDigests.LoadOrStore(c.Image, sum)
	}
	c.ImageDigest = known.(string)
	return c
}

// save freezes the guest, saves it into a new directory, and thaws it.
func (e *env) save(g *guest) string {
	e.Helper()
	dir := e.privateDir()
	e.freeze(g)
	if err := g.Snapshot(e.context(), dir); err != nil {
		e.Fatalf("Snapshot: %v", err)
	}
	e.thaw(g, bouvet.ThawOptions{})
	return dir
}

func (e *env) freeze(g *guest) {
	e.Helper()
	if err := g.Freeze(e.context()); err != nil {
		e.Fatalf("freeze: %v", err)
	}
}

func (e *env) thaw(g *guest, o bouvet.ThawOptions) {
	e.Helper()
	if err := g.Thaw(e.context(), o); err != nil {
		e.Fatalf("thaw: %v", err)
	}
}

// restore makes a machine of a snapshot and waits for its agent. It is frozen.
func (e *env) restore(dir string) *guest {
	e.Helper()
	m, err := e.d.Restore(e.context(), e.digested(e.config()), dir)
	if err != nil {
		e.Fatalf("Restore: %v", err)
	}
	e.Cleanup(func() {
		if err := m.Destroy(e.context(), 0); err != nil {
			e.Errorf("Destroy: %v", err)
		}
	})
	return e.connect(m)
}

// clone makes a machine of a snapshot that runs, and has the name of its ID.
func (e *env) clone(dir string) *guest {
	e.Helper()
	g := e.restore(dir)
	e.thaw(g, bouvet.ThawOptions{Clone: true, Hostname: g.ID()})
	return g
}

// empty fails unless nothing is in dir.
func (e *env) empty(dir string) {
	e.Helper()
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		e.Errorf("the directory has %v, %v, want nothing", entries, err)
	}
}

// A machine is saved into a directory of its own, and into nothing else.
func snapshotDirectory(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	full, open := e.privateDir(), e.privateDir()+"-open"
	precious := filepath.Join(full, "precious")
	if err := os.WriteFile(precious, []byte("mine"), 0o600); err != nil {
		e.Fatal(err)
	}
	if err := os.Mkdir(open, 0o777); err != nil { //nolint:gosec // it is to be refused.
		e.Fatal(err)
	}
	if err := os.Chmod(open, 0o777); err != nil { //nolint:gosec,forbidigo // whatever the umask is.
		e.Fatal(err)
	}
	link := filepath.Join(e.TempDir(), "link")
	if err := os.Symlink(e.privateDir(), link); err != nil {
		e.Fatal(err)
	}
	for name, dir := range map[string]string{
		"not empty": full, "T44 relative": "snapshot", "missing": full + "-none", "a file": precious, "writable for all": open, "a link": link,
	} {
		if err := g.Snapshot(e.context(), dir); err == nil {
			e.Errorf("%s: it was saved there", name)
		}
	}
	if b, err := os.ReadFile(precious); string(b) != "mine" {
		e.Errorf("what was there: got %q, %v", b, err)
	}
	e.living(g)
	g.ping()
}

// After a snapshot a machine is what it was before.
func snapshotStates(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	e.save(g)
	e.living(g)
	g.sh("true")
	if !e.d.Features().Pause {
		return
	}
	e.pause(g)
	if err := g.Snapshot(e.context(), e.privateDir()); err != nil {
		e.Fatalf("Snapshot of a paused machine: %v", err)
	}
	e.silent(g)
	e.resume(g)
	g.sh("true")
	e.destroy(g)
	e.wantGone("Snapshot after Destroy", g.Snapshot(e.context(), e.privateDir()))
}

// Those who use the machine meanwhile lose nothing.
func snapshotTraffic(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	if e.d.Features().SnapshotResets {
		e.streamsReset(g)
		return
	}
	path := g.tempDir() + "/file"
	data := noise(bulk)
	t := g.traffic()
	var transfer sync.WaitGroup
	begun := make(chan struct{})
	transfer.Go(func() {
		if n, err := g.Upload(e.context(), path, &announcer{r: bytes.NewReader(data), read: begun}, nil); err != nil || n != bulk {
			e.Errorf("upload: got %d, %v", n, err)
		}
		var back bytes.Buffer
		if n, err := g.Download(e.context(), path, &back); err != nil || !bytes.Equal(back.Bytes(), data) {
			e.Errorf("download: got %d bytes, %v, or others than those sent", n, err)
		}
	})
	<-begun // a frozen guest refuses uploads that begin
	for range 3 {
		e.save(g)
	}
	transfer.Wait()
	t.end(e)
	g.ping()
}

// streamsReset saves a machine whose driver cannot keep its streams: none of them
// hangs, and new ones are answered.
func (e *env) streamsReset(g *guest) {
	e.Helper()
	idle, t := e.dial(g, wire.PortRPC), g.traffic()
	e.rpcPing(idle)
	e.save(g)
	late := time.NewTimer(prompt)
	defer late.Stop()
	select {
	case err := <-t.over:
		if err == nil {
			e.Error("a command went on without its stream")
		}
	case <-late.C:
		e.Fatalf("a command still waits %v after the snapshot", prompt)
	}
	if err := idle.SetReadDeadline(time.Now().Add(prompt)); err == nil {
		if _, err := idle.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			e.Errorf("an idle stream: got %v, want its end", err)
		}
	}
	g.ping()
	g.sh("true")
}

// An announcer tells of its first Read.
type announcer struct {
	r    io.Reader
	read chan struct{}
	once sync.Once
}

func (a *announcer) Read(p []byte) (int, error) {
	a.once.Do(func() { close(a.read) })
	return a.r.Read(p)
}

// A snapshot that is given up at any instant has left nothing, and a running machine.
func snapshotCancelled(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	begin := time.Now()
	e.save(g)
	whole := time.Since(begin)
	dir, cancelled := e.privateDir(), 0
	for range 20 {
		ctx, cancel := context.WithTimeout(e.context(), rand.N(whole)) //nolint:gosec // any instant will do.
		err := g.Snapshot(ctx, dir)
		cancel()
		switch {
		case err == nil:
			if err := snapshot.Clear(dir); err != nil {
				e.Fatal(err)
			}
		case errors.Is(err, context.DeadlineExceeded):
			cancelled++
		default:
			e.Errorf("got %v, want DeadlineExceeded", err)
		}
		e.empty(dir)
		g.ping()
	}
	e.Logf("%d of 20 cancelled within %v", cancelled, whole)
	e.living(g)
	g.sh("true")
}

func snapshotKilled(e *env) {
	e.saves()
	first := e.boot(e.digested(e.config()))
	begin := time.Now()
	e.save(first)
	whole := time.Since(begin)
	e.destroy(first)
	for range 3 {
		g := e.boot(e.digested(e.config()))
		dir := e.privateDir()
		saved := make(chan error, 1)
		go func() { saved <- g.Snapshot(e.context(), dir) }()
		select {
		case <-time.After(rand.N(whole)): //nolint:gosec // any instant will do.
		case <-g.Done():
		}
		e.s.Kill(e, g.Machine)
		e.ended(g, prompt)
		if err := <-saved; err != nil {
			e.wantGone("Snapshot", err)
			e.empty(dir)
		}
		e.destroy(g)
	}
	e.nothingLeft()
}

// A snapshot serves after its machine is gone, and in another driver of the same state.
func restoreAnswers(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	dir := e.save(g)
	id := g.ID()
	e.destroy(g)
	e.nothingLeft()
	e.d = e.s.New(e)
	g = e.clone(dir)
	g.ping()
	e.living(g)
	if g.ID() == id {
		e.Errorf("ID: got that of the source, %s", id)
	}
	g.sh("true")
	c := e.digested(e.config())
	c.ID = g.ID()
	if _, err := e.d.Restore(e.context(), c, dir); !errors.Is(err, vm.ErrExists) {
		e.Errorf("a second machine of the ID: got %v, want ErrExists", err)
	}
	g.ping()
	e.destroy(g)
	e.wantGone("Snapshot after Destroy", g.Snapshot(e.context(), e.privateDir()))
	e.nothingLeft()
}

func restoreCancelled(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	dir := e.save(g)
	e.destroy(g)
	begin := time.Now()
	e.destroy(e.restore(dir))
	whole := time.Since(begin)
	cancelled := 0
	for range 20 {
		ctx, cancel := context.WithTimeout(e.context(), rand.N(whole)) //nolint:gosec // any instant will do.
		m, err := e.d.Restore(ctx, e.digested(e.config()), dir)
		cancel()
		switch {
		case err == nil:
			e.destroy(m)
		case errors.Is(err, context.DeadlineExceeded):
			cancelled++
		default:
			e.Errorf("got %v, want DeadlineExceeded", err)
		}
		e.nothingLeft()
	}
	e.Logf("%d of 20 cancelled within %v", cancelled, whole)
	e.destroy(e.clone(dir))
}

// copyOf copies a snapshot, so that it can be spoilt.
func (e *env) copyOf(dir string) string {
	e.Helper()
	to := e.privateDir()
	entries, err := os.ReadDir(dir)
	if err != nil {
		e.Fatal(err)
	}
	for _, entry := range entries {
		if err := e.copyFile(filepath.Join(to, entry.Name()), filepath.Join(dir, entry.Name())); err != nil {
			e.Fatal(err)
		}
	}
	return to
}

func (e *env) copyFile(to, from string) (err error) {
	src, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = src.Close() }()
	dst, err := os.OpenFile(to, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dst.Close()) }()
	return snapshot.CopySparse(e.context(), dst, src)
}

// changed rewrites the manifest of a copy.
func (e *env) changed(dir, old, replacement string) {
	e.Helper()
	path := filepath.Join(dir, "manifest.json")
	b, err := os.ReadFile(path)
	if err != nil {
		e.Fatal(err)
	}
	if !strings.Contains(string(b), old) {
		e.Fatalf("the manifest has no %q: %s", old, b)
	}
	if err := os.WriteFile(path, []byte(strings.Replace(string(b), old, replacement, 1)), 0o600); err != nil { //nolint:gosec // a copy of the test.
		e.Fatal(err)
	}
}
