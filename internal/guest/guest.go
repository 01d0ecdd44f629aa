// Package guest holds the agent that runs inside sandboxes, for the host to hand
// to them: embedded by make build, else found on the host.
package guest

import (
	"bytes"
	"crypto/sha256"
	"debug/elf"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime/debug"
)

// EnvVar names the environment variable that says where an agent is, for
// programs that have none embedded.
const EnvVar = "BOUVET_AGENT"

const (
	name     = "bouvet-agent"
	maxBytes = 256 << 20
	// command is the main package that can be the agent as well as the host.
	command = "github.com/bouvet-run/bouvet/cmd/bouvet"
)

//go:embed all:bin
var bin embed.FS

// Binary returns the embedded agent, and whether there is one: a program built
// with plain go build has none. The bytes must not be changed.
func Binary() ([]byte, bool) {
	b, err := bin.ReadFile("bin/" + name)
	return b, err == nil && len(b) > 0
}

// Sources of an agent.
const (
	SourceEmbedded = "embedded" // part of this program
	SourceEnv      = EnvVar     // named by the environment
	SourceBeside   = "beside"   // in the directory of this program
	SourceSelf     = "self"     // this program, which is an agent when started as one
)

// An Agent is a program for Linux that needs nothing of the guest's file system.
type Agent struct {
	// Binary is the program.
	Binary []byte
	// Path is where it was found; empty if it was embedded.
	Path string
	// Source says how it was found: one of the constants above.
	Source string
	// Digest is "sha256:" and the SHA-256 of Binary in hexadecimal.
	Digest string
}

// Resolve finds the agent: the embedded one; else the one that $BOUVET_AGENT
// names; else bouvet-agent beside the running program; else that program itself,
// if it is cmd/bouvet and statically linked.
func Resolve() (Agent, error) {
	exe, err := os.Executable()
	if err != nil {
		exe = ""
	}
	embedded, _ := Binary()
	main := ""
	if info, ok := debug.ReadBuildInfo(); ok {
		main = info.Path
	}
	return resolver{embedded: embedded, env: os.Getenv(EnvVar), exe: exe, main: main}.resolve()
}

// A resolver holds what Resolve asks of its surroundings.
type resolver struct {
	embedded []byte
	env      string
	exe      string
	main     string // the running program's main package
}

func (r resolver) resolve() (Agent, error) {
	if len(r.embedded) > 0 {
		return newAgent(r.embedded, "", SourceEmbedded), nil
	}
	if r.env != "" {
		if !filepath.IsAbs(r.env) {
			return Agent{}, fmt.Errorf("cannot use %s=%q as the agent: it must be an absolute path", EnvVar, r.env)
		}
		return load(r.env, SourceEnv)
	}
	if r.exe != "" {
		path := filepath.Join(filepath.Dir(r.exe), name)
		if _, err := os.Stat(path); err == nil {
			return load(path, SourceBeside)
		}
		if r.main == command {
			return load(r.exe, SourceSelf)
		}
	}
	return Agent{}, fmt.Errorf("cannot find the guest agent: this program has none embedded and there is no %s beside it; run `make build`, or set %s", name, EnvVar)
}

// load reads an agent and makes sure that it can start in any guest.
func load(path, source string) (Agent, error) {
	b, err := read(path)
	if err == nil {
		err = static(b)
	}
	if err != nil {
		return Agent{}, fmt.Errorf("cannot use %s as the agent: %w; run `make build`, or build it with CGO_ENABLED=0", path, err)
	}
	return newAgent(b, path, source), nil
}

func newAgent(b []byte, path, source string) Agent {
	sum := sha256.Sum256(b)
	return Agent{Binary: b, Path: path, Source: source, Digest: "sha256:" + hex.EncodeToString(sum[:])}
}

func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() || info.Size() > maxBytes {
		return nil, fmt.Errorf("it is not a regular file of at most %d bytes", maxBytes)
	}
	b := make([]byte, info.Size())
	_, err = io.ReadFull(f, b)
	return b, err
}

// static reports an error unless b is a program for Linux without an
// interpreter: a guest need not have one.
func static(b []byte) error {
	f, err := elf.NewFile(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("it is not an ELF program: %w", err)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP {
			return errors.New("it is dynamically linked")
		}
	}
	if f.Type != elf.ET_EXEC && f.Type != elf.ET_DYN {
		return fmt.Errorf("it is an ELF file of type %s, not a program", f.Type)
	}
	return nil
}
