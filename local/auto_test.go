package local

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/bouvet-run/bouvet/internal/kvm"
	"github.com/bouvet-run/bouvet/vm"
	"github.com/bouvet-run/bouvet/vm/vmtest"
)

var errMissing = errors.New("its program is missing")

// A row is a candidate of a test.
type row struct {
	name    string
	virtual bool
	missing bool // it cannot be made
	fails   bool // its machines are not made
	hangs   bool // its machines are never made
}

// A bench is a chooser among fake drivers that counts what it does.
type bench struct {
	*chooser
	made, booted map[string]*atomic.Int32
	checked      atomic.Int32
	log          *bytes.Buffer
}

func newBench(t *testing.T, kvmErr error, rows ...row) *bench {
	t.Helper()
	b := &bench{made: map[string]*atomic.Int32{}, booted: map[string]*atomic.Int32{}, log: &bytes.Buffer{}}
	b.chooser = &chooser{
		kvm: func(context.Context) error {
			b.checked.Add(1)
			return kvmErr
		},
		image:   func() (string, error) { return "/image", nil },
		answers: answers{t.TempDir()},
		now:     conditions{Format: answerFormat, Boot: "this one"},
		log:     slog.New(slog.NewTextHandler(b.log, nil)),
	}
	for _, r := range rows {
		made, booted := new(atomic.Int32), new(atomic.Int32)
		b.made[r.name], b.booted[r.name] = made, booted
		k := candidate{driver: r.name, virtual: r.virtual, time: time.Minute}
		options := vmtest.FakeOptions{}
		if r.hangs {
			options.CreateDelay, k.time = time.Hour, 50*time.Millisecond
		}
		k.make = func() (vm.Driver, error) {
			made.Add(1)
			if r.missing {
				return nil, errMissing
			}
			return named{vmtest.NewFaulty(vmtest.NewFake(t, options), func(point string, _ int) error {
				if point == vmtest.BeforeCreate {
					booted.Add(1)
				}
				if point == vmtest.BeforeCreate && r.fails {
					return errors.New("it is out of order")
				}
				return nil
			}), r.name}, nil
		}
		b.candidates = append(b.candidates, k)
	}
	return b
}

type named struct {
	vm.Driver
	name string
}

func (n named) Name() string { return n.name }

func (b *bench) boots(name string) int { return int(b.booted[name].Load()) }

func TestChoose(t *testing.T) {
	broken := &kvm.Error{Reason: "it is broken", Remedy: "repair it"}
	good := func(name string) row { return row{name: name} }
	for _, tt := range []struct {
		name    string
		kvm     error
		rows    []row
		want    string // empty if none works
		tried   []string
		message []string
	}{
		{name: "the best", rows: []row{{name: "a", virtual: true}, good("b")}, want: "a", tried: []string{"a"}},
		{name: "without KVM", kvm: broken, rows: []row{{name: "a", virtual: true}, {name: "b", virtual: true}, good("c")}, want: "c", tried: []string{"c"}},
		{name: "missing", rows: []row{{name: "a", missing: true}, good("b")}, want: "b", tried: []string{"b"}},
		{name: "does not start", rows: []row{{name: "a", fails: true}, good("b")}, want: "b", tried: []string{"a", "b"}},
		{name: "does not answer", rows: []row{{name: "a", hangs: true}, good("b")}, want: "b", tried: []string{"a", "b"}},
		{
			name: "none", kvm: broken, rows: []row{{name: "a", virtual: true}, {name: "b", missing: true}, {name: "c", fails: true}}, tried: []string{"c"},
			message: []string{"a: cannot use KVM: it is broken (repair it)", "b: its program is missing", "c: cannot boot a sandbox: ", "it is out of order"},
		},
		{name: "no candidates", message: []string{"there is none"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t, tt.kvm, tt.rows...)
			driver, err := b.choose(t.Context())
			switch {
			case tt.want == "" && !errors.Is(err, vm.ErrUnsupported):
				t.Errorf("got %v, %v, want no driver", driver, err)
			case tt.want != "" && err != nil:
				t.Error(err)
			case tt.want != "" && driver.Name() != tt.want:
				t.Errorf("got %s, want %s", driver.Name(), tt.want)
			}
			for _, want := range tt.message {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("got %q, want %q in it", err, want)
				}
			}
			for _, r := range tt.rows {
				want := 0
				for _, name := range tt.tried {
					if name == r.name {
						want = 1
					}
				}
				if got := b.boots(r.name); got != want {
					t.Errorf("%s was booted %d times, want %d", r.name, got, want)
				}
			}
			if n := b.checked.Load(); n > 1 {
				t.Errorf("KVM was looked at %d times", n)
			}
		})
	}
}

// A driver whose sandbox cannot be removed again is not taken.
func TestChooseNeedsRemoval(t *testing.T) {
	b := newBench(t, nil, row{name: "b"})
	fake := vmtest.NewFake(t, vmtest.FakeOptions{})
	b.candidates = append([]candidate{{driver: "a", time: time.Minute, make: func() (vm.Driver, error) { return stubborn{fake}, nil }}}, b.candidates...)
	driver, err := b.choose(t.Context())
	if err != nil || driver.Name() != "b" {
		t.Errorf("got %v, %v, want b", driver, err)
	}
}

// A stubborn driver's machines say that they cannot be destroyed.
type stubborn struct{ vm.Driver }

func (s stubborn) Create(ctx context.Context, c vm.Config) (vm.Machine, error) {
	m, err := s.Driver.Create(ctx, c)
	return stubbornMachine{m}, err
}

type stubbornMachine struct{ vm.Machine }

func (m stubbornMachine) Destroy(ctx context.Context, grace time.Duration) error {
	return errors.Join(errors.New("it does not go"), m.Machine.Destroy(ctx, grace))
}

func TestTryTriesAll(t *testing.T) {
	b := newBench(t, &kvm.Error{Reason: "it is broken", Remedy: "repair it"}, row{name: "a", virtual: true}, row{name: "b", fails: true}, row{name: "c"}, row{name: "d"})
	trials, err := b.tryAll(t.Context())
	if err != nil || len(trials) != 4 {
		t.Fatalf("got %+v, %v", trials, err)
	}
	type short struct {
		name         string
		works, taken bool
		remedy       string
	}
	var got []short
	for _, trial := range trials {
		got = append(got, short{trial.Name(), trial.Err == nil, trial.Taken, trial.Remedy})
	}
	want := []short{{"a", false, false, "repair it"}, {"b", false, false, ""}, {"c", true, true, ""}, {"d", true, false, ""}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	// It is remembered for the next one to choose, and looked at anew by the next to try.
	if driver, err := b.choose(t.Context()); err != nil || driver.Name() != "c" || b.boots("c") != 1 {
		t.Errorf("got %v, %v after %d boots, want c after 1", driver, err, b.boots("c"))
	}
	if _, err := b.tryAll(t.Context()); err != nil || b.boots("c") != 2 {
		t.Errorf("got %v after %d boots, want 2", err, b.boots("c"))
	}
}

func TestAnswerIsRemembered(t *testing.T) {
	b := newBench(t, nil, row{name: "a", fails: true}, row{name: "b"})
	choose := func(why string, boots int) {
		t.Helper()
		if driver, err := b.choose(t.Context()); err != nil || driver.Name() != "b" {
			t.Fatalf("%s: got %v, %v, want b", why, driver, err)
		}
		if got := b.boots("b"); got != boots {
			t.Errorf("%s: %d boots, want %d", why, got, boots)
		}
	}
	choose("first", 1)
	choose("again", 1)
	// Each of the conditions counts.
	here := b.now
	for i, change := range []func(*conditions){
		func(c *conditions) { c.Format++ },
		func(c *conditions) { c.User++ },
		func(c *conditions) { c.Drivers = []string{"a", "b", "c"} },
		func(c *conditions) { c.Files = map[string]string{"qemu": "a new one"} },
		func(c *conditions) { c.Kernel = "a new one" },
		func(c *conditions) { c.Environment = map[string]string{"X": "1"} },
	} {
		b.now = here
		change(&b.now)
		choose("change "+strconv.Itoa(i), i+2)
		choose("change "+strconv.Itoa(i)+" again", i+2)
	}
	b.now = here
	choose("the first conditions", 7)
	if n := len(b.answers.load().Answers); n != 7 {
		t.Errorf("%d answers are kept, want 7", n)
	}
	b.now.Boot = "another one"
	choose("another boot", 8)
	if n := len(b.answers.load().Answers); n != 1 {
		t.Errorf("%d answers are kept, want 1: the others are of another boot", n)
	}
	for i := range answersMost + 3 {
		b.now.User = 1000 + i
		choose("user "+strconv.Itoa(i), i+9)
	}
	if n := len(b.answers.load().Answers); n != answersMost {
		t.Errorf("%d answers are kept, want %d", n, answersMost)
	}
}

func TestAnswerThatIsNone(t *testing.T) {
	for name, spoil := range map[string]func(t *testing.T, path string) error{
		"gone":    func(_ *testing.T, path string) error { return os.Remove(path) },
		"empty":   func(_ *testing.T, path string) error { return os.Truncate(path, 0) },
		"cut off": func(_ *testing.T, path string) error { return os.Truncate(path, 20) },
		"garbage": func(_ *testing.T, path string) error { return os.WriteFile(path, []byte("\x00\xff{"), 0o600) },
		"other":   func(_ *testing.T, path string) error { return os.WriteFile(path, []byte(`{"answers":"b"}`), 0o600) },
		"huge":    func(_ *testing.T, path string) error { return os.Truncate(path, 1<<40) },
		"FIFO": func(_ *testing.T, path string) error {
			return errors.Join(os.Remove(path), syscall.Mkfifo(path, 0o600))
		},
		"directory": func(_ *testing.T, path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o700)) },
		"symlink": func(t *testing.T, path string) error {
			elsewhere := filepath.Join(t.TempDir(), "answer")
			return errors.Join(os.Rename(path, elsewhere), os.Symlink(elsewhere, path))
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, nil, row{name: "b"})
			for want := 1; want <= 2; want++ {
				if driver, err := b.choose(t.Context()); err != nil || driver.Name() != "b" || b.boots("b") != want {
					t.Fatalf("got %v, %v after %d boots, want b after %d", driver, err, b.boots("b"), want)
				}
				if want == 1 {
					if err := spoil(t, filepath.Join(b.answers.dir, answerName)); err != nil {
						t.Fatal(err)
					}
				}
			}
		})
	}
}

// The driver that is remembered is not there any more: the others are tried.
func TestRememberedDriverIsGone(t *testing.T) {
	b := newBench(t, nil, row{name: "a"}, row{name: "b"})
	if driver, err := b.choose(t.Context()); err != nil || driver.Name() != "a" {
		t.Fatalf("got %v, %v, want a", driver, err)
	}
	b.candidates[0].make = func() (vm.Driver, error) { return nil, errMissing }
	if driver, err := b.choose(t.Context()); err != nil || driver.Name() != "b" {
		t.Errorf("got %v, %v, want b", driver, err)
	}
	if !strings.Contains(b.log.String(), errMissing.Error()) {
		t.Errorf("the log does not say why: %s", b.log)
	}
}

// A better driver that was only too slow gets another chance, some day.
func TestUncertainAnswer(t *testing.T) {
	b := newBench(t, nil, row{name: "a", hangs: true}, row{name: "b"})
	if _, err := b.choose(t.Context()); err != nil {
		t.Fatal(err)
	}
	a, found := b.answers.read(b.now)
	if !found || !a.Uncertain {
		t.Fatalf("got %+v, %t, want an uncertain answer", a, found)
	}
	for _, tt := range []struct {
		age       time.Duration
		uncertain bool
		want      bool
	}{
		{time.Minute, true, true},
		{time.Hour, true, false},
		{-time.Hour, true, false}, // the clock was set
		{1000 * time.Hour, false, true},
	} {
		a.Tried, a.Uncertain = time.Now().Add(-tt.age), tt.uncertain
		if err := b.answers.write(&a); err != nil {
			t.Fatal(err)
		}
		if _, found := b.answers.read(b.now); found != tt.want {
			t.Errorf("an answer of age %v, uncertain %t, holds: %t, want %t", tt.age, tt.uncertain, found, tt.want)
		}
	}
	// What failed for good is certain.
	b = newBench(t, nil, row{name: "a", fails: true}, row{name: "b"})
	if _, err := b.choose(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, _ := b.answers.read(b.now); a.Driver != "b" || a.Uncertain {
		t.Errorf("got %+v, want a certain b", a)
	}
}

func TestManyChooseAtOnce(t *testing.T) {
	b := newBench(t, nil, row{name: "a"})
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			if driver, err := b.choose(t.Context()); err != nil || driver.Name() != "a" {
				t.Errorf("got %v, %v, want a", driver, err)
			}
		})
	}
	wg.Wait()
	if got := b.boots("a"); got != 1 {
		t.Errorf("%d boots, want 1", got)
	}
}

// The end of a caller's patience says nothing about a driver, and keeps nobody out.
func TestChooseEndsWithItsContext(t *testing.T) {
	b := newBench(t, nil, row{name: "a"})
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("no more")
	makeIt := b.candidates[0].make
	b.candidates[0].make = func() (vm.Driver, error) {
		cancel(cause)
		return makeIt()
	}
	if driver, err := b.choose(ctx); !errors.Is(err, cause) {
		t.Errorf("got %v, %v, want %v", driver, err, cause)
	}
	if _, found := b.answers.read(b.now); found {
		t.Error("there is an answer")
	}
	if _, err := b.choose(t.Context()); err != nil {
		t.Error(err)
	}

	unlock, err := b.answers.lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if _, err := b.tryAll(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("while another one tries: got %v, want its end", err)
	}
}

func TestIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "program")
	if got := identity(path); got != "" {
		t.Errorf("no file: got %q", got)
	}
	seen := map[string]bool{"": true}
	for i, change := range []func() error{
		func() error { return os.WriteFile(path, []byte("1"), 0o600) },
		func() error { return os.WriteFile(path, []byte("12"), 0o600) },
		func() error { return os.Chmod(path, 0o700) },
		func() error { return os.Chtimes(path, time.Time{}, time.Unix(1, 0)) },
		func() error {
			return errors.Join(os.WriteFile(path+"2", []byte("12"), 0o700), os.Chtimes(path+"2", time.Time{}, time.Unix(1, 0)), os.Rename(path+"2", path))
		},
	} {
		if err := change(); err != nil {
			t.Fatal(err)
		}
		if id := identity(path); seen[id] || id != identity(path) {
			t.Errorf("change %d is not seen, or one that there is not", i)
		} else {
			seen[id] = true
		}
	}
}
