package vmtest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/vm"
)

// countFile is what a counter counts into.
const countFile = "/tmp/count"

// counter starts a detached command that counts.
func (g *guest) counter() {
	g.e.Helper()
	c := g.Command(g.e.context(), "sh", "-c", `i=0; while :; do i=$((i+1)); echo $i > $0.new; mv $0.new $0; sleep 0.02; done`, countFile)
	c.Detach, c.ID = true, "counter"
	if err := c.Start(); err != nil {
		g.e.Fatal(err)
	}
	if err := c.Release(); err != nil {
		g.e.Fatal(err)
	}
	g.e.eventually("the counter counts", func() bool { _, err := g.ReadFile(g.e.context(), countFile); return err == nil })
}

// number reads what a counter has counted.
func (g *guest) number() int {
	g.e.Helper()
	text, err := g.ReadFile(g.e.context(), countFile)
	if err != nil {
		g.e.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(text))
	if err != nil {
		g.e.Fatal(err)
	}
	return n
}

// What ran and was written goes on in the copy; what belonged to the original's host
// does not.
func restoreRunsOn(e *env) {
	e.saves()
	e.sandboxed()
	g := e.boot(e.digested(e.config()))
	g.sh("echo tmpfs > /dev/shm/it; echo layer > /root/it; echo tmp > /tmp/it")
	g.counter()
	job := g.Command(e.context(), "sh", "-c", "echo joined; while read x; do echo got $x; done")
	job.Detach, job.ID = true, "job"
	if _, err := job.StdinPipe(); err != nil { // so that it has one
		e.Fatal(err)
	}
	if err := job.Start(); err != nil {
		e.Fatal(err)
	}
	if err := job.Release(); err != nil {
		e.Fatal(err)
	}
	attached := g.Command(e.context(), "sleep", "4711")
	if err := attached.Start(); err != nil {
		e.Fatal(err)
	}
	before := g.number()
	dir := e.save(g)
	if n := len(g.running(attached.PID())); n != 1 {
		e.Errorf("%d attached commands run in the original, want 1", n)
	}
	e.eventually("the original counts on", func() bool { return g.number() > before+5 })

	copied := e.clone(dir)
	if got := copied.sh("cat /dev/shm/it /root/it /tmp/it"); got != "tmpfs\nlayer\ntmp" {
		e.Errorf("files: got %q", got)
	}
	n := copied.number()
	if n < before {
		e.Errorf("the counter began anew: %d, was %d", n, before)
	}
	e.eventually("the copy counts on", func() bool { return copied.number() > n })
	if got := copied.running(attached.PID()); len(got) > 0 {
		e.Error("a command whose host is another's runs on in the copy")
	}
	again := copied.Attach(e.context(), "job", 0)
	stdin, err := again.StdinPipe()
	if err != nil {
		e.Fatal(err)
	}
	var out bytes.Buffer
	again.Stdout = &out
	if err := again.Start(); err != nil {
		e.Fatalf("attach to a detached command: %v", err)
	}
	if _, err := io.WriteString(stdin, "this\n"); err != nil {
		e.Error(err)
	}
	if err := errors.Join(stdin.Close(), again.Wait()); err != nil || out.String() != "joined\ngot this\n" {
		e.Errorf("attached: got %q, %v", out.String(), err)
	}
	// The original knows nothing of it.
	if n := len(g.running(attached.PID())); n != 1 {
		e.Errorf("%d attached commands run in the original, want 1", n)
	}
	g.sh("! test -e /root/other")
	e.living(g)
}

// Between restore and thaw the agent answers, and nobody else does anything.
func restoreFrozen(e *env) {
	e.saves()
	e.sandboxed()
	g := e.boot(e.digested(e.config()))
	g.counter()
	dir := e.save(g)
	copied := e.restore(dir)
	n := copied.number()
	copied.busy(silence)
	if got := copied.number(); got != n {
		e.Errorf("the counter went from %d to %d before the thaw", n, got)
	}
	if _, err := copied.Exec(e.context(), "true", nil); err == nil || !strings.Contains(err.Error(), "frozen") {
		e.Errorf("exec before the thaw: got %v, want a refusal", err)
	}
	if err := copied.Command(e.context(), "true").Run(); err == nil || !strings.Contains(err.Error(), "frozen") {
		e.Errorf("a command before the thaw: got %v, want a refusal", err)
	}
	e.thaw(copied, bouvet.ThawOptions{Clone: true, Hostname: "thawed"})
	e.eventually("it counts on", func() bool { return copied.number() > n })
}

// A copy has randomness, names and the time of its own.
func restoreRenewals(e *env) {
	e.saves()
	e.sandboxed()
	g := e.boot(e.digested(e.config()))
	g.sh("echo 0123456789abcdef0123456789abcdef > /etc/machine-id; mkdir -p /var/lib/systemd; echo seed > /var/lib/systemd/random-seed")
	dir := e.save(g)
	seen := map[string]string{}
	for i, it := range []*guest{g, e.clone(dir), e.clone(dir)} {
		who := fmt.Sprintf("copy %d", i)
		for what, script := range map[string]string{
			"random bytes": "head -c 32 /dev/urandom | od -An -tx1",
			"Python's":     `python3 -c 'import os; print(os.urandom(32).hex())'`,
			"host name":    "hostname",
			"machine-id":   "cat /etc/machine-id",
		} {
			got := what + " " + it.sh(script)
			if other, ok := seen[got]; ok {
				e.Errorf("%s has the same %.100s as %s", who, got, other)
			}
			seen[got] = who
		}
		if i > 0 {
			if got := it.sh("hostname; uname -n"); got != it.ID()+"\n"+it.ID() {
				e.Errorf("%s: host name: got %q, want %s", who, got, it.ID())
			}
			if _, err := it.try("test ! -e /var/lib/systemd/random-seed"); err != nil {
				e.Errorf("%s: the random seed is kept", who)
			}
		}
		const slack = time.Second
		first := time.Now()
		ns, err := strconv.ParseInt(it.sh("date +%s%N"), 10, 64)
		last := time.Now()
		if now := time.Unix(0, ns); err != nil || now.Before(first.Add(-slack)) || now.After(last.Add(slack)) {
			e.Errorf("%s: its clock says %v, %v, want %v to %v", who, now, err, first, last)
		}
	}
	if got := g.sh("cat /etc/machine-id /var/lib/systemd/random-seed"); got != "0123456789abcdef0123456789abcdef\nseed" {
		e.Errorf("the original was changed: %q", got)
	}
}

// Copies share a snapshot and nothing else.
func restoreClones(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	if !e.fake() {
		g.sh("echo original > /root/who; echo original > /dev/shm/who")
	}
	dir := e.save(g)
	clones := make([]*guest, 10)
	for i := range clones {
		clones[i] = e.clone(dir)
	}
	if e.fake() {
		for _, c := range clones {
			c.ping()
		}
		return
	}
	var all sync.WaitGroup
	for i, c := range clones {
		all.Go(func() {
			out, err := c.try(fmt.Sprintf("cat /root/who /dev/shm/who; for f in /root/who /dev/shm/who /root/new-%d; do echo clone %d > $f; done", i, i))
			if err != nil || out != "original\noriginal" {
				e.Errorf("clone %d: got %q, %v", i, out, err)
			}
		})
	}
	all.Wait()
	for i, c := range clones {
		all.Go(func() {
			want := fmt.Sprintf("clone %d\nclone %d\n/root/new-%d", i, i, i)
			if out, err := c.try("cat /root/who /dev/shm/who; ls /root/new-*"); err != nil || out != want {
				e.Errorf("clone %d: got %q, %v, want %q", i, out, err, want)
			}
		})
	}
	all.Wait()
	if got := g.sh("cat /root/who /dev/shm/who; ls /root"); strings.Contains(got, "clone") || strings.Contains(got, "new-") {
		e.Errorf("the original has %q", got)
	}
	// The end of some is nothing to the others.
	for _, c := range clones[:5] {
		e.destroy(c)
	}
	for _, c := range clones[5:] {
		c.ping()
	}
	g.ping()
	e.clone(dir).ping()
}

// What was restored can be saved, with what both have done.
func restoreGenerations(e *env) {
	e.saves()
	e.sandboxed()
	g := e.boot(e.digested(e.config()))
	var want strings.Builder
	for i := range 3 {
		g.sh(fmt.Sprintf("echo %d >> /root/generations; echo %d >> /dev/shm/generations", i, i))
		fmt.Fprintln(&want, i)
		dir := e.save(g)
		if i == 1 {
			e.destroy(g)
		}
		g = e.clone(dir)
		for _, file := range []string{"/root/generations", "/dev/shm/generations"} {
			if got := g.sh("cat " + file); got+"\n" != want.String() {
				e.Errorf("%s: got %q, want %q", file, got, want.String())
			}
		}
	}
}

// largest returns the file of a snapshot that holds most.
func (e *env) largest(dir string) string {
	e.Helper()
	m, err := snapshot.Read(dir)
	if err != nil {
		e.Fatal(err)
	}
	file := m.Files[0]
	for _, f := range m.Files {
		if f.Size > file.Size {
			file = f
		}
	}
	return filepath.Join(dir, file.Name)
}

func (e *env) flip(path string, offset int64) {
	e.Helper()
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		e.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var b [1]byte
	if _, err := f.ReadAt(b[:], offset); err != nil {
		e.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := f.WriteAt(b[:], offset); err != nil {
		e.Fatal(err)
	}
}

// A snapshot that is not what it was, or not of this machine, is refused before
// anything is made.
func restoreRefusals(e *env) {
	e.saves()
	g := e.boot(e.digested(e.config()))
	good := e.save(g)
	e.destroy(g)
	other := "sha256:" + strings.Repeat("5", 64)
	size := func(path string) int64 {
		info, err := os.Stat(path)
		if err != nil {
			e.Fatal(err)
		}
		return info.Size()
	}
	for name, spoil := range map[string]func(dir string, c *vm.Config) string{
		"truncated": func(dir string, _ *vm.Config) string {
			path := e.largest(dir)
			if err := os.Truncate(path, size(path)/2); err != nil {
				e.Fatal(err)
			}
			return dir
		},
		"first bit": func(dir string, _ *vm.Config) string { e.flip(e.largest(dir), 0); return dir },
		"last bit": func(dir string, _ *vm.Config) string {
			path := e.largest(dir)
			e.flip(path, size(path)-1)
			return dir
		},
		"a file is missing": func(dir string, _ *vm.Config) string {
			if err := os.Remove(e.largest(dir)); err != nil {
				e.Fatal(err)
			}
			return dir
		},
		"T44 symbolic link": func(dir string, _ *vm.Config) string {
			path := e.largest(dir)
			moved := filepath.Join(e.TempDir(), "moved")
			if err := errors.Join(os.Rename(path, moved), os.Symlink(moved, path)); err != nil {
				e.Fatal(err)
			}
			return dir
		},
		"T44 name of a path": func(dir string, _ *vm.Config) string {
			name := filepath.Base(e.largest(dir))
			e.changed(dir, `"`+name+`"`, `"../`+name+`"`)
			return dir
		},
		"injected key":    func(dir string, _ *vm.Config) string { e.changed(dir, "{", `{"exec":"/bin/sh",`); return dir },
		"half a manifest": func(dir string, _ *vm.Config) string { e.truncateManifest(dir); return dir },
		"no manifest":     func(dir string, _ *vm.Config) string { _ = os.Remove(filepath.Join(dir, "manifest.json")); return dir },
		"another driver":  func(dir string, _ *vm.Config) string { e.changed(dir, `"driver": "`, `"driver": "x`); return dir },
		"another version": func(dir string, _ *vm.Config) string {
			e.changed(dir, `"driver_version": "`, `"driver_version": "x`)
			return dir
		},
		"another CPU":      func(dir string, _ *vm.Config) string { e.changed(dir, `"cpu": "`, `"cpu": "x`); return dir },
		"another format":   func(dir string, _ *vm.Config) string { e.changed(dir, `"format": 1`, `"format": 99`); return dir },
		"more memory":      func(dir string, c *vm.Config) string { c.MemoryMiB *= 2; return dir },
		"more CPUs":        func(dir string, c *vm.Config) string { c.VCPUs++; return dir },
		"another image":    func(dir string, c *vm.Config) string { c.ImageDigest = other; return dir },
		"an empty place":   func(string, *vm.Config) string { return e.privateDir() },
		"no place":         func(dir string, _ *vm.Config) string { return dir + "-none" },
		"a relative place": func(string, *vm.Config) string { return "snapshot" },
	} {
		c := e.digested(e.config())
		dir := spoil(e.copyOf(good), &c)
		m, err := e.d.Restore(e.context(), c, dir)
		if !errors.Is(err, vm.ErrBadSnapshot) {
			e.Errorf("%s: got %v, want ErrBadSnapshot", name, err)
		}
		if err == nil {
			e.destroy(m)
		}
		e.nothingLeft()
	}
	c := e.digested(e.config())
	c.ID = "short"
	if _, err := e.d.Restore(e.context(), c, good); !errors.Is(err, vm.ErrInvalidConfig) {
		e.Errorf("a short ID: got %v, want ErrInvalidConfig", err)
	}
	e.clone(good).ping()
}

func (e *env) truncateManifest(dir string) {
	e.Helper()
	path := filepath.Join(dir, "manifest.json")
	info, err := os.Stat(path)
	if err == nil {
		err = os.Truncate(path, info.Size()/2)
	}
	if err != nil {
		e.Fatal(err)
	}
}
