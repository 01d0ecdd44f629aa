package agent

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"
)

func write(t *testing.T, root, name, content string) string {
	t.Helper()
	path := filepath.Join(root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o444); err != nil {
		t.Fatal(err)
	}
	return path
}

// T30: the machine-id is another every time, and a file like the one before.
func TestRenewMachineID(t *testing.T) {
	root := t.TempDir()
	y := kernelSystem{root: root}
	if err := y.RenewMachineID(); err != nil {
		t.Errorf("without a file: %v", err)
	}
	path := filepath.Join(root, machineIDFile)
	if _, err := os.Lstat(path); err == nil {
		t.Error("without a file one was made")
	}
	old := "0123456789abcdef0123456789abcdef\n"
	write(t, root, machineIDFile, old)
	seen := map[string]bool{old: true}
	for range 3 {
		if err := y.RenewMachineID(); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil || !regexp.MustCompile(`^[0-9a-f]{32}\n$`).Match(b) || seen[string(b)] {
			t.Errorf("got %q, %v, want a new id", b, err)
		}
		seen[string(b)] = true
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o444 {
		t.Errorf("mode: got %v, %v, want that of the old file", info.Mode(), err)
	}
	// A link is left alone, and not followed.
	elsewhere := write(t, root, "elsewhere", "mine\n")
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(elsewhere, path); err != nil {
		t.Fatal(err)
	}
	if err := y.RenewMachineID(); err != nil {
		t.Error(err)
	}
	if b, err := os.ReadFile(elsewhere); err != nil || string(b) != "mine\n" {
		t.Errorf("what the link leads to: got %q, %v", b, err)
	}
}

func TestForgetSeed(t *testing.T) {
	root := t.TempDir()
	y := kernelSystem{root: root}
	path := write(t, root, randomSeedFile, "seed")
	for range 2 {
		if err := y.ForgetSeed(); err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); err == nil {
			t.Error("it is still there")
		}
	}
}

// A clock that is right is not set: nothing jumps, and no privilege is needed.
func TestSetClockRight(t *testing.T) {
	if err := (kernelSystem{}).SetClock(time.Now()); err != nil {
		t.Error(err)
	}
}
