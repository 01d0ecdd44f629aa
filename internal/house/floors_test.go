package house_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
)

const module = "github.com/bouvet-run/bouvet"

// A listed package is what go list tells of one package of ours.
type listed struct {
	ImportPath string
	Doc        string
	GoFiles    []string
	Deps       []string // all of them, the indirect too; without those of tests
}

// ours lists the packages of the module, once.
var ours = sync.OnceValues(func() ([]listed, error) {
	cmd := exec.Command("go", "list", "-json=ImportPath,Doc,GoFiles,Deps", module+"/...")
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			return nil, errors.New(string(exit.Stderr))
		}
		return nil, err
	}
	var all []listed
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p listed
		switch err := dec.Decode(&p); {
		case errors.Is(err, io.EOF):
			return all, nil
		case err != nil:
			return nil, err
		}
		all = append(all, p)
	}
})

func packages(t *testing.T) []listed {
	t.Helper()
	all, err := ours()
	if err != nil {
		t.Fatalf("cannot list the packages: %v", err)
	}
	return all
}

// below reports whether path is pkg or lies below it.
func below(path, pkg string) bool {
	return path == pkg || strings.HasPrefix(path, pkg+"/")
}

func standard(path string) bool {
	first, _, _ := strings.Cut(path, "/")
	return !strings.Contains(first, ".")
}

// A floor judges what the packages at or below a path, but not below except,
// depend on.
type floor struct {
	name   string
	at     string
	except string
	may    func(dep string) bool
	why    string
}

// ourOnly allows, of this module, what lies at or below the given paths.
func ourOnly(paths ...string) func(string) bool {
	return func(dep string) bool {
		return !below(dep, module) || slices.ContainsFunc(paths, func(p string) bool { return below(dep, module+p) })
	}
}

// without forbids what lies at or below the given paths.
func without(paths ...string) func(string) bool {
	return func(dep string) bool {
		return !slices.ContainsFunc(paths, func(p string) bool { return below(dep, p) })
	}
}

// floors are those of ARCHITECTURE.md, from the ground up.
var floors = []floor{
	{name: "wire", at: "/wire", may: standard, why: "wire uses the standard library only"},
	{name: "vsock", at: "/vsock", may: ourOnly("/vsock", "/wire"), why: "vsock carries bytes, and knows wire at most"},
	{name: "agent", at: "/agent", may: ourOnly("/agent", "/vsock", "/wire"), why: "the guest knows no host package"},
	{name: "agent command", at: "/cmd/bouvet-agent", may: ourOnly("/agent", "/vsock", "/wire"), why: "the guest knows no host package"},
	{name: "agent size", at: "/cmd/bouvet-agent", may: without("net/http", "gvisor.dev/gvisor"), why: "the guest agent is small"},
	{name: "vm", at: "/vm", except: "/vm/vmtest", may: func(dep string) bool { return dep != module && !below(dep, module+"/agent") }, why: "a driver knows neither sandboxes nor the inside of the agent"},
	{name: "gvisor", at: "/vm/gvisor", may: without(module+"/vm/qemu", module+"/vm/firecracker"), why: "drivers share only package vm"},
	{name: "qemu", at: "/vm/qemu", may: without(module+"/vm/gvisor", module+"/vm/firecracker"), why: "drivers share only package vm"},
	{name: "firecracker", at: "/vm/firecracker", may: without(module+"/vm/gvisor", module+"/vm/qemu"), why: "drivers share only package vm"},
	{name: "image", at: "/image", may: func(dep string) bool { return dep != module && !below(dep, module+"/vm") }, why: "an image is a file, which knows no machine"},
	{name: "store", at: "/internal/store", may: ourOnly("/internal/store"), why: "the database knows rows only"},
	{name: "daemon", at: "/internal/daemon", may: without(module+"/local", module+"/e2b", module+"/internal/server"), why: "the daemon's sandboxes know no driver by name, and nobody who asks for them"},
	{name: "e2b", at: "/e2b", may: without(module+"/internal/server", module+"/local"), why: "the API knows no listener"},
	{name: "roof", at: "", except: "/cmd/bouvet", may: without(module + "/internal/cli"), why: "only cmd/bouvet imports the command line"},
	{name: "products", at: "/cmd", may: without(module + "/internal/testutil"), why: "a product links no test helpers"},
}

// The linter checks imports one at a time; this follows them to the end.
func TestImportsPointDown(t *testing.T) {
	for _, f := range floors {
		t.Run(f.name, func(t *testing.T) {
			for _, p := range packages(t) {
				if !below(p.ImportPath, module+f.at) || (f.except != "" && below(p.ImportPath, module+f.except)) {
					continue
				}
				for _, dep := range p.Deps {
					if !f.may(dep) {
						t.Errorf("%s depends on %s: %s", p.ImportPath, dep, f.why)
					}
				}
			}
		})
	}
}

func TestEveryPackageSaysWhatItIs(t *testing.T) {
	for _, p := range packages(t) {
		if len(p.GoFiles) > 0 && p.Doc == "" {
			t.Errorf("%s has no package comment: say in a sentence what it is", p.ImportPath)
		}
	}
}
