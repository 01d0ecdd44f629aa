package cli

import (
	"context"
	"errors"
	"syscall"
	"testing"
)

// received is a command that notes its signals and ends after some.
type received struct {
	signals chan syscall.Signal
	err     error
}

func (r *received) Signal(s syscall.Signal) error {
	r.signals <- s
	return r.err
}

func TestInterrupter(t *testing.T) {
	newInterrupter := func(t *testing.T) (*interrupter, context.Context, *received) {
		ctx, cancel := context.WithCancelCause(t.Context())
		return &interrupter{cancel: cancel, terminal: func(syscall.Signal) {}}, ctx, &received{signals: make(chan syscall.Signal, 8)}
	}
	t.Run("before there is a command, the first ends all", func(t *testing.T) {
		i, ctx, _ := newInterrupter(t)
		i.handle(syscall.SIGTERM)
		if sig, ok := causedBySignal(ctx); !ok || sig.code() != 143 {
			t.Errorf("the context ended with %v, want SIGTERM", context.Cause(ctx))
		}
	})
	t.Run("while one starts, signals wait for it", func(t *testing.T) {
		i, ctx, r := newInterrupter(t)
		i.begin()
		i.handle(syscall.SIGUSR1)
		i.handle(syscall.SIGINT)
		_ = i.during(r, func() error {
			if got := []syscall.Signal{<-r.signals, <-r.signals}; got[0] != syscall.SIGUSR1 || got[1] != syscall.SIGINT || ctx.Err() != nil {
				t.Errorf("the command got %v, the context %v; want SIGUSR1, SIGINT and no end", got, ctx.Err())
			}
			i.handle(syscall.SIGTERM)
			if sig, ok := causedBySignal(ctx); !ok || sig.code() != 130 {
				t.Errorf("after a second one the context ended with %v, want SIGINT, the first", context.Cause(ctx))
			}
			return nil
		})
	})
	t.Run("a start that hangs is ended by the second", func(t *testing.T) {
		i, ctx, _ := newInterrupter(t)
		i.begin()
		i.handle(syscall.SIGINT)
		i.handle(syscall.SIGINT)
		if _, ok := causedBySignal(ctx); !ok {
			t.Error("the context lives on, want it ended")
		}
		i.over()
		i.over() // may be said twice
	})
	t.Run("a guest that does not read cannot keep the second away", func(t *testing.T) {
		i, ctx, _ := newInterrupter(t)
		stuck := &received{signals: make(chan syscall.Signal)}
		i.begin()
		_ = i.during(stuck, func() error {
			i.handle(syscall.SIGINT)
			i.handle(syscall.SIGINT)
			if _, ok := causedBySignal(ctx); !ok {
				t.Error("the context lives on, want it ended")
			}
			<-stuck.signals
			return nil
		})
	})
	t.Run("signals without a keyboard set a deadline", func(t *testing.T) {
		for s, want := range map[syscall.Signal]bool{syscall.SIGTERM: true, syscall.SIGHUP: true, syscall.SIGINT: false, syscall.SIGUSR1: false} {
			i, _, _ := newInterrupter(t)
			i.begin()
			if got := i.handle(s); got != want {
				t.Errorf("%v sets a deadline: %v, want %v", s, got, want)
			}
		}
	})
	t.Run("a command that cannot be told is ended", func(t *testing.T) {
		i, ctx, r := newInterrupter(t)
		r.err = errors.New("cannot signal")
		i.begin()
		i.handle(syscall.SIGINT)
		_ = i.during(r, func() error {
			<-ctx.Done()
			return nil
		})
		if _, ok := causedBySignal(ctx); !ok {
			t.Errorf("the context ended with %v, want SIGINT", context.Cause(ctx))
		}
	})
}
