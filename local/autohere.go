package local

import (
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/internal/kvm"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/firecracker"
	"github.com/bouvet-run/bouvet/vm/gvisor"
	"github.com/bouvet-run/bouvet/vm/qemu"
)

// Bounds of the trials: that of hardware is short, for what hangs there hangs for
// good; the others only have to outlast a busy host.
const (
	virtualTime  = 5 * time.Second
	gvisorTime   = 30 * time.Second
	emulatedTime = time.Minute
)

// newChooser returns the chooser for this machine.
func newChooser(opts Options) (*chooser, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	agents, err := statedir.Agent(state) // and so the state directory itself
	if err != nil {
		return nil, err
	}
	c := &chooser{
		kvm:     kvm.Check,
		image:   func() (string, error) { return guest.Image(agents) },
		answers: answers{state},
		log:     opts.Log,
		candidates: []candidate{
			{driver: firecracker.Name, virtual: true, time: virtualTime, make: func() (vm.Driver, error) { return firecrackerDriver(opts) }},
			{driver: qemu.Name, accel: qemu.AccelKVM, virtual: true, time: virtualTime, make: func() (vm.Driver, error) { return qemuWith(opts, qemu.AccelKVM) }},
			{driver: gvisor.Name, time: gvisorTime, make: func() (vm.Driver, error) { return gvisorDriver(opts) }},
			{driver: qemu.Name, accel: qemu.AccelTCG, time: emulatedTime, make: func() (vm.Driver, error) { return qemuWith(opts, qemu.AccelTCG) }},
		},
	}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.now = here(opts, c.candidates)
	return c, nil
}

// qemuWith is the QEMU driver with an acceleration, unless the environment asks for
// another one.
func qemuWith(opts Options, accel string) (vm.Driver, error) {
	if asked := os.Getenv(qemu.AccelEnv); asked != "" && asked != qemu.AccelAuto && asked != accel {
		return nil, fmt.Errorf("%w: %s=%s asks for another acceleration", vm.ErrUnsupported, qemu.AccelEnv, asked)
	}
	return qemuDriver(opts, accel)
}

// here is what an answer for this machine depends on.
func here(opts Options, candidates []candidate) conditions {
	now := conditions{
		Format: answerFormat, User: os.Geteuid(),
		Files:       map[string]string{"self": identity("/proc/self/exe"), "kvm": identity(kvm.Device)},
		Environment: map[string]string{guest.EnvVar: os.Getenv(guest.EnvVar), qemu.AccelEnv: os.Getenv(qemu.AccelEnv)},
	}
	if boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id"); err == nil {
		now.Boot = strings.TrimSpace(string(boot))
	}
	if opts.Exe != "" {
		now.Files["helper"] = identity(opts.Exe)
	}
	if path, err := exec.LookPath(qemu.Program); err == nil {
		now.Files["qemu"] = identity(path)
	}
	for name, program := range map[string]string{
		firecracker.Program: programOf(FirecrackerEnv, firecracker.Program), firecracker.JailerProgram: programOf(JailerEnv, firecracker.JailerProgram),
	} {
		if path, err := exec.LookPath(program); err == nil {
			now.Files[name] = identity(path)
		}
	}
	if kernels, err := Kernels(opts); err == nil {
		if k, err := kernels.Find(os.Getenv(KernelEnv)); err == nil {
			now.Kernel = k.Digest
		}
	}
	for i := range candidates {
		k := &candidates[i]
		now.Drivers = append(now.Drivers, k.driver+" "+k.accel)
	}
	return now
}
