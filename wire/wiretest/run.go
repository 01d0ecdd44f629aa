package wiretest

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"time"
)

// ErrHungUp means that the other side ended the connection while the script was
// still writing, which is often just what it should do.
var ErrHungUp = errors.New("the other side hung up")

// maxLine bounds what a < step reads.
const maxLine = 128 << 20

// Run plays the script on conn and closes conn. It returns when the script has
// ended or ctx has, which is how a stall ends and is no error. An error other than
// ErrHungUp names the step that failed: an expectation that was not met.
func (s *Script) Run(ctx context.Context, conn net.Conn) error {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	return s.play(ctx, &player{conn: conn, r: bufio.NewReader(conn), groups: map[string]string{}})
}

func (s *Script) play(ctx context.Context, p *player) error {
	for i := range s.steps {
		st := &s.steps[i]
		if st.verb == "loop" {
			rest := &Script{steps: s.steps[i+1:]}
			for range st.count {
				if err := rest.play(ctx, p); err != nil {
					return err
				}
			}
			return nil
		}
		err := p.do(ctx, st)
		if ended(ctx) {
			return nil // as a stall does
		}
		if err != nil {
			return p.verdict(st, err)
		}
	}
	return nil
}

func ended(ctx context.Context) bool {
	select {
	case <-ctx.Done():
		return true
	default:
		return false
	}
}

// A player is the state of one run.
type player struct {
	conn   net.Conn
	r      *bufio.Reader
	groups map[string]string
}

// errWrite marks the errors of writing steps.
type errWrite struct{ error }

func (p *player) verdict(st *step, err error) error {
	var w errWrite
	switch {
	case errors.As(err, &w):
		return fmt.Errorf("script line %d: %w (%w)", st.line, ErrHungUp, w.error)
	default:
		return fmt.Errorf("script line %d: %w", st.line, err)
	}
}

func (p *player) write(b []byte) error {
	if _, err := p.conn.Write(b); err != nil {
		return errWrite{err}
	}
	return nil
}

func (p *player) do(ctx context.Context, st *step) error {
	switch st.verb {
	case ">":
		return p.write([]byte(p.expand(st.text) + "\n"))
	case ">>":
		return p.write([]byte(p.expand(st.text)))
	case "bytes":
		return p.write(st.data)
	case "repeat":
		return p.repeat(p.expand(st.text), st.count)
	case "garbage":
		return p.garbage(st.count, st.seed)
	case "drip":
		return p.drip(ctx, p.expand(st.text)+"\n", st.wait)
	case "<":
		return p.expect(st)
	case "eof":
		_, err := io.Copy(io.Discard, p.r)
		if errors.Is(err, net.ErrClosed) || isReset(err) {
			return nil
		}
		return err
	case "stall":
		<-ctx.Done()
		return ctx.Err()
	case "closewrite":
		c, ok := p.conn.(interface{ CloseWrite() error })
		if !ok {
			return fmt.Errorf("%T cannot close one direction", p.conn)
		}
		return c.CloseWrite()
	default: // close
		return p.conn.Close()
	}
}

func (p *player) expand(text string) string {
	for name, value := range p.groups {
		text = strings.ReplaceAll(text, "${"+name+"}", value)
	}
	return text
}

func (p *player) expect(st *step) error {
	var line []byte
	for {
		part, err := p.r.ReadSlice('\n')
		line = append(line, part...)
		if err == nil {
			break
		}
		if !errors.Is(err, bufio.ErrBufferFull) || len(line) > maxLine {
			return fmt.Errorf("want a line matching %q, got %.200q and then: %w", st.expect, line, err)
		}
	}
	line = line[:len(line)-1]
	m := st.expect.FindSubmatch(line)
	if m == nil {
		return fmt.Errorf("want a line matching %q, got %.200q", st.expect, line)
	}
	for i, name := range st.expect.SubexpNames() {
		if name != "" {
			p.groups[name] = string(m[i])
		}
	}
	return nil
}

// block is how much repeat and garbage write at once.
const block = 64 << 10

func (p *player) repeat(text string, n int64) error {
	each := max(1, int64(block/len(text)))
	chunk := []byte(strings.Repeat(text, int(min(each, n))))
	for n > 0 {
		k := min(each, n)
		if err := p.write(chunk[:int(k)*len(text)]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (p *player) garbage(n int64, seed uint64) error {
	var key [32]byte
	binary.LittleEndian.PutUint64(key[:], seed)
	r := rand.NewChaCha8(key)
	chunk := make([]byte, block)
	for n > 0 {
		k := min(n, block)
		_, _ = r.Read(chunk[:k]) // never fails
		if err := p.write(chunk[:k]); err != nil {
			return err
		}
		n -= k
	}
	return nil
}

func (p *player) drip(ctx context.Context, text string, wait time.Duration) error {
	tick := time.NewTicker(max(wait, 1))
	defer tick.Stop()
	for i := range len(text) {
		if err := p.write([]byte{text[i]}); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}
