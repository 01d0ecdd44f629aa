package firecracker

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// wardenName is the argv[0] of a machine's warden.
const wardenName = "bouvet-warden"

const (
	// exitOrphan is the status of a warden that was given no orders.
	exitOrphan = 125
	// exitSignal is added to the number of the signal that ended Firecracker.
	exitSignal = 128
	// maxOrders bounds the orders, in bytes.
	maxOrders = 64 << 10
)

// Orders are for a warden.
type orders struct {
	Binds []bind `json:"binds"`
	// Command is the jailer's command line, its path first.
	Command []string `json:"command"`
}

// Dispatch turns the process into the warden of a machine if it was started as one,
// and then does not return. It must be called first of all by main, and by TestMain.
//
// A warden is the first process of the machine's process namespace, which ends with
// it, and dies with the machine's owner; Firecracker, as another user, cannot be made
// to. It waits for its orders until the owner has put it under the machine's limits,
// mounts the machine's files where only the machine sees them, starts the jailer,
// which becomes Firecracker, and tells how that ended.
func Dispatch() {
	if len(os.Args) == 2 && os.Args[0] == wardenName {
		os.Exit(warden())
	}
}

func warden() int {
	data, err := io.ReadAll(io.LimitReader(os.Stdin, maxOrders)) //nolint:forbidigo // limited; our own owner's.
	var o orders
	if err == nil {
		err = json.Unmarshal(data, &o) //nolint:forbidigo // our own owner's.
	}
	if err == nil && os.Getpid() != 1 {
		err = errors.New("it is not alone in its namespace")
	}
	if err != nil || len(o.Command) == 0 {
		return fail("has no orders", err)
	}
	if err := mountFiles(o.Binds); err != nil {
		return fail("cannot prepare jail", err)
	}
	null, err := os.OpenFile(os.DevNull, os.O_RDONLY, 0)
	if err != nil {
		return fail("cannot start jailer", err)
	}
	p, err := os.StartProcess(o.Command[0], o.Command, &os.ProcAttr{Dir: "/", Env: []string{}, Files: []*os.File{null, os.Stdout, os.Stderr}})
	if err != nil {
		return fail("cannot start jailer", err)
	}
	return await(p.Pid)
}

func fail(what string, err error) int {
	fmt.Fprintf(os.Stderr, "%s: %s: %v\n", wardenName, what, err)
	return exitOrphan
}

// await returns the exit status of process pid, and buries all others.
func await(pid int) int {
	for {
		var status unix.WaitStatus
		got, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return fail("cannot wait for Firecracker", err)
		case got == pid && status.Signaled():
			return exitSignal + int(status.Signal())
		case got == pid && status.Exited():
			return status.ExitStatus()
		}
	}
}

// mountFiles mounts the files in this process's own mount namespace.
func mountFiles(binds []bind) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	for _, b := range binds {
		if err := b.mount(); err != nil {
			return fmt.Errorf("cannot mount %s: %w", b.From, err)
		}
	}
	return nil
}

func (b *bind) mount() error {
	if err := unix.Mount(b.From, b.To, "", unix.MS_BIND, ""); err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(b.To, &st); err != nil {
		return err
	}
	if st.Dev != b.Dev || st.Ino != b.Inode {
		return errors.New("it was replaced by another")
	}
	flags := uintptr(unix.MS_BIND | unix.MS_REMOUNT | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if !b.Writable {
		flags |= unix.MS_RDONLY
	}
	return unix.Mount("", b.To, "", flags, "")
}
