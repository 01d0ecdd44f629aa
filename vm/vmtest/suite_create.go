package vmtest

import (
	"context"
	"errors"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

var createSections = []section{
	{"features", features},
	{"refused", createRefused},
	{"exists", createExists},
	{"T39 exists concurrently", createExistsConcurrently},
	{"boots", createBoots},
	{"context ends", createContextEnds},
	{"T39 cancelled at random instants", createCancelled},
	{"T39 many at once", createMany},
	{"sweep leaves the living alone", sweepLeavesLiving},
}

func features(e *env) {
	if e.d.Name() == "" || e.d.Features().Isolation == "" {
		e.Errorf("got name %q and isolation %q, want both", e.d.Name(), e.d.Features().Isolation)
	}
	if e.d.Features().Detached {
		return
	}
	c := e.config()
	c.Detached = true
	if _, err := e.d.Create(e.context(), c); !errors.Is(err, vm.ErrUnsupported) {
		e.Errorf("a detached machine: got %v, want ErrUnsupported", err)
	}
	e.nothingLeft()
}

// A configuration that cannot be is refused before anything is made.
func createRefused(e *env) {
	for name, spoil := range map[string]func(*vm.Config){
		"no ID":              func(c *vm.Config) { c.ID = "" },
		"short ID":           func(c *vm.Config) { c.ID = "short" },
		"T44 ID of a path":   func(c *vm.Config) { c.ID = "../../../../etc/passwd" },
		"T44 ID of 65":       func(c *vm.Config) { c.ID = strings.Repeat("x", 65) },
		"ID in upper case":   func(c *vm.Config) { c.ID = "ABCDEFGHIJ" },
		"no image":           func(c *vm.Config) { c.Image = "" },
		"relative image":     func(c *vm.Config) { c.Image = "image.erofs" },
		"no memory":          func(c *vm.Config) { c.MemoryMiB = 0 },
		"little memory":      func(c *vm.Config) { c.MemoryMiB = vm.MinMemoryMiB - 1 },
		"much memory":        func(c *vm.Config) { c.MemoryMiB = vm.MaxMemoryMiB + 1 },
		"negative memory":    func(c *vm.Config) { c.MemoryMiB = -1 },
		"no CPU":             func(c *vm.Config) { c.VCPUs = 0 },
		"many CPUs":          func(c *vm.Config) { c.VCPUs = vm.MaxVCPUs + 1 },
		"T23 host name":      func(c *vm.Config) { c.Hostname = "a\nb" },
		"host name of paths": func(c *vm.Config) { c.Hostname = "../x" },
	} {
		c := e.config()
		spoil(&c)
		m, err := e.d.Create(e.context(), c)
		if !errors.Is(err, vm.ErrInvalidConfig) {
			e.Errorf("%s: got %v, want ErrInvalidConfig", name, err)
		}
		if err == nil {
			e.destroy(m)
		}
		e.nothingLeft()
	}
	if e.fake() {
		return // it looks at no image
	}
	c := e.config()
	c.Image = filepath.Join(e.TempDir(), "none")
	if m, err := e.d.Create(e.context(), c); err == nil {
		e.Error("a machine without an image was made")
		e.destroy(m)
	}
	e.nothingLeft()
}

// A second machine of an ID is refused, and the first is none the worse for it.
func createExists(e *env) {
	c := e.config()
	g := e.boot(c)
	if _, err := e.d.Create(e.context(), c); !errors.Is(err, vm.ErrExists) {
		e.Errorf("got %v, want ErrExists", err)
	}
	g.ping()
	if got := g.ID(); got != c.ID {
		e.Errorf("ID: got %s, want %s", got, c.ID)
	}
}

// Of several who create one ID at once, exactly one succeeds.
func createExistsConcurrently(e *env) {
	c := e.config()
	made := make(chan vm.Machine, 4)
	var creators sync.WaitGroup
	for range cap(made) {
		creators.Go(func() {
			m, err := e.d.Create(e.context(), c)
			switch {
			case err == nil:
				made <- m
			case !errors.Is(err, vm.ErrExists):
				e.Errorf("got %v, want ErrExists", err)
			}
		})
	}
	creators.Wait()
	close(made)
	n := 0
	for m := range made {
		n++
		e.connect(m).ping()
		e.destroy(m)
	}
	if n != 1 {
		e.Errorf("got %d machines of one ID, want 1", n)
	}
	e.nothingLeft()
}

// The agent answers, and tells who it is.
func createBoots(e *env) {
	c := e.config()
	c.Hostname = "conformance"
	g := e.boot(c)
	g.ping()
	e.living(g)
	info, err := g.Info(e.context())
	if err != nil || info.Agent == "" {
		e.Fatalf("info: got %+v, %v", info, err)
	}
	for _, capability := range []string{wire.CapExecExtended, wire.CapExecBinary, wire.CapFiles, wire.CapStreams, wire.CapFreeze} {
		if !info.Has(capability) {
			e.Errorf("the agent lacks %s", capability)
		}
	}
	if e.fake() {
		return
	}
	if got := g.sh("hostname"); got != c.Hostname {
		e.Errorf("host name: got %q, want %q", got, c.Hostname)
	}
	if got, want := e.boot(e.config()), ""; got.sh("hostname") == want {
		e.Error("a machine without Config.Hostname has none")
	}
}

// The context of Create bounds the call and not the machine's life.
func createContextEnds(e *env) {
	ctx, cancel := context.WithCancel(e.context())
	m, err := e.d.Create(ctx, e.config())
	cancel()
	if err != nil {
		e.Fatal(err)
	}
	g := e.connect(m)
	g.sh("true")
	e.living(m)
	e.destroy(m)

	m, err = e.d.Create(ctx, e.config())
	if !errors.Is(err, context.Canceled) {
		e.Errorf("Create with an ended context: got %v, want Canceled", err)
	}
	if err == nil {
		e.destroy(m)
	}
	e.nothingLeft()
}

// A creation that is cancelled at any instant has left nothing when it returns.
func createCancelled(e *env) {
	begin := time.Now()
	e.destroy(e.create(e.config()))
	whole := time.Since(begin)
	cancelled := 0
	for range 50 {
		ctx, cancel := context.WithTimeout(e.context(), rand.N(whole)) //nolint:gosec // any instant will do.
		m, err := e.d.Create(ctx, e.config())
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
	e.Logf("%d of 50 cancelled within %v", cancelled, whole)
	if cancelled == 0 {
		e.Error("nothing was cancelled")
	}
}

// Creations do not wait for each other, nor mix their machines up.
func createMany(e *env) {
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			c := e.config()
			m, err := e.d.Create(e.context(), c)
			if err != nil {
				e.Errorf("Create: %v", err)
				return
			}
			if m.ID() != c.ID {
				e.Errorf("ID: got %s, want %s", m.ID(), c.ID)
			}
			if err := m.Destroy(e.context(), 0); err != nil {
				e.Errorf("Destroy: %v", err)
			}
		})
	}
	all.Wait()
	e.nothingLeft()
}

// A sweep touches nothing that belongs to a living process, whoever asks for it.
func sweepLeavesLiving(e *env) {
	g := e.boot(e.config())
	for _, d := range []vm.Driver{e.d, e.s.New(e)} {
		for _, remove := range []bool{false, true} {
			if found, err := d.Sweep(e.context(), remove); err != nil || len(found) > 0 {
				e.Errorf("Sweep: got %+v, %v, want nothing", found, err)
			}
		}
	}
	g.ping()
	e.destroy(g)
	e.nothingLeft()
	ended, cancel := context.WithCancel(e.context())
	cancel()
	if _, err := e.d.Sweep(ended, true); err != nil && !errors.Is(err, context.Canceled) {
		e.Errorf("Sweep with an ended context: got %v, want Canceled or nil", err)
	}
}
