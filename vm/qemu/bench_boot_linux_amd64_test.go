package qemu

import (
	"bufio"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet"
	"github.com/bouvet-run/bouvet/image/imagetest"
	"github.com/bouvet-run/bouvet/internal/bootfiles"
	"github.com/bouvet-run/bouvet/internal/snapshot"
	"github.com/bouvet-run/bouvet/internal/snapstore"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

// rounds is how often each side of a comparison is timed.
const rounds = 15

// once runs f for the first iteration only: each comparison does its own rounds.
func once(b *testing.B, f func()) {
	b.Helper()
	for i := 0; b.Loop(); i++ {
		if i == 0 {
			f()
		}
	}
	b.ReportMetric(0, "ns/op")
}

// emulated is a driver that emulates, whatever this host's KVM can do.
func emulated(b *testing.B) *Driver {
	b.Helper()
	o := testOptions(b, b.TempDir())
	o.Accel = AccelTCG
	return testDriver(b, o)
}

// BenchmarkBootBare: from Create to the first answered ping, against a bare QEMU with
// the same machine, kernel and command line and an init that writes one byte to the
// serial port. The bare one has no disk, no channel, no record and no cgroup.
func BenchmarkBootBare(b *testing.B) {
	d := emulated(b)
	c := vm.Config{Image: imagetest.Default(b), MemoryMiB: 256, VCPUs: 1}
	tiny := initramfsOf(b, b.TempDir(), bootfiles.AgentPath, tinyInit())
	b.Logf("kernel %s", d.kernel.Manifest.Release)
	once(b, func() {
		var ours, bare []time.Duration
		for i := range rounds {
			c.ID = fmt.Sprintf("bench-boot-%04d", i)
			took, err := vmtest.Cycle(d, c)
			if err != nil {
				b.Fatal(err)
			}
			ours = append(ours, took)
			bare = append(bare, bareBoot(b, d, &c, tiny))
		}
		b.ReportMetric(ms(ours), "ours-ms")
		b.ReportMetric(ms(bare), "bare-ms")
		b.ReportMetric(ms(ours)/ms(bare), "ours/bare")
	})
}

// BenchmarkCreate: what a user waits for, Manager.CreateSandbox and one more ping, where
// sandboxes are copies of a machine that has just started, against the same bare QEMU.
// The first one, which makes that machine, is timed by itself.
func BenchmarkCreate(b *testing.B) {
	d := emulated(b)
	c := vm.Config{Image: imagetest.Default(b), MemoryMiB: 256, VCPUs: 1}
	tiny := initramfsOf(b, b.TempDir(), bootfiles.AgentPath, tinyInit())
	bases, err := snapstore.OpenBases(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	if c.ImageDigest, err = snapshot.ImageDigest(testContext(b), &c); err != nil {
		b.Fatal(err)
	}
	images := oneImage{Path: c.Image, Digest: c.ImageDigest, Release: func() {}}
	m, err := bouvet.NewManager(bouvet.ManagerOptions{Driver: d, Images: images, Bases: bases})
	if err != nil {
		b.Fatal(err)
	}
	create := func() time.Duration {
		begin := time.Now()
		s, err := m.CreateSandbox(testContext(b), bouvet.Config{MemoryMiB: c.MemoryMiB, VCPUs: c.VCPUs, ConnectTimeout: time.Minute})
		if err == nil {
			err = s.Client().Ping(testContext(b))
		}
		took := time.Since(begin)
		if err == nil {
			err = s.Destroy(testContext(b))
		}
		if err != nil {
			b.Fatal(err)
		}
		return took
	}
	once(b, func() {
		first := create()
		var ours, bare []time.Duration
		for range rounds {
			ours = append(ours, create())
			bare = append(bare, bareBoot(b, d, &c, tiny))
		}
		b.ReportMetric(float64(first.Microseconds())/1e3, "first-ms")
		b.ReportMetric(ms(ours), "ours-ms")
		b.ReportMetric(ms(bare), "bare-ms")
		b.ReportMetric(ms(ours)/ms(bare), "ours/bare")
	})
}

// oneImage is a store with nothing but this image.
type oneImage bouvet.Image

// Acquire implements bouvet.Images.
func (i oneImage) Acquire(context.Context, string) (bouvet.Image, error) { return bouvet.Image(i), nil }

// bareBoot times QEMU from its start to the byte that tinyInit writes.
func bareBoot(b *testing.B, d *Driver, c *vm.Config, initramfs string) time.Duration {
	b.Helper()
	args := slices.Concat(common("guest=bare", machineType(&d.kernel.Manifest)), processor(AccelTCG), []string{
		"-m", strconv.Itoa(c.MemoryMiB), "-smp", strconv.Itoa(c.VCPUs),
		"-kernel", d.kernel.ImagePath(), "-initrd", initramfs, "-append", kernelArgs(c, &d.kernel.Manifest, AccelTCG),
		"-serial", "stdio",
	})
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, d.program, args...)
	out, err := cmd.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	_, err = bufio.NewReader(out).ReadString(hello)
	took := time.Since(begin)
	cancel()
	_ = cmd.Wait()
	if err != nil {
		b.Fatalf("the bare machine did not come up: %v", err)
	}
	return took
}

// guestOf makes a machine with a client for the length of b.
func guestOf(b *testing.B, d *Driver) *bouvet.AgentClient {
	b.Helper()
	c := testConfig(b)
	c.MemoryMiB = 512
	m, err := d.Create(testContext(b), c)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		if err := m.Destroy(context.Background(), 0); err != nil {
			b.Error(err)
		}
	})
	client, err := bouvet.Connect(testContext(b), m, &bouvet.ClientOptions{ConnectTimeout: time.Minute})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = client.Close() })
	return client
}

// BenchmarkExec: `true` from outside, against fork, exec and wait of the same program
// timed inside the guest, as the agent does it.
func BenchmarkExec(b *testing.B) {
	client := guestOf(b, emulated(b))
	program := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-o", "/dev/stdout", "../../test/bench/spawn")
	program.Env = append(program.Environ(), "CGO_ENABLED=0")
	spawn, err := program.Output()
	if err != nil {
		b.Fatal(err)
	}
	if _, err := client.Upload(testContext(b), "/tmp/spawn", strings.NewReader(string(spawn)), &bouvet.FileOptions{Mode: 0o755}); err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	once(b, func() {
		var ours, inside []time.Duration
		for range 61 {
			begin := time.Now()
			if err := client.Command(ctx, "/bin/true").Run(); err != nil { //nolint:contextcheck // Command has it.
				b.Fatal(err)
			}
			ours = append(ours, time.Since(begin))
			out, err := client.Command(ctx, "/tmp/spawn", "3", "/bin/true").Output() //nolint:contextcheck // Command has it.
			if err != nil {
				b.Fatal(err)
			}
			// The first of a fresh process pays for that, too: the last counts.
			lines := strings.Fields(string(out))
			n, err := strconv.ParseInt(lines[len(lines)-1], 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			inside = append(inside, time.Duration(n))
		}
		b.ReportMetric(ms(ours), "ours-ms")
		b.ReportMetric(ms(inside), "inside-ms")
		b.ReportMetric((ms(ours)-1)/ms(inside), "(ours-1ms)/inside")
	})
}
