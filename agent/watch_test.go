package agent_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/bouvet-run/bouvet/agent"
)

type watchEvent struct{ Op, Name string }

// startWatch begins a watch; next returns its events, until the end frame.
func startWatch(t testing.TB, socket string, params m) (c *client, next func() (watchEvent, bool)) {
	t.Helper()
	c = dial(t, socket)
	must[struct{}](c, "watch", params)
	return c, func() (watchEvent, bool) {
		t.Helper()
		kind, payload := c.frame()
		var e watchEvent
		if err := json.Unmarshal(payload, &e); err != nil || kind != 4 && kind != 6 {
			t.Fatalf("got frame %d %q, %v", kind, payload, err)
		}
		return e, kind == 4
	}
}

// expectEvents reads events until all that are wanted have come, in their order;
// what comes between, such as a second write, does not matter.
func expectEvents(t testing.TB, next func() (watchEvent, bool), want ...watchEvent) {
	t.Helper()
	for _, w := range want {
		for {
			e, ok := next()
			if !ok {
				t.Fatalf("the watch ended, still wanting %+v", w)
			}
			if e == w {
				break
			}
		}
	}
}

func TestWatch(t *testing.T) {
	socket := startServer(t, agent.Options{})
	dir := t.TempDir()
	do := func(errs ...error) {
		t.Helper()
		for _, err := range errs {
			if err != nil {
				t.Fatal(err)
			}
		}
	}
	do(os.MkdirAll(dir+"/old/deep", 0o700), os.WriteFile(dir+"/old/f", nil, 0o600))

	t.Run("flat", func(t *testing.T) {
		c, next := startWatch(t, socket, m{"path": dir})
		do(os.WriteFile(dir+"/old/unseen", nil, 0o600), os.WriteFile(dir+"/f", []byte("x"), 0o600), os.Chmod(dir+"/f", 0o640),
			os.Rename(dir+"/f", dir+"/g"), os.Remove(dir+"/g"))
		for _, want := range []watchEvent{
			{"create", "f"}, {"write", "f"}, {"chmod", "f"}, {"rename", "f"}, {"create", "g"}, {"remove", "g"},
		} {
			if got, ok := next(); got != want || !ok {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		c.send(bulkFrame(6, "{}"))
		if got, ok := next(); ok {
			t.Errorf("got %+v, want the end", got)
		}
		c.expectEnd()
	})
	t.Run("recursive", func(t *testing.T) {
		_, next := startWatch(t, socket, m{"path": dir, "recursive": true})
		do(os.WriteFile(dir+"/old/deep/f", []byte("x"), 0o600))
		expectEvents(t, next, watchEvent{"create", "old/deep/f"}, watchEvent{"write", "old/deep/f"})
		// A tree that appears whole is covered, whatever the race.
		do(os.MkdirAll(dir+"/new/a/b", 0o700), os.WriteFile(dir+"/new/a/b/f", nil, 0o600))
		expectEvents(t, next, watchEvent{"create", "new"}, watchEvent{"create", "new/a/b/f"})
		do(os.WriteFile(dir+"/new/a/b/g", nil, 0o600))
		expectEvents(t, next, watchEvent{"create", "new/a/b/g"})
		// A directory that moved has its new name from then on.
		do(os.Rename(dir+"/new/a", dir+"/moved"), os.WriteFile(dir+"/moved/b/h", nil, 0o600))
		expectEvents(t, next, watchEvent{"rename", "new/a"}, watchEvent{"create", "moved"}, watchEvent{"create", "moved/b/h"})
		do(os.RemoveAll(dir + "/moved"))
		expectEvents(t, next, watchEvent{"remove", "moved/b"}, watchEvent{"remove", "moved"})
		// A link is no way out.
		do(os.Symlink("/", dir+"/root"), os.WriteFile(dir+"/last", nil, 0o600))
		expectEvents(t, next, watchEvent{"create", "root"}, watchEvent{"create", "last"})
	})
	t.Run("one file", func(t *testing.T) {
		path := filepath.Join(dir, "one")
		do(os.WriteFile(path, nil, 0o600))
		c, next := startWatch(t, socket, m{"path": path})
		do(os.WriteFile(path, []byte("x"), 0o600), os.Remove(path))
		expectEvents(t, next, watchEvent{"write", ""}, watchEvent{"remove", ""})
		if e, ok := next(); ok {
			t.Errorf("got %+v after its removal, want the end", e)
		}
		c.expectEnd()
	})
	t.Run("the watched directory goes", func(t *testing.T) {
		path := filepath.Join(dir, "going")
		do(os.Mkdir(path, 0o700))
		_, next := startWatch(t, socket, m{"path": path, "recursive": true})
		do(os.Rename(path, path+"2"))
		expectEvents(t, next, watchEvent{"rename", ""})
		if e, ok := next(); ok {
			t.Errorf("got %+v, want the end", e)
		}
	})
}

// A host that does not read loses events and is told so; the rest works on.
func TestWatchOverflow(t *testing.T) {
	limit, err := os.ReadFile("/proc/sys/fs/inotify/max_queued_events")
	if err != nil {
		t.Skipf("cannot tell the length of the kernel's queue: %v; run this on Linux with /proc mounted", err)
	}
	socket := startServer(t, agent.Options{})
	dir := t.TempDir()
	_, next := startWatch(t, socket, m{"path": dir})
	a, b := dir+"/a", dir+"/b"
	if err := os.WriteFile(a, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	var queued int
	if err := json.Unmarshal(limit, &queued); err != nil {
		t.Fatal(err)
	}
	for range queued { // two events each, and socket buffers hold some
		if err := os.Rename(a, b); err != nil {
			t.Fatal(err)
		}
		a, b = b, a
	}
	expectEvents(t, next, watchEvent{"overflow", ""})
	if err := os.WriteFile(dir+"/later", nil, 0o600); err != nil {
		t.Fatal(err)
	}
	expectEvents(t, next, watchEvent{"create", "later"})
	must[m](dial(t, socket), "ping", nil)
}

func TestWatchEndsWithItsConnection(t *testing.T) {
	socket := startServer(t, agent.Options{}) // whose ledger sees the descriptor
	for range 50 {
		c, _ := startWatch(t, socket, m{"path": t.TempDir(), "recursive": true})
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
