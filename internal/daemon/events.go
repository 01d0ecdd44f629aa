package daemon

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/internal/store"
)

const (
	// eventQueue is how many events wait to be written; more are dropped.
	eventQueue = 4096
	// eventDelay is how long one waits for others to be written with.
	eventDelay = 200 * time.Millisecond
)

// An eventLog writes events in the background.
type eventLog struct {
	db  *store.Store
	log *slog.Logger

	mu      sync.Mutex
	queue   []store.Event // guarded by mu
	dropped int           // guarded by mu
	timer   *time.Timer   // runs while the queue is not empty; guarded by mu
	closed  bool          // guarded by mu

	writing sync.Mutex // keeps the order
}

func newEventLog(db *store.Store, log *slog.Logger) *eventLog { return &eventLog{db: db, log: log} }

// Log adds an entry to a sandbox's events. It does not block.
func (s *Service) Log(id ID, kind, by, detail string) {
	s.events.add(event(id, kind, by, detail))
}

func (l *eventLog) add(e store.Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed || len(l.queue) >= eventQueue {
		l.dropped++
		return
	}
	l.queue = append(l.queue, e)
	if l.timer == nil {
		l.timer = time.AfterFunc(eventDelay, l.flush)
	}
}

// flush writes what waits.
func (l *eventLog) flush() {
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	batch, dropped := l.queue, l.dropped
	l.queue, l.dropped = nil, 0
	if l.timer != nil {
		l.timer.Stop()
		l.timer = nil
	}
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), journalTimeout)
	defer cancel()
	if err := l.db.AddEvents(ctx, batch); err != nil || dropped > 0 {
		l.log.LogAttrs(ctx, slog.LevelWarn, "events are lost", slog.Int("dropped", dropped), slog.Any("error", err))
	}
}

// close writes what waits, and takes no more.
func (l *eventLog) close() {
	l.mu.Lock()
	l.closed = true
	l.mu.Unlock()
	l.flush()
}
