package local

import (
	"fmt"
	"os"

	"github.com/bouvet-run/bouvet/internal/guest"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/firecracker"
)

// FirecrackerEnv and JailerEnv name the environment variables with the paths of
// Firecracker and of its jailer; without them they are looked for in $PATH.
const (
	FirecrackerEnv = "BOUVET_FIRECRACKER"
	JailerEnv      = "BOUVET_JAILER"
)

func firecrackerDriver(opts Options) (vm.Driver, error) {
	state, err := stateDir(opts)
	if err != nil {
		return nil, err
	}
	kernels, err := Kernels(opts)
	if err != nil {
		return nil, err
	}
	k, err := kernels.Find(os.Getenv(KernelEnv))
	if err != nil {
		return nil, fmt.Errorf("cannot ready the Firecracker driver: %w", err)
	}
	agent, err := guest.Resolve()
	if err != nil {
		return nil, err
	}
	driver, err := firecracker.New(firecracker.Options{
		StateDir: state, Agent: agent.Binary, Kernel: k, Exe: opts.Exe, Log: opts.Log,
		Program: os.Getenv(FirecrackerEnv), Jailer: os.Getenv(JailerEnv),
	})
	if err != nil {
		return nil, fmt.Errorf("cannot ready the Firecracker driver: %w", err)
	}
	return driver, nil
}

// programOf is the path or the name of a program that the environment may name.
func programOf(env, name string) string {
	if path := os.Getenv(env); path != "" {
		return path
	}
	return name
}
