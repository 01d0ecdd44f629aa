package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode"

	"github.com/bouvet-run/bouvet"
)

// T22: paths are the guest's alone. Whatever they are, nothing of the host is read
// or written, and a special file is refused rather than waited for.
func TestPaths(t *testing.T) {
	s := box(t, bouvet.Config{})
	c := s.Client()
	host := filepath.Join(t.TempDir(), "host")
	if err := os.WriteFile(host, []byte("the host's"), 0o600); err != nil {
		t.Fatal(err)
	}
	ways := []string{host, "/../.." + host, "/proc/self/root" + host, "/proc/1/root" + host, "/proc/1/cwd/.." + host}
	for _, path := range ways {
		var got bytes.Buffer
		if _, err := c.Download(timed(t), path, &got); err == nil {
			t.Errorf("%s was downloaded: %q", path, &got)
		}
	}
	for _, path := range ways {
		_, _ = c.Upload(timed(t), path, strings.NewReader("the guest's"), nil)
	}
	if got, err := os.ReadFile(host); string(got) != "the host's" {
		t.Errorf("the host's file: got %q, %v", got, err)
	}

	sh(t, s, `mkdir -p /t/dir && cd /t && mkfifo fifo && ln -s /etc/passwd link && ln -s loop loop && ln -s nowhere dangling &&
		ln -s dir dirlink && mknod null c 1 3 && python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("/t/socket")' && chmod 4755 /bin/su`)
	for _, path := range []string{"/t/fifo", "/t/null", "/t/dir", "/t/loop", "/t/dangling", "/t/socket", "/dev/zero", "/dev/tty", "/t/dir/", "", "/"} {
		begin := time.Now()
		ctx, cancel := context.WithTimeout(timed(t), 10*time.Second)
		if n, err := c.Download(ctx, path, io.Discard); !errors.Is(err, bouvet.ErrRPC) {
			t.Errorf("download of %q: got %d bytes, %v, want an RPC error", path, n, err)
		}
		if _, err := c.ReadFile(ctx, path); !errors.Is(err, bouvet.ErrRPC) {
			t.Errorf("read of %q: got %v, want an RPC error", path, err)
		}
		cancel()
		if took := time.Since(begin); took > 5*time.Second {
			t.Errorf("%q took %v", path, took)
		}
	}
	for _, path := range []string{"/t/dir", "/t/dir/", "/t/new/", "", "/", "/t/loop/x", "/etc/passwd/x", "/proc/1/status", "/t/" + strings.Repeat("x", 300)} {
		if _, err := c.Upload(timed(t), path, strings.NewReader("x"), nil); err == nil {
			t.Errorf("%q was written", path)
		}
	}
	// A write goes to a new file: what has the old one open, or a device, keeps it.
	if _, err := c.Upload(timed(t), "/t/null", strings.NewReader("x"), nil); err != nil {
		t.Logf("upload over a device: %v", err)
	}
	// Refused or given up, nothing half-made is left.
	ctx, cancel := context.WithCancel(timed(t))
	_, err := c.Upload(ctx, "/t/given-up", io.MultiReader(io.LimitReader(&endless{}, 1<<20), cancelling(cancel)), nil)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v, want Canceled", err)
	}
	eventually(t, "an upload that was given up has gone", func() bool {
		return sh(t, s, "ls -A /t | grep -vxE 'dir|fifo|link|loop|dangling|dirlink|new|null|socket' || true") == ""
	})
	if got := sh(t, s, "head -c 5 /etc/passwd"); got != "root:" {
		t.Errorf("/etc/passwd was written through a link: %q", got)
	}
	answers(t, s)
}

// cancelling is a reader that ends a context and yields nothing more of use.
type cancelling context.CancelFunc

func (c cancelling) Read(p []byte) (int, error) {
	c()
	return len(p), nil
}

// T22: a race of links in the guest is the guest's own affair.
func TestLinksRace(t *testing.T) {
	s := box(t, bouvet.Config{})
	c := s.Client()
	sh(t, s, "mkdir /t /t/a && echo own > /t/a/f")
	ctx, cancel := context.WithCancel(timed(t))
	defer cancel()
	race := s.Command(ctx, "sh", "-c", "while :; do ln -sfn /proc/1 /t/l; ln -sfn /t/a /t/l; ln -sfn / /t/l; done")
	if err := race.Start(); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		_, _ = c.Download(timed(t), "/t/l/f", io.Discard)
		_, _ = c.Upload(timed(t), "/t/l/f", strings.NewReader(itoa(i)), nil)
		_, _ = c.ListDir(timed(t), "/t/l")
	}
	cancel()
	if err := race.Wait(); !errors.Is(err, context.Canceled) {
		t.Errorf("the race: %v", err)
	}
	answers(t, s)
}

// logSink collects what is logged.
type logSink struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logSink) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logSink) text() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// T23: names, texts and commands that could act on a terminal or forge a line are
// data: they arrive whole, and stand quoted and short in errors and logs.
func TestHostileNames(t *testing.T) {
	sink := &logSink{}
	log := slog.New(slog.NewTextHandler(sink, &slog.HandlerOptions{Level: bouvet.LevelTrace}))
	s := box(t, bouvet.Config{Log: log})
	c := s.Client()
	for _, name := range []string{
		"\x1b]0;owned\x07\x1b[2J", "a\nlevel=ERROR msg=forged", "a\r\nb", "\u202egnp.exe", "%n%s%x", "-rf", "..\\..", "\u200b", "\x7f\u0085\u009b31m", "🤖", strings.Repeat("ü", 120),
	} {
		dir := "/tmp/names"
		if err := s.WriteFile(timed(t), dir+"/"+name, "x"); err != nil {
			t.Errorf("%q: %v", name, err)
			continue
		}
		entries, err := s.ListDir(timed(t), dir)
		if err != nil || len(entries) != 1 || entries[0].Name != name {
			t.Errorf("%q: got %+v, %v", name, entries, err)
		}
		for what, call := range map[string]func() error{
			"read":    func() error { _, err := s.ReadFile(timed(t), dir+"/no/"+name); return err },
			"list":    func() error { _, err := s.ListDir(timed(t), dir+"/"+name+"/x"); return err },
			"stat":    func() error { _, err := c.Stat(timed(t), "/no/"+name); return err },
			"start":   func() error { return s.Command(timed(t), "/no/"+name).Run() },
			"command": func() error { return s.Command(timed(t), "sh", "-c", "exit 3", name).Run() },
			"user": func() error {
				cmd := s.Command(timed(t), "true")
				cmd.User = name
				return cmd.Run()
			},
			"directory": func() error {
				cmd := s.Command(timed(t), "true")
				cmd.Dir = "/no/" + name
				return cmd.Run()
			},
			"method": func() error { return c.Call(timed(t), name, nil, nil) },
			"attach": func() error { return s.Attach(timed(t), name, 0).Run() },
		} {
			err := call()
			if err == nil {
				t.Errorf("%s %q: got no error", what, name)
				continue
			}
			printable(t, what, err.Error(), 8<<10)
		}
		if err := c.Remove(timed(t), dir); err != nil {
			t.Error(err)
		}
	}
	if r, err := s.Execute(timed(t), "printf '\\033[2J' >&2; exit 1"); err != nil || r.Stderr != "\x1b[2J" {
		t.Errorf("what a command writes is the caller's: got %+v, %v", r, err)
	}
	text := sink.text()
	if len(text) == 0 {
		t.Fatal("nothing was logged")
	}
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(line, "time=") {
			t.Errorf("a line of the log that is none: %.200q", line)
		}
		printable(t, "log", strings.TrimSuffix(line, "\n"), 32<<10)
	}
}

// printable fails unless text can be shown on a terminal in one line.
func printable(t *testing.T, what, text string, most int) {
	t.Helper()
	if len(text) > most {
		t.Errorf("%s: %d bytes: %.200q", what, len(text), text)
	}
	if i := strings.IndexFunc(text, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%s: %q at %d of %.300q", what, text[i:min(i+4, len(text))], i, text)
	}
}
