package proc

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
)

func init() { roles["protected"] = playProtected }

// T02: when memory runs out the kernel spares the agent and no child of it. In a
// process of its own, which keeps the protection.
func TestOOMProtect(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "/proc/self/exe")
	cmd.Env = append(os.Environ(), roleVariable+"=protected")
	cmd.WaitDelay = patience
	out, err := cmd.CombinedOutput()
	var ee *exec.ExitError
	if errors.As(err, &ee) && strings.Contains(string(out), errNotAllowed.Error()) {
		t.Skipf("%v, which root in a container often lacks: run `sudo go test ./agent/proc` on a host itself", errNotAllowed)
	}
	if err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

var errNotAllowed = errors.New("this process may not be protected (needs CAP_SYS_RESOURCE)")

func playProtected() error {
	m := NewManager(Options{OOMProtect: true})
	defer m.Close()
	score := func() string {
		b, _ := os.ReadFile(oomFile)
		return strings.TrimSpace(string(b))
	}
	if score() != "-1000" {
		return errNotAllowed
	}
	var mu sync.Mutex
	var errs []error
	var runs sync.WaitGroup
	for range 50 {
		runs.Go(func() {
			p, err := m.Start(Spec{Args: sh("cat " + oomFile + " | grep -qx 0")})
			if err == nil {
				_ = p.Stdout().Close()
				_ = p.Stderr().Close()
				<-p.Wait()
				if p.Status() != (Status{}) {
					err = fmt.Errorf("a child is protected, too: %+v", p.Status())
				}
			}
			mu.Lock()
			errs = append(errs, err)
			mu.Unlock()
		})
	}
	runs.Wait()
	if got := score(); got != "-1000" {
		errs = append(errs, fmt.Errorf("afterwards the score is %s, want -1000", got))
	}
	return errors.Join(errs...)
}
