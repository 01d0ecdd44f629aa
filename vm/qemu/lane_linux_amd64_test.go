package qemu

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/internal/testutil"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/wire"
)

// laned is a machine with a client.
func laned(t *testing.T, m vm.Machine, err error) (*machine, *bouvet.AgentClient) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.Destroy(context.Background(), 0); err != nil {
			t.Error(err)
		}
	})
	client, err := bouvet.Connect(testContext(t), m, &bouvet.ClientOptions{ConnectTimeout: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Close() })
	return m.(*machine), client
}

// What is much goes by the lane, one stream at a time, and arrives whole; what is little,
// and what comes meanwhile, does not wait for it. A transfer that is given up leaves the
// lane to the next, and that of a machine that is saved goes on.
func TestLane(t *testing.T) {
	testutil.Ledger(t, testutil.Scope{Cgroups: []string{testParent}})
	d := testDriver(t, testOptions(t, t.TempDir()))
	c := testConfig(t)
	made, err := d.Create(testContext(t), c)
	m, client := laned(t, made, err)
	ctx := testContext(t)
	conn, err := m.DialBulk(ctx, wire.PortRPC)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.DialBulk(ctx, wire.PortRPC); !errors.Is(err, vm.ErrUnsupported) {
		t.Errorf("a second stream: got %v", err)
	}
	_ = conn.Close()
	data := make([]byte, 8<<20+5)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data)
	want := sha256.Sum256(data)
	var all sync.WaitGroup
	for _, name := range []string{"/tmp/a", "/tmp/b", "/tmp/c"} { // one has the lane
		all.Go(func() {
			for range 2 {
				if _, err := client.Upload(ctx, name, bytes.NewReader(data), nil); err != nil {
					t.Error(err)
				}
				sum := sha256.New()
				if n, err := client.Download(ctx, name, sum); err != nil || n != int64(len(data)) || !bytes.Equal(sum.Sum(nil), want[:]) {
					t.Errorf("%s: %d bytes, %v, or they differ", name, n, err)
				}
				given, cancel := context.WithCancel(ctx)
				_, err := client.Download(given, name, writerFunc(func(p []byte) (int, error) { cancel(); return len(p), nil }))
				if err == nil {
					t.Error("a download that was given up succeeded")
				}
				cancel()
			}
		})
	}
	all.Wait()

	// Saved in the middle of a transfer that nobody reads.
	r, w := io.Pipe()
	downloaded := make(chan error, 1)
	go func() {
		_, err := client.Download(ctx, "/tmp/a", w)
		downloaded <- errors.Join(err, w.Close())
	}()
	got := sha256.New()
	if _, err := io.CopyN(got, r, 1); err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "saved")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := client.Freeze(ctx); err != nil {
		t.Fatal(err)
	}
	if err := m.Snapshot(ctx, dir); err != nil {
		t.Fatal(err)
	}
	if err := client.Thaw(ctx, bouvet.ThawOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(got, r); err != nil || !bytes.Equal(got.Sum(nil), want[:]) {
		t.Errorf("a transfer over a snapshot: %v, or the bytes differ", err)
	}
	if err := <-downloaded; err != nil {
		t.Error(err)
	}
	c2 := c
	c2.ID = c.ID[:len(c.ID)-1] + "z"
	copied, err := d.Restore(ctx, c2, dir)
	clone, client2 := laned(t, copied, err)
	if err := client2.Thaw(ctx, bouvet.ThawOptions{Clone: true, Hostname: "clone"}); err != nil {
		t.Fatal(err)
	}
	if conn, err = clone.DialBulk(ctx, wire.PortRPC); err != nil {
		t.Fatalf("the lane of a copy whose original was using it: %v", err)
	}
	_ = conn.Close()
	sum := sha256.New()
	if n, err := client2.Download(ctx, "/tmp/b", sum); err != nil || n != int64(len(data)) || !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Errorf("in the copy: %d bytes, %v, or they differ", n, err)
	}
}

type writerFunc func(p []byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
