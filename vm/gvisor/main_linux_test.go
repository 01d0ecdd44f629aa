package gvisor

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/vm"
)

func TestMain(m *testing.M) {
	Dispatch()
	if os.Getenv(ownerEnv) != "" {
		own()
	}
	code := m.Run()
	if scratch != "" {
		_ = os.RemoveAll(scratch)
	}
	os.Exit(code)
}

// scratch holds the images of this run.
var scratch string

type images struct{ root, agent string }

var makeImages = sync.OnceValues(func() (images, error) {
	var err error
	// Not below a test's directory: every test uses them, unprivileged users too.
	if scratch, err = os.MkdirTemp("", "gvisor-test-"); err != nil {
		return images{}, err
	}
	im := images{root: filepath.Join(scratch, "root.erofs"), agent: filepath.Join(scratch, "agent.erofs")}
	script := `set -e; cd "$1"; chmod 755 .
mkdir -p agent root/bin root/proc root/sys root/dev root/tmp root/root root/etc root/.bouvet
cp "$2" root/bin/busybox; for a in $("$2" --list); do [ "$a" = busybox ] || ln -s busybox root/bin/$a; done
mkfs.erofs -x-1 -Enoinline_data root.erofs root >/dev/null
mkfs.erofs -x-1 -Enoinline_data agent.erofs agent >/dev/null
chmod 644 *.erofs`
	if err := os.Mkdir(filepath.Join(scratch, "agent"), 0o755); err != nil {
		return im, err
	}
	build := exec.Command("go", "build", "-trimpath", "-o", filepath.Join(scratch, "agent/agent"), "./testdata/stubagent")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return im, fmt.Errorf("%w: %s", err, out)
	}
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		return im, err
	}
	if out, err := exec.Command("sh", "-c", script, "sh", scratch, busybox).CombinedOutput(); err != nil {
		return im, fmt.Errorf("%w: %s", err, out)
	}
	return im, nil
})

func testImages(t testing.TB) images {
	t.Helper()
	im, err := makeImages()
	if err != nil {
		t.Fatalf("cannot make images: %v", err)
	}
	return im
}

func testDriver(t testing.TB) *Driver {
	t.Helper()
	im := testImages(t)
	d, err := New(Options{StateDir: t.TempDir(), AgentImage: im.agent})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func newID() string {
	b := make([]byte, 10)
	_, _ = rand.Read(b)
	return "t" + hex.EncodeToString(b)
}

func testConfig(t testing.TB) vm.Config {
	return vm.Config{ID: newID(), Image: testImages(t).root, MemoryMiB: 128, VCPUs: 2}
}

func testContext(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func create(t testing.TB, d *Driver, c vm.Config) vm.Machine {
	t.Helper()
	m, err := d.Create(testContext(t), c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Destroy(testContext(t), 0); err != nil {
			t.Error(err)
		}
	})
	return m
}

// ask sends one line to the stub agent and returns its answer.
func ask(ctx context.Context, m vm.Machine, line string) (string, error) {
	c, err := m.Dial(ctx, 52)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if deadline, ok := ctx.Deadline(); ok {
		_ = c.SetDeadline(deadline)
	}
	if _, err := io.WriteString(c, line+"\n"); err != nil {
		return "", err
	}
	out, err := io.ReadAll(bufio.NewReader(c))
	return string(out), err
}
