package agent

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// fakePool notes what is done to it.
type fakePool struct {
	did                              []string
	got                              []byte
	creditErr, reseedErr, writeError error
}

func (p *fakePool) credit(seed []byte) error {
	p.did, p.got = append(p.did, "credit"), bytes.Clone(seed)
	return p.creditErr
}

func (p *fakePool) reseed() error {
	p.did = append(p.did, "reseed")
	return p.reseedErr
}

func (p *fakePool) write(seed []byte) error {
	p.did, p.got = append(p.did, "write"), bytes.Clone(seed)
	return p.writeError
}

// J3: a seed counts where the kernel lets it count, and is mixed in elsewhere.
func TestSeedPool(t *testing.T) {
	for _, c := range []struct {
		name string
		pool fakePool
		want []string
		err  error
	}{
		{"root", fakePool{}, []string{"credit", "reseed"}, nil},
		{"not seeded before", fakePool{reseedErr: unix.ENODATA}, []string{"credit", "reseed"}, nil},
		{"reseed fails", fakePool{reseedErr: unix.EIO}, []string{"credit", "reseed"}, unix.EIO},
		{"gVisor", fakePool{creditErr: unix.ENOTTY}, []string{"credit", "write"}, nil},
		{"not root", fakePool{creditErr: unix.EPERM}, []string{"credit", "write"}, nil},
		{"nothing works", fakePool{creditErr: unix.EPERM, writeError: unix.EBADF}, []string{"credit", "write"}, unix.EBADF},
	} {
		t.Run(c.name, func(t *testing.T) {
			seed := bytes.Repeat([]byte("x"), 10000)
			err := seedPool(&c.pool, seed)
			if !errors.Is(err, c.err) || !slices.Equal(c.pool.did, c.want) {
				t.Errorf("got %v, %q, want %v, %q", err, c.pool.did, c.err, c.want)
			}
			if got, want := len(c.pool.got), maxEntropySeed; got != want {
				t.Errorf("%d bytes were used, want %d", got, want)
			}
		})
	}
}

// The ioctls as this kernel has them.
func TestRandomDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("crediting entropy needs root: run the tests as root")
	}
	dev, err := openRandom("/dev/urandom")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = dev.f.Close() }()
	before := entropyAvailable(t)
	seed := bytes.Repeat([]byte{0xA5}, 64)
	switch err := dev.credit(seed); {
	case errors.Is(err, unix.ENOTTY):
		t.Skip("this kernel has no entropy pool (gVisor): run on Linux itself")
	case err != nil:
		t.Fatalf("cannot credit: %v", err)
	}
	if err := dev.reseed(); err != nil {
		t.Errorf("cannot reseed: %v", err)
	}
	if err := dev.write(seed); err != nil {
		t.Errorf("cannot write: %v", err)
	}
	if after := entropyAvailable(t); after < before {
		t.Errorf("available entropy fell from %d to %d", before, after)
	}
	if err := addEntropy(seed); err != nil {
		t.Errorf("addEntropy: %v", err)
	}
}

func entropyAvailable(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/sys/kernel/random/entropy_avail")
	if err != nil {
		t.Skipf("cannot tell how much entropy there is: %v; `mount -t proc proc /proc`", err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// A guest may have put anything in the place of the device.
func TestOpenRandomOfSomethingElse(t *testing.T) {
	dir := t.TempDir()
	fifo, file := filepath.Join(dir, "fifo"), filepath.Join(dir, "file")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, file, dir, filepath.Join(dir, "missing")} {
		if dev, err := openRandom(path); err == nil {
			_ = dev.f.Close()
			t.Errorf("%s was taken for the random device", path)
		}
	}
}
