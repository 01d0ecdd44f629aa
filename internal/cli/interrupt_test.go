package cli

import (
	"context"
	"encoding/json"
	"syscall"
	"testing"

	"github.com/bouvet-run/bouvet/image"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// slowBuild takes until its context ends.
type slowBuild struct {
	*fakeBackend
	begun chan struct{}
}

func (b slowBuild) BuildDefault(ctx context.Context, _ *image.Store, _ image.BuildOptions) (image.Info, error) {
	close(b.begun)
	<-ctx.Done()
	return image.Info{}, context.Cause(ctx)
}

// A signal during a build ends it, whichever command builds, with the signal's
// exit code.
func TestSignalDuringBuild(t *testing.T) {
	for _, args := range [][]string{{"image", "build-default"}, {"image", "build-default", "--json"}, {"run", "--", "true"}, {"run", "--json", "--", "true"}} {
		b := slowBuild{newFakeBackend(t), make(chan struct{})}
		b.driver = vmtest.NewFake(t, vmtest.FakeOptions{})
		w := newTestWorld(t, b)
		go func() {
			<-b.begun
			w.signals <- syscall.SIGTERM
		}()
		if got := w.run(t, args...); got != 143 {
			t.Errorf("%q: exit code %d, want 143; standard error: %s", args, got, w.err.String())
		}
		if !wantsJSON(args) {
			continue
		}
		var got struct{ Error jsonError }
		if err := json.Unmarshal([]byte(w.out.String()), &got); err != nil || got.Error.Kind != kindInterrupted {
			t.Errorf("%q printed %q, %v, want an error of kind %s", args, w.out.String(), err, kindInterrupted)
		}
	}
}
