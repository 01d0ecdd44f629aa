package bouvet_test

import (
	"context"
	"io"
	"os"
	osexec "os/exec"
	"testing"

	"github.com/bouvet-run/bouvet"
)

// BenchmarkPing is the cost of a call alone: client, mux and agent.
func BenchmarkPing(b *testing.B) {
	s, _ := newSandbox(b, bouvet.Config{})
	for b.Loop() {
		if err := s.Client().Ping(b.Context()); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkTrue compares a command through a sandbox with one of this process.
func BenchmarkTrue(b *testing.B) {
	s, _ := newSandbox(b, bouvet.Config{})
	for name, run := range map[string]func(ctx context.Context) error{
		"local":   func(ctx context.Context) error { return osexec.CommandContext(ctx, "true").Run() },
		"Command": func(ctx context.Context) error { return s.Command(ctx, "true").Run() }, //nolint:contextcheck // Command has it.
		"Execute": func(ctx context.Context) error { _, err := s.Execute(ctx, "true"); return err },
	} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := run(b.Context()); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

const bulk = 256 << 20

// BenchmarkStdout compares the output of a command through a sandbox with a pipe.
func BenchmarkStdout(b *testing.B) {
	s, _ := newSandbox(b, bouvet.Config{})
	for name, run := range map[string]func(ctx context.Context, w io.Writer) error{
		"pipe": func(ctx context.Context, w io.Writer) error {
			c := osexec.CommandContext(ctx, "head", "-c", "256M", "/dev/zero")
			c.Stdout = w
			return c.Run()
		},
		"sandbox": func(ctx context.Context, w io.Writer) error {
			c := s.Command(ctx, "head", "-c", "256M", "/dev/zero")
			c.Stdout = w
			return c.Run() //nolint:contextcheck // Command has it.
		},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(bulk)
			for b.Loop() {
				var n int64
				if err := run(b.Context(), writerFunc(func(p []byte) (int, error) { n += int64(len(p)); return len(p), nil })); err != nil || n != bulk {
					b.Fatal(n, err)
				}
			}
		})
	}
}

// BenchmarkTransfer moves a file in each direction.
func BenchmarkTransfer(b *testing.B) {
	s, dir := newSandbox(b, bouvet.Config{})
	path := dir + "/bulk"
	if err := os.WriteFile(path, make([]byte, bulk), 0o600); err != nil {
		b.Fatal(err)
	}
	b.Run("download", func(b *testing.B) {
		b.SetBytes(bulk)
		for b.Loop() {
			if _, err := s.Client().Download(b.Context(), path, io.Discard); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("upload", func(b *testing.B) {
		b.SetBytes(bulk)
		for b.Loop() {
			f, err := os.Open(path)
			if err != nil {
				b.Fatal(err)
			}
			if _, err := s.Client().Upload(b.Context(), dir+"/copy", f, nil); err != nil {
				b.Fatal(err)
			}
			_ = f.Close()
		}
	})
}
