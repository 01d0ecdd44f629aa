package wire_test

import (
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/bouvet-run/bouvet/wire"
)

// readLines reads until an error.
func readLines(l *wire.LineReader) (lines []string, err error) {
	for {
		line, err := l.ReadLine()
		if err != nil {
			return lines, err
		}
		lines = append(lines, string(line))
	}
}

func TestReadLine(t *testing.T) {
	long := strings.Repeat("x", 10000)
	for _, tc := range []struct {
		name, in string
		want     []string
		err      error
	}{
		{"nothing", "", nil, io.EOF},
		{"B1 lines", "a\nbc\n\nd\n", []string{"a", "bc", "", "d"}, io.EOF},
		{"begun line", "a\nbc", []string{"a"}, io.ErrUnexpectedEOF},
		{"CRLF is white space of JSON", "a\r\n", []string{"a\r"}, io.EOF},
		{"NUL and others", "\x00\xff\n", []string{"\x00\xff"}, io.EOF},
		{"as long as allowed", long + "\n" + long + "\nb\n", []string{long, long, "b"}, io.EOF},
		{"one more", "a\n" + long + "x\nb\n", []string{"a"}, wire.ErrLineTooLong},
		{"one more, not ended", long + "x", nil, wire.ErrLineTooLong},
		{"far more", strings.Repeat(long, 10), nil, wire.ErrLineTooLong},
	} {
		for name, wrap := range map[string]func(io.Reader) io.Reader{
			"whole": func(r io.Reader) io.Reader { return r }, "by byte": iotest.OneByteReader,
			"by half": iotest.HalfReader, "data with error": iotest.DataErrReader,
		} {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				l := wire.NewLineReader(wrap(strings.NewReader(tc.in)), len(long), nil)
				got, err := readLines(l)
				if fmt.Sprint(got) != fmt.Sprint(tc.want) || !errors.Is(err, tc.err) {
					t.Errorf("got %d lines, %v, want %d, %v", len(got), err, len(tc.want), tc.err)
				}
				if _, again := l.ReadLine(); !errors.Is(again, tc.err) {
					t.Errorf("again: got %v, want %v", again, tc.err)
				}
			})
		}
	}
}

// Small bounds meet every way in which lines fall into the buffer.
func TestReadLineBounds(t *testing.T) {
	for _, bound := range []int{0, 1, 2, 4094, 4095, 4096, 4097, 5000} {
		for _, first := range []int{0, min(1, bound), bound / 2, bound} {
			in := strings.Repeat("a", first) + "\n" + strings.Repeat("b", bound) + "\n" + strings.Repeat("c", bound+1) + "\n"
			got, err := readLines(wire.NewLineReader(strings.NewReader(in), bound, nil))
			if len(got) != 2 || len(got[0]) != first || len(got[1]) != bound || !errors.Is(err, wire.ErrLineTooLong) {
				t.Errorf("bound %d, first %d: got %d lines, %v", bound, first, len(got), err)
			}
		}
	}
}

// splitReader gives in in two reads.
func splitReader(in string, at int) io.Reader {
	return io.MultiReader(strings.NewReader(in[:at]), strings.NewReader(in[at:]))
}

// A8: what follows the lines is handed over whole, wherever the reads fall.
func TestReadAfterLines(t *testing.T) {
	const in = "OK 5\n{\"a\":1}\nraw\nbytes\x00"
	for at := range len(in) + 1 {
		l := wire.NewLineReader(splitReader(in, at), 64, nil)
		for _, want := range []string{"OK 5", `{"a":1}`} {
			if got, err := l.ReadLine(); string(got) != want || err != nil {
				t.Fatalf("split at %d: got %q, %v, want %q", at, got, err, want)
			}
		}
		rest, err := io.ReadAll(l)
		if string(rest) != "raw\nbytes\x00" || err != nil {
			t.Errorf("split at %d: got %q, %v", at, rest, err)
		}
		if l.Buffered() != 0 {
			t.Errorf("split at %d: %d bytes buffered", at, l.Buffered())
		}
	}
}

func TestReaderErrors(t *testing.T) {
	t.Run("no progress", func(t *testing.T) {
		l := wire.NewLineReader(iotest.ErrReader(nil), 64, nil)
		if _, err := l.ReadLine(); !errors.Is(err, io.ErrNoProgress) {
			t.Errorf("got %v, want %v", err, io.ErrNoProgress)
		}
	})
	t.Run("T20 deadline within a line is for good", func(t *testing.T) {
		r := io.MultiReader(strings.NewReader("half"), iotest.TimeoutReader(iotest.ErrReader(os.ErrDeadlineExceeded)))
		l := wire.NewLineReader(r, 64, nil)
		for range 2 {
			if _, err := l.ReadLine(); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("got %v, want %v", err, os.ErrDeadlineExceeded)
			}
		}
		if _, err := l.Read(make([]byte, 8)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("Read: got %v, want %v", err, os.ErrDeadlineExceeded)
		}
	})
	t.Run("lower bound for what is buffered", func(t *testing.T) {
		l := wire.NewLineReader(strings.NewReader("abc\nabcdef\n"), 64, nil)
		if _, err := l.ReadLine(); err != nil {
			t.Fatal(err)
		}
		l.SetMax(5)
		if _, err := l.ReadLine(); !errors.Is(err, wire.ErrLineTooLong) || !strings.Contains(err.Error(), "more than 5 bytes") {
			t.Errorf("got %v, want %v", err, wire.ErrLineTooLong)
		}
	})
	t.Run("higher bound", func(t *testing.T) {
		l := wire.NewLineReader(strings.NewReader("CONNECT 52\n"+strings.Repeat("x", 9000)+"\n"), 64, nil)
		if _, err := l.ReadLine(); err != nil {
			t.Fatal(err)
		}
		l.SetMax(9000)
		if line, err := l.ReadLine(); len(line) != 9000 || err != nil {
			t.Errorf("got %d bytes, %v", len(line), err)
		}
	})
	t.Run("closed", func(t *testing.T) {
		l := wire.NewLineReader(strings.NewReader("a\nb\n"), 64, nil)
		l.Close()
		l.Close()
		if _, err := l.ReadLine(); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("got %v, want %v", err, io.ErrClosedPipe)
		}
	})
}

// limiter counts, and refuses beyond max.
type limiter struct{ held, taken, limit int }

var errFull = errors.New("no room for another large line")

func (l *limiter) Acquire() error {
	if l.held >= l.limit {
		return errFull
	}
	l.held++
	l.taken++
	return nil
}

func (l *limiter) Release() { l.held-- }

func TestLimiter(t *testing.T) {
	large := strings.Repeat("x", wire.LargeLine+1) + "\n"
	for _, tc := range []struct {
		name, in  string
		limit     int
		lines     int
		err       error
		heldAfter []int // after each line
		taken     int
	}{
		{"a line of exactly LargeLine bytes may not need leave", strings.Repeat("x", wire.LargeLine-1) + "\n", 0, 1, io.EOF, []int{0}, 0},
		{"a large line", large + "a\nb\n", 1, 3, io.EOF, []int{1, 0, 0}, 1},
		{"large lines in a row", large + large + large, 1, 3, io.EOF, []int{1, 1, 1}, 3},
		{"refused", "a\n" + large, 0, 1, errFull, []int{0}, 0},
		{"cut off", large[:len(large)-1], 1, 0, io.ErrUnexpectedEOF, nil, 1},
		{"too long", strings.Repeat("x", 4<<20), 1, 0, wire.ErrLineTooLong, nil, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			lim := &limiter{limit: tc.limit}
			l := wire.NewLineReader(iotest.HalfReader(strings.NewReader(tc.in)), 3<<20, lim)
			n := 0
			for {
				line, err := l.ReadLine()
				if err != nil {
					if !errors.Is(err, tc.err) {
						t.Errorf("got %v, want %v", err, tc.err)
					}
					break
				}
				if lim.held != tc.heldAfter[n] {
					t.Errorf("line %d of %d bytes: held %d, want %d", n, len(line), lim.held, tc.heldAfter[n])
				}
				n++
			}
			if n != tc.lines || lim.held != 0 || lim.taken != tc.taken {
				t.Errorf("got %d lines, held %d, taken %d, want %d, 0, %d", n, lim.held, lim.taken, tc.lines, tc.taken)
			}
			l.Close()
			if lim.held != 0 {
				t.Errorf("held %d after Close", lim.held)
			}
		})
	}
	t.Run("Close and Read give back", func(t *testing.T) {
		for name, end := range map[string]func(l *wire.LineReader){
			"Close": (*wire.LineReader).Close,
			"Read":  func(l *wire.LineReader) { _, _ = io.ReadAll(l) },
		} {
			lim := &limiter{limit: 1}
			l := wire.NewLineReader(strings.NewReader(large+"rest"), 3<<20, lim)
			if _, err := l.ReadLine(); err != nil || lim.held != 1 {
				t.Fatal(err, lim.held)
			}
			if end(l); lim.held != 0 {
				t.Errorf("%s: held %d", name, lim.held)
			}
		}
	})
}

// endless gives bytes that hold no newline.
type endless struct{ n int }

func (e *endless) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = 'x'
	}
	e.n += len(p)
	return len(p), nil
}

// 80 MiB without a newline: memory stays near the bound, and is then let go.
func TestNoNewline(t *testing.T) {
	src := io.LimitReader(&endless{}, 80<<20)
	l := wire.NewLineReader(src, 1<<20, nil)
	var err error
	if got := allocated(func() { _, err = l.ReadLine() }); got > 4<<20 {
		t.Errorf("%d bytes allocated for a bound of 1 MiB", got)
	}
	if !errors.Is(err, wire.ErrLineTooLong) {
		t.Errorf("got %v, want %v", err, wire.ErrLineTooLong)
	}
	if l.Buffered() != 0 {
		t.Errorf("%d bytes are still held", l.Buffered())
	}
}

// A reader does not keep the room of its largest line for its whole life.
func TestLargeBufferIsReleased(t *testing.T) {
	const size = 32 << 20
	before := inUse()
	l := wire.NewLineReader(io.MultiReader(io.LimitReader(&endless{}, size), strings.NewReader("\nsmall\n")), size, nil)
	for range 2 {
		if _, err := l.ReadLine(); err != nil {
			t.Fatal(err)
		}
	}
	if after := inUse(); after > before+size/2 {
		t.Errorf("%d bytes in use after a small line, %d before", after, before)
	}
	runtime.KeepAlive(l)
}

// inUse returns the bytes in use once pools have let go of theirs, which takes two
// collections.
func inUse() uint64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}
