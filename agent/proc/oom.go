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
	f    *os.File
	mu   sync.Mutex
	down int // forks under way; guarded by mu
}

const oomFile = "/proc/self/oom_score_adj"

// newOOMShield returns nil where the kernel does not allow it. The file stays
// open: two system calls a command instead of six, and where each is answered by
// a kernel in user space that counts.
func newOOMShield() *oomShield {
	f, err := os.OpenFile(oomFile, os.O_WRONLY, 0)
	if err != nil {
		return nil
	}
	o := &oomShield{f: f}
	if o.write("-1000") != nil {
		_ = f.Close()
		return nil
	}
	return o
}

func (o *oomShield) write(value string) error {
	_, err := o.f.WriteAt([]byte(value), 0)
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

// close gives up changing the value; the program keeps what it has.
func (o *oomShield) close() {
	if o != nil {
		_ = o.f.Close()
	}
}
