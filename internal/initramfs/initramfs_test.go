package initramfs_test

import (
	"bytes"
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/bouvet-run/bouvet/internal/initramfs"
)

func entries() []initramfs.Entry {
	return []initramfs.Entry{
		{Name: "dev", Mode: initramfs.ModeDir},
		{Name: "dev/console", Mode: initramfs.ModeChar, Major: 5, Minor: 1},
		{Name: "init", Mode: initramfs.ModeProg, Data: []byte("program")},
		{Name: "odd", Mode: initramfs.ModeFile, Data: []byte("x")},
	}
}

// The tool that the distribution makes such archives with reads ours.
func TestReadByCpio(t *testing.T) {
	cpio, err := exec.LookPath("cpio")
	if err != nil {
		t.Skip("cpio is missing: run `apt-get install cpio`")
	}
	var archive bytes.Buffer
	if err := initramfs.Write(&archive, entries()); err != nil {
		t.Fatal(err)
	}
	list := exec.Command(cpio, "-itv", "--numeric-uid-gid")
	list.Stdin = &archive
	out, err := list.Output()
	if err != nil {
		t.Fatalf("cpio: %v", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	for i, want := range []string{"drwxr-xr-x", "crw-------", "-r-xr-xr-x", "-r--r--r--"} {
		if i >= len(lines) || !strings.HasPrefix(lines[i], want) || !strings.HasSuffix(lines[i], entries()[i].Name) {
			t.Errorf("entry %d: got %q, want %s and %s", i, out, want, entries()[i].Name)
		}
	}
	if !strings.Contains(lines[1], "5,   1") {
		t.Errorf("device: got %q, want 5, 1", lines[1])
	}
}

func TestFormat(t *testing.T) {
	var archive bytes.Buffer
	if err := initramfs.Write(&archive, entries()[3:]); err != nil {
		t.Fatal(err)
	}
	want := "070701" + "00000001" + "00008124" + "00000000" + "00000000" + "00000001" + "00000000" + "00000001" +
		"00000000" + "00000000" + "00000000" + "00000000" + "00000004" + "00000000" + "odd\x00\x00\x00" + "x\x00\x00\x00"
	if got := archive.String(); !strings.HasPrefix(got, want) || len(got)%4 != 0 {
		t.Errorf("got %q, want it to begin with %q", got, want)
	}
}

func TestRefused(t *testing.T) {
	for _, name := range []string{"", "/init", "TRAILER!!!", strings.Repeat("x", 4096)} {
		if err := initramfs.Write(&bytes.Buffer{}, []initramfs.Entry{{Name: name}}); err == nil {
			t.Errorf("%.20q was written", name)
		}
	}
	if err := initramfs.Write(full{}, entries()); !errors.Is(err, errFull) {
		t.Errorf("got %v, want %v", err, errFull)
	}
}

var errFull = errors.New("full")

type full struct{}

func (full) Write([]byte) (int, error) { return 0, errFull }
