package proc

import (
	"os"
	"sync"
)

// An oomShield keeps this program, but no child, from being chosen when memory
// runs out. A child inherits the value at its fork, and one that kept it could not
// be ended by the kernel at all; to change it afterwards would leave time to fork
// again. So the shield is down while a child is made. The methods of a nil shield
// do nothing.
type oomShield struct {
	mu   sync.Mutex
	down int // forks under way; guarded by mu
}

const oomFile = "/proc/self/oom_score_adj"

// newOOMShield returns nil where the kernel does not allow it.
func newOOMShield() *oomShield {
	o := &oomShield{}
	if o.write("-1000") != nil {
		return nil
	}
	return o
}

func (o *oomShield) write(value string) error {
	f, err := os.OpenFile(oomFile, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	if cerr := f.Close(); err == nil {
		err = cerr
	}
	return err
}

func (o *oomShield) lower() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down++; o.down == 1 {
		_ = o.write("0")
	}
}

func (o *oomShield) raise() {
	if o == nil {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.down--; o.down == 0 {
		_ = o.write("-1000")
	}
}
