package qemu

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/wire"
)

const (
	// qmpLine bounds a line of QEMU's, in bytes. It may be in the guest's hands.
	qmpLine = 64 << 10
	// qmpTimeout bounds the writing of a command.
	qmpTimeout = 5 * time.Second
)

// A qmp is a client of QEMU's machine protocol. It runs one command at a time; its
// methods are safe for concurrent use.
type qmp struct {
	conn net.Conn
	// greeted is closed by the reader when QEMU has introduced itself, resumed when it
	// has said once that the guest goes on, and ended when the reader ends.
	greeted, resumed, ended chan struct{}
	turn                    chan struct{} // an element while somebody writes

	mu      sync.Mutex
	last    uint64                     // number of the last command
	waiting map[uint64]chan qmpMessage // for the answers to commands, also where nobody waits any more
	reason  string                     // of the machine's end, as QEMU said it
	err     error                      // why the reader ended
}

// A qmpMessage is a greeting, an answer or an event.
type qmpMessage struct {
	Greeting *struct {
		Version struct {
			QEMU release `json:"qemu"`
		} `json:"version"`
	} `json:"QMP"`
	ID     uint64    `json:"id"`
	Return *struct{} `json:"return"`
	Error  *struct {
		Desc string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
	Data  struct {
		Reason string `json:"reason"`
	} `json:"data"`
}

// newQMP takes over conn; hangUp ends it.
func newQMP(conn net.Conn) *qmp {
	q := &qmp{
		conn: conn, greeted: make(chan struct{}), resumed: make(chan struct{}), ended: make(chan struct{}),
		turn: make(chan struct{}, 1), waiting: map[uint64]chan qmpMessage{},
	}
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
	greeted, resumed := false, false
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
			if err := m.Greeting.Version.QEMU.check(); err != nil {
				return err
			}
			greeted = true
			close(q.greeted)
		case m.Event == "RESUME" && !resumed:
			resumed = true
			close(q.resumed)
		case m.Event == "SHUTDOWN":
			q.mu.Lock()
			q.reason = m.Data.Reason
			q.mu.Unlock()
		case m.Return != nil || m.Error != nil:
			if err := q.deliver(m); err != nil {
				return err
			}
		}
	}
}

func (q *qmp) deliver(m qmpMessage) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	answer, ok := q.waiting[m.ID]
	if !ok {
		return errors.New("QEMU answers what nobody asked")
	}
	delete(q.waiting, m.ID)
	answer <- m // has room for it
	return nil
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
	return q.execute(ctx, "qmp_capabilities", nil)
}

// execute runs a command; arguments may be nil. When ctx ends first, the command may
// be obeyed all the same.
func (q *qmp) execute(ctx context.Context, command string, arguments any) error {
	return q.pass(ctx, nil, command, arguments)
}

// pass is execute that also hands QEMU a file, if that is not nil.
func (q *qmp) pass(ctx context.Context, file *os.File, command string, arguments any) error {
	select {
	case q.turn <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	answer, err := q.send(file, command, arguments)
	<-q.turn
	if err != nil {
		select {
		case <-q.ended: // that is why
			return q.failure()
		default:
			return fmt.Errorf("cannot tell QEMU to %s: %w", command, err)
		}
	}
	select {
	case m := <-answer:
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

func (q *qmp) send(file *os.File, command string, arguments any) (<-chan qmpMessage, error) {
	answer := make(chan qmpMessage, 1)
	q.mu.Lock()
	q.last++
	id := q.last
	q.waiting[id] = answer
	q.mu.Unlock()
	line, err := json.Marshal(struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{command, arguments, id})
	if err != nil {
		return nil, err
	}
	if err := q.conn.SetWriteDeadline(time.Now().Add(qmpTimeout)); err != nil {
		return nil, err
	}
	line = append(line, '\n')
	if file == nil {
		_, err = q.conn.Write(line)
		return answer, err
	}
	conn, ok := q.conn.(*net.UnixConn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	_, _, err = conn.WriteMsgUnix(line, unix.UnixRights(int(file.Fd())), nil)
	return answer, err
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
