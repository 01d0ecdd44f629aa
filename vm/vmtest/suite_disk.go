package vmtest

import (
	"errors"
	"fmt"
	"strings"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/vm"
)

var diskSections = []section{
	{"has its size", diskSize},
	{"T03 full", diskFull},
	{"saved", diskSaved},
}

// suiteDiskMiB is the size of the suite's disks.
const suiteDiskMiB = 48

// disked describes a machine with a disk. It ends the section where the driver gives
// none and says so properly.
func (e *env) disked() vm.Config {
	e.Helper()
	c := e.config()
	c.DiskMiB = suiteDiskMiB
	if e.d.Features().Disk {
		return c
	}
	if _, err := e.d.Create(e.context(), c); !errors.Is(err, vm.ErrUnsupported) {
		e.Errorf("Create: got %v, want ErrUnsupported", err)
	}
	e.nothingLeft()
	e.Skip("the driver gives machines no disks: its Features say so")
	return c
}

// The guest's root is as large as the disk, and there is more room on it than in its
// memory. What another machine wrote is not there.
func diskSize(e *env) {
	c := e.disked()
	for range 2 {
		c.ID = e.config().ID
		g := e.boot(c)
		if e.fake() {
			g.ping()
		} else if got := g.sh("test ! -e /mine && echo mine > /mine && df -BM --output=size / | tail -1 | tr -d ' '"); got != "47M" {
			e.Errorf("the root's size: got %s, want 47M, as the file system itself takes 1M", got)
		}
		e.destroy(g)
		e.nothingLeft()
	}
	for _, mib := range []int{-1, vm.MinDiskMiB - 1, vm.MaxDiskMiB + 1} {
		c.DiskMiB = mib
		if _, err := e.d.Create(e.context(), c); !errors.Is(err, vm.ErrInvalidConfig) {
			e.Errorf("%d MiB: got %v, want ErrInvalidConfig", mib, err)
		}
	}
	e.nothingLeft()
}

// A guest that fills its disk, with bytes or with names, is told so, and lives.
func diskFull(e *env) {
	c := e.disked()
	e.sandboxed()
	g, neighbour := e.boot(c), e.boot(e.disked())
	for _, script := range []string{
		"head -c 2000000000 /dev/zero > /big",
		"mkdir -p /many && cd /many && i=0 && while : > $i; do i=$((i+1)); done",
	} {
		out, err := g.hostile(script)
		if err == nil || !strings.Contains(out, "No space left") {
			e.Errorf("%s: got %.2000q, %v, want no space left", script, out, err)
		}
		e.living(g)
		if got := g.sh("rm -rf /big /many && echo back > /small && sync && cat /small"); got != "back" {
			e.Errorf("%s: with room again: got %q", script, got)
		}
		if got := neighbour.sh("head -c 20000000 /dev/zero > /big && wc -c < /big && rm /big"); got != "20000000" {
			e.Errorf("%s: the neighbour: got %q", script, got)
		}
	}
}

// A snapshot has the disk as it was, and copies share nothing of it.
func diskSaved(e *env) {
	c := e.disked()
	e.saves()
	c = e.digested(c)
	g := e.boot(c)
	write := func(g *guest, what string) {
		if !e.fake() {
			g.sh("echo " + what + " >> /root/who")
		}
	}
	read := func(who string, g *guest, want string) {
		g.ping()
		if e.fake() {
			return
		}
		// Neither what is still in the guest's memory nor what has left it is lost.
		if got := g.sh("cat /root/who && sync && echo 3 > /proc/sys/vm/drop_caches && cat /root/who"); got != want+"\n"+want {
			e.Errorf("%s: got %q, want %q twice", who, got, want)
		}
	}
	write(g, "original")
	dir := e.save(g)
	write(g, "later")
	clones := make([]*guest, 3)
	for i := range clones {
		c.ID = e.config().ID
		m, err := e.d.Restore(e.context(), c, dir)
		if err != nil {
			e.Fatalf("Restore: %v", err)
		}
		e.Cleanup(func() {
			if err := m.Destroy(e.context(), 0); err != nil {
				e.Errorf("Destroy: %v", err)
			}
		})
		clones[i] = e.connect(m)
		e.thaw(clones[i], bouvet.ThawOptions{Clone: true, Hostname: m.ID()})
		write(clones[i], fmt.Sprint("clone-", i))
	}
	for i, clone := range clones {
		read(fmt.Sprint("clone ", i), clone, fmt.Sprint("original\nclone-", i))
	}
	read("the original", g, "original\nlater")
	for _, mib := range []int{0, suiteDiskMiB * 2} {
		c.ID, c.DiskMiB = e.config().ID, mib
		if _, err := e.d.Restore(e.context(), c, dir); !errors.Is(err, vm.ErrBadSnapshot) {
			e.Errorf("a disk of %d MiB: got %v, want ErrBadSnapshot", mib, err)
		}
	}
}
