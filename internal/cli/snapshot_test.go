package cli

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// reset empties what a command has printed, for the next one.
func (w *testWorld) reset() {
	for _, b := range []*syncBuffer{&w.out, &w.err} {
		b.mu.Lock()
		b.b.Reset()
		b.mu.Unlock()
	}
}

// expect runs a command line and returns what it prints.
func (w *testWorld) expect(t *testing.T, code int, args ...string) (stdout, stderr string) {
	t.Helper()
	w.reset()
	if got := w.run(t, args...); got != code {
		t.Fatalf("bouvet %s: exit code %d, want %d; standard error: %s", strings.Join(args, " "), got, code, w.err.String())
	}
	return w.out.String(), w.err.String()
}

func contains(t *testing.T, what, got string, wanted ...string) {
	t.Helper()
	for _, want := range wanted {
		if !strings.Contains(got, want) {
			t.Errorf("%s: got %q, want %q in it", what, got, want)
		}
	}
}

// A sandbox is saved, listed, run on and removed.
func TestSnapshots(t *testing.T) {
	skipUnlessRoot(t)
	w, _, fake := newFakeRun(t, vmtest.FakeOptions{})
	_, says := w.expect(t, 0, "run", "--snapshot", "warm", "-m", "64M", "--", "true")
	contains(t, "save", says, "the sandbox is saved as warm (")
	out, _ := w.expect(t, 0, "snapshot", "ls")
	contains(t, "ls", out, "NAME", "warm", "fake", "64M")
	out, _ = w.expect(t, 0, "snapshot", "inspect", "warm")
	contains(t, "inspect", out, "driver", "fake 1", "state.bin")
	out, _ = w.expect(t, 0, "snapshot", "inspect", "--json", "warm")
	var info struct {
		Name     string
		Manifest struct {
			MemoryMiB int `json:"memory_mib"`
		}
	}
	if err := json.Unmarshal([]byte(out), &info); err != nil || info.Name != "warm" || info.Manifest.MemoryMiB != 64 {
		t.Errorf("inspect --json: got %+v, %v", info, err)
	}
	for range 2 {
		out, _ = w.expect(t, 0, "run", "--from-snapshot", "warm", "--", "echo", "copied")
		contains(t, "run", out, "copied")
	}
	out, _ = w.expect(t, 0, "__complete", "run", "--from-snapshot", "")
	contains(t, "completion", out, "warm\tfake")
	out, _ = w.expect(t, 0, "snapshot", "rm", "warm")
	contains(t, "rm", out, "warm")
	w.expect(t, 0, "snapshot", "rm", "-f", "warm")
	if out, _ = w.expect(t, 0, "snapshot", "ls", "--json"); out != "[]\n" {
		t.Errorf("ls --json: got %q", out)
	}
	if got := fake.Living(); got != 0 {
		t.Errorf("%d machines live on", got)
	}
}

// What cannot be is said before a sandbox is made, with what to do about it.
func TestSnapshotRefusals(t *testing.T) {
	skipUnlessRoot(t)
	w, b, fake := newFakeRun(t, vmtest.FakeOptions{})
	_, says := w.expect(t, 3, "run", "--snapshot", "failed", "--", "sh", "-c", "exit 3")
	contains(t, "a command that fails", says, "not saved as failed", "ended with 3")
	w.expect(t, 0, "run", "-q", "--snapshot", "there", "--", "true")
	made := fake.Created()
	for _, tt := range []struct {
		args []string
		says []string
	}{
		{[]string{"run", "--snapshot", "there", "--", "true"}, []string{"already exists", "try: another name"}},
		{[]string{"run", "--snapshot", "../x", "--", "true"}, []string{"cannot name a snapshot"}},
		{[]string{"run", "--from-snapshot", "none", "--", "true"}, []string{"no such snapshot", "try: bouvet snapshot ls"}},
		{[]string{"run", "--from-snapshot", "there", "-m", "1G", "--", "true"}, []string{"cannot use --memory with --from-snapshot"}},
		{[]string{"run", "--from-snapshot", "there", "--driver", "gvisor", "--", "true"}, []string{"was made with driver \"fake\"", "try: --driver fake"}},
		{[]string{"run", "--disk", "1K", "--", "true"}, []string{"cannot use --disk 1K"}},
		{[]string{"run", "--disk", "1G", "--", "true"}, []string{"gives sandboxes no disk"}},
		{[]string{"snapshot", "rm", "none"}, []string{"no such snapshot"}},
		{[]string{"snapshot", "inspect", "none"}, []string{"no such snapshot"}},
	} {
		_, says := w.expect(t, exitFailure, tt.args...)
		contains(t, strings.Join(tt.args, " "), says, tt.says...)
	}
	store, err := b.Snapshots()
	if err != nil {
		t.Fatal(err)
	}
	dir, release, err := store.Acquire("there")
	if err != nil {
		t.Fatal(err)
	}
	_, says = w.expect(t, exitFailure, "snapshot", "rm", "there")
	contains(t, "one in use", says, "in use")
	release()
	// T31: damage is found before anything is made.
	state, err := os.ReadFile(dir + "/state.bin")
	if err != nil {
		t.Fatal(err)
	}
	state[0] ^= 1
	if err := os.WriteFile(dir+"/state.bin", state, 0o600); err != nil {
		t.Fatal(err)
	}
	_, says = w.expect(t, exitFailure, "run", "--from-snapshot", "there", "--", "true")
	contains(t, "a flipped bit", says, "damaged", "try: ")
	if fake.Created() != made {
		t.Errorf("%d machines were made", fake.Created()-made)
	}
	if err := os.WriteFile(dir+"/manifest.json", []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, says = w.expect(t, exitFailure, "run", "--from-snapshot", "there", "--", "true")
	contains(t, "half a manifest", says, "damaged", "try: bouvet snapshot rm there")
	out, _ := w.expect(t, 0, "snapshot", "ls")
	contains(t, "ls", out, "unusable")
}

// The consoles of the last sandboxes are kept, also of one that did not start, and
// shown without harm to the terminal.
func TestLogs(t *testing.T) {
	skipUnlessRoot(t)
	w, b, _ := newFakeRun(t, vmtest.FakeOptions{Console: "one\r\ntwo \x1b[31mred\nthree"})
	if out, _ := w.expect(t, 0, "logs", "--json"); out != "[]\n" {
		t.Errorf("got %q", out)
	}
	_, says := w.expect(t, exitFailure, "logs", "--console", "latest")
	contains(t, "none yet", says, "none is kept", "try: bouvet logs")
	for range 22 {
		w.expect(t, 0, "run", "--", "true")
	}
	out, _ := w.expect(t, 0, "logs")
	if n := strings.Count(out, "fake"); n != keptConsoles {
		t.Errorf("%d are kept, want %d", n, keptConsoles)
	}
	out, _ = w.expect(t, 0, "logs", "--console", "latest")
	if want := "one\ntwo \\x1b[31mred\nthree\n"; out != want {
		t.Errorf("got %q, want %q", out, want)
	}
	if out, _ = w.expect(t, 0, "logs", "--console", "latest", "--raw"); out != "one\r\ntwo \x1b[31mred\nthree" {
		t.Errorf("raw: got %q", out)
	}
	out, _ = w.expect(t, 0, "logs", "--console", "latest", "--json")
	contains(t, "json", out, `"driver": "fake"`, `"console": "one`)
	w.expect(t, exitFailure, "logs", "--raw")
	w.expect(t, exitFailure, "logs", "--console", "")
	out, _ = w.expect(t, 0, "__complete", "logs", "--console", "")
	contains(t, "completion", out, "latest\tthe last one")
	dir, err := b.Logs()
	if err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != keptConsoles {
		t.Fatalf("got %d files, %v", len(entries), err)
	}
	if info, err := entries[0].Info(); err != nil || info.Mode() != 0o600 {
		t.Errorf("mode: got %v, %v", info.Mode(), err)
	}
	id := strings.TrimSuffix(entries[0].Name(), consoleSuffix)
	w.expect(t, 0, "logs", "--console", id[:13])

	w, _, _ = newFakeRun(t, vmtest.FakeOptions{Guest: vmtest.Silent, DieAfter: 1, Console: "Kernel panic"})
	w.expect(t, exitFailure, "run", "--", "true")
	out, _ = w.expect(t, 0, "logs", "--console", "latest")
	contains(t, "one that did not start", out, "Kernel panic")
}
