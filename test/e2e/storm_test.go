package e2e

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

// ids returns n IDs that the ledger knows.
func ids(n int) []bouvet.SandboxID {
	all := make([]bouvet.SandboxID, n)
	for i := range all {
		all[i] = newID()
	}
	return all
}

// T39: create and destroy, over and over.
func TestCycles(t *testing.T) {
	cycles := 200
	if testing.Short() {
		cycles = 20
	}
	ledger(t)
	m := open(t)
	var all sync.WaitGroup
	const workers = 2
	list := ids(cycles)
	begin := time.Now()
	for w := range workers {
		all.Go(func() {
			for i := w; i < cycles; i += workers {
				s, err := m.CreateSandbox(timed(t), bouvet.Config{ID: list[i]})
				if err != nil {
					t.Errorf("cycle %d: %v", i, err)
					return
				}
				if i%10 == 0 {
					if r, err := s.Execute(timed(t), "echo "+itoa(i)); err != nil || r.Stdout != itoa(i)+"\n" {
						t.Errorf("cycle %d: got %+v, %v", i, r, err)
					}
				}
				if err := m.Destroy(timed(t), list[i]); err != nil {
					t.Errorf("cycle %d: %v", i, err)
				}
			}
		})
	}
	all.Wait()
	t.Logf("%d cycles in %v", cycles, time.Since(begin))
	if left := sentries(t, ""); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// T39: thirty at once, which all work, and all end together.
func TestThirtyAtOnce(t *testing.T) {
	ledger(t)
	m := open(t)
	var all sync.WaitGroup
	var answered atomic.Int64
	for i, id := range ids(30) {
		all.Go(func() {
			s, err := m.CreateSandbox(timed(t), bouvet.Config{ID: id, MemoryMiB: 128, ConnectTimeout: limit})
			if err != nil {
				t.Errorf("sandbox %d: %v", i, err)
				return
			}
			if r, err := s.Execute(timed(t), "hostname"); err != nil || r.Stdout != id.String()+"\n" {
				t.Errorf("sandbox %d: got %+v, %v", i, r, err)
				return
			}
			answered.Add(1)
		})
	}
	all.Wait()
	if got := answered.Load(); got != 30 || len(m.List()) != 30 {
		t.Errorf("%d of 30 answered, %d are listed", got, len(m.List()))
	}
	begin := time.Now()
	if err := m.DestroyAll(timed(t)); err != nil {
		t.Error(err)
	}
	t.Logf("all destroyed in %v", time.Since(begin))
	if left := sentries(t, ""); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// T39: everything at once and given up at any instant. Each call ends, with a
// result or an error that says why.
func TestStorm(t *testing.T) {
	ledger(t)
	m := open(t)
	var all sync.WaitGroup
	var created, cancelled, worked atomic.Int64
	rounds := 5
	for range 6 {
		list := ids(rounds)
		all.Go(func() {
			for _, id := range list {
				ctx, cancel := context.WithTimeout(timed(t), rand.N(600*time.Millisecond))
				s, err := m.CreateSandbox(ctx, bouvet.Config{ID: id})
				cancel()
				if err != nil {
					cancelled.Add(1)
					if !errors.Is(err, context.DeadlineExceeded) {
						t.Errorf("create: got %v, want DeadlineExceeded", err)
					}
					continue
				}
				created.Add(1)
				var work sync.WaitGroup
				for range 3 {
					work.Go(func() {
						ctx, cancel := context.WithTimeout(timed(t), rand.N(300*time.Millisecond))
						defer cancel()
						_, err := s.Client().Exec(ctx, "sleep 0.1; echo done", nil)
						switch {
						case err == nil:
							worked.Add(1)
						case errors.Is(err, context.DeadlineExceeded), errors.Is(err, bouvet.ErrInvalidState), errors.Is(err, vm.ErrGone):
						default:
							t.Errorf("exec: got %v, want its context's error or the sandbox's end", err)
						}
					})
					work.Go(func() {
						wait := time.NewTimer(rand.N(300 * time.Millisecond))
						<-wait.C
						if err := m.Destroy(timed(t), id); err != nil && !errors.Is(err, bouvet.ErrNotFound) {
							t.Errorf("destroy: got %v, want none or ErrNotFound", err)
						}
					})
				}
				work.Wait()
			}
		})
	}
	all.Wait()
	t.Logf("%d created, %d given up, %d commands ended by themselves", created.Load(), cancelled.Load(), worked.Load())
	if len(m.List()) > 0 {
		t.Errorf("the manager lists %v", m.List())
	}
	if left := sentries(t, ""); len(left) > 0 {
		t.Errorf("processes are left: %v", left)
	}
}

// T39: of several that want one ID exactly one gets it.
func TestOneID(t *testing.T) {
	ledger(t)
	managers := []*bouvet.Manager{open(t), open(t)}
	id := newID()
	var all sync.WaitGroup
	var won atomic.Int64
	for i := range 6 {
		all.Go(func() {
			_, err := managers[i%2].CreateSandbox(timed(t), bouvet.Config{ID: id})
			switch {
			case err == nil:
				won.Add(1)
			case !errors.Is(err, vm.ErrExists):
				t.Errorf("got %v, want ErrExists", err)
			}
		})
	}
	all.Wait()
	if got := won.Load(); got != 1 {
		t.Errorf("%d sandboxes of one ID", got)
	}
}
