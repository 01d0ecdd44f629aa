package qemu

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

const (
	// qmpLine bounds a line of QEMU's, in bytes. It may be in the guest's hands.
	qmpLine = 64 << 10
	// qmpTimeout bounds the writing of a command.
	qmpTimeout = 5 * time.Second
)

// A qmp is a client of QEMU's machine protocol. It runs one command at a time.
type qmp struct {
	conn net.Conn
	// greeted is closed by the reader when QEMU has introduced itself; answers
	// carries one answer for each command; ended is closed when the reader ends.
	greeted, ended chan struct{}
	answers        chan qmpMessage

	mu     sync.Mutex
	reason string // of the machine's end, as QEMU said it
	err    error  // why the reader ended
}

// A qmpMessage is a greeting, an answer or an event.
type qmpMessage struct {
	Greeting *struct{} `json:"QMP"`
	Return   *struct{} `json:"return"`
	Error    *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
	} `json:"data"`
}

// newQMP takes over conn; close ends it.
func newQMP(conn net.Conn) *qmp {
	q := &qmp{conn: conn, greeted: make(chan struct{}), ended: make(chan struct{}), answers: make(chan qmpMessage, 1)}
	go q.read()
	return q
}

func (q *qmp) read() {
	err := q.readAll()
	q.mu.Lock()
	q.err = err
	q.mu.Unlock()
	close(q.ended)
	_ = q.conn.Close()
}

func (q *qmp) readAll() error {
	r := bufio.NewReaderSize(q.conn, qmpLine)
	greeted := false
	for {
		line, err := r.ReadSlice('\n')
		if err != nil {
			return err
		}
		var m qmpMessage
		if err := wire.Decode(line, &m); err != nil {
			return fmt.Errorf("cannot read QEMU's message: %w", err)
		}
		switch {
		case m.Greeting != nil && !greeted:
			greeted = true
			close(q.greeted)
		case m.Event == "SHUTDOWN":
			q.mu.Lock()
			q.reason = m.Data.Reason
			q.mu.Unlock()
		case m.Return != nil || m.Error != nil:
			select {
			case q.answers <- m:
			default:
				return errors.New("QEMU answers what nobody asked")
			}
		}
	}
}

// negotiate waits for QEMU's greeting and enters the mode in which it obeys.
func (q *qmp) negotiate(ctx context.Context) error {
	select {
	case <-q.greeted:
	case <-q.ended:
		return q.failure()
	case <-ctx.Done():
		return ctx.Err()
	}
	return q.execute(ctx, "qmp_capabilities")
}

// execute runs a command without arguments. Callers take turns.
func (q *qmp) execute(ctx context.Context, command string) error {
	err := q.conn.SetWriteDeadline(time.Now().Add(qmpTimeout))
	if err == nil {
		_, err = fmt.Fprintf(q.conn, "{\"execute\":%q}\n", command)
	}
	if err != nil {
		select {
		case <-q.ended: // that is why
			return q.failure()
		default:
			return fmt.Errorf("cannot tell QEMU to %s: %w", command, err)
		}
	}
	select {
	case m := <-q.answers:
		if m.Error != nil {
			return fmt.Errorf("QEMU refuses to %s: %.200q", command, m.Error.Desc)
		}
		return nil
	case <-q.ended:
		return q.failure()
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (q *qmp) failure() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// shutdownReason is why the machine ended, as far as QEMU has said so.
func (q *qmp) shutdownReason() string {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.reason
}

// hangUp makes the reader end.
func (q *qmp) hangUp() { _ = q.conn.Close() }
