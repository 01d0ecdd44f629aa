package gateway

import (
	"context"
	"crypto/subtle"
	"log/slog"
	"net/http"
	"path"
	"sync"
	"time"

	"github.com/bouvet-run/bouvet/e2b"
	"github.com/bouvet-run/bouvet/internal/daemon"
)

// SandboxHandler serves a port of a sandbox on the host. It checks tokens itself.
type SandboxHandler interface {
	ServeSandbox(w http.ResponseWriter, r *http.Request, use *daemon.Use)
}

// Options are what a Gateway works with.
type Options struct {
	// Envd serves port 49983, Interpreter 49999; without one the port is forwarded like
	// any other.
	Envd, Interpreter SandboxHandler
	// Control serves requests that are for no sandbox.
	Control http.Handler
	// PerSandbox bounds the requests to one sandbox at a time; DefaultPerSandbox when 0.
	PerSandbox int
	// Log is for what servers in sandboxes do wrong; nil for nowhere.
	Log *slog.Logger
}

const (
	// DefaultPerSandbox is how many requests a sandbox has at once. The agent serves
	// twice as many streams.
	DefaultPerSandbox = 512
	// wakeTimeout bounds how long a request waits for a paused sandbox.
	wakeTimeout = time.Minute
)

// A Gateway is the handler of all requests. Close ends it.
type Gateway struct {
	data   e2b.Data
	o      Options
	copies buffers

	mu     sync.Mutex
	counts map[daemon.ID]int   // requests that are being served; guarded by mu
	pools  map[daemon.ID]*pool // connections to servers inside; guarded by mu
	closed bool                // guarded by mu

	watches sync.WaitGroup // one for each pool
	done    chan struct{}  // closed by Close
}

// New returns a gateway to the sandboxes of d.
func New(d e2b.Data, o Options) *Gateway {
	if o.PerSandbox == 0 {
		o.PerSandbox = DefaultPerSandbox
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Gateway{data: d, o: o, counts: map[daemon.ID]int{}, pools: map[daemon.ID]*pool{}, done: make(chan struct{})}
}

// Close closes the connections that no request uses. Requests that are being served go
// on; it is called when their servers have ended.
func (g *Gateway) Close() {
	g.mu.Lock()
	first := !g.closed
	g.closed = true
	g.mu.Unlock()
	if first {
		close(g.done)
	}
	g.watches.Wait()
}

// ServeHTTP implements http.Handler.
func (g *Gateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	t, refused := targetOf(r)
	if refused != nil {
		refused.write(w)
		return
	}
	if t == (target{}) {
		id, ok := signedFor(r, g.data.Running)
		if !ok {
			g.o.Control.ServeHTTP(w, r)
			return
		}
		t = target{id: id, port: EnvdPort}
	}
	g.serve(w, r, t)
}

// serve answers a request for a sandbox.
func (g *Gateway) serve(w http.ResponseWriter, r *http.Request, t target) {
	switch {
	case r.Method == http.MethodConnect:
		(&refusal{SandboxID: t.id, Message: "CONNECT is not a method of servers in sandboxes", Code: http.StatusMethodNotAllowed}).write(w)
		return
	case t.port == EnvdPort && controlOnly[path.Clean(r.URL.Path)]:
		http.Error(w, "This endpoint is reserved for the E2B control plane and is not reachable through the sandbox URL", http.StatusNotFound)
		return
	case !g.enter(t.id):
		(&refusal{SandboxID: t.id, Message: "There are too many connections to the sandbox", Code: http.StatusTooManyRequests, retryAfter: time.Second}).write(w)
		return
	}
	defer g.leave(t.id)
	ctx, cancel := context.WithTimeout(r.Context(), wakeTimeout)
	use, err := g.data.Use(ctx, t.id)
	cancel()
	if err != nil {
		noUse(t.id, err).write(w)
		return
	}
	defer use.Release()
	if t.port != EnvdPort && !mayTraffic(r, &use.Sandbox) {
		(&refusal{SandboxID: t.id, Message: "The traffic access token is missing or wrong", Code: http.StatusForbidden}).write(w)
		return
	}
	serveUntil(w, r, t.id, use.Ended, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case t.port == EnvdPort && g.o.Envd != nil:
			g.o.Envd.ServeSandbox(w, r, use)
		case t.port == InterpreterPort && g.o.Interpreter != nil:
			g.o.Interpreter.ServeSandbox(w, r, use)
		default:
			g.forward(w, r, t, use)
		}
	})
}

// controlOnly are the endpoints of port 49983 that are for whoever runs the sandboxes.
var controlOnly = map[string]bool{
	"/init": true, "/freeze": true, "/unfreeze": true, "/fsfreeze": true, "/fsthaw": true, "/collapse": true, "/upgrade": true,
}

// mayTraffic checks the token that a sandbox may ask for at its ports. Without one they
// are public.
func mayTraffic(r *http.Request, sb *daemon.Sandbox) bool {
	if sb.TrafficToken == "" {
		return true
	}
	tokens := r.Header.Values(headerTraffic)
	return len(tokens) == 1 && subtle.ConstantTimeCompare([]byte(tokens[0]), []byte(sb.TrafficToken)) == 1
}

// enter counts a request to a sandbox, if there may be one more.
func (g *Gateway) enter(id daemon.ID) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.counts[id] >= g.o.PerSandbox {
		return false
	}
	g.counts[id]++
	return true
}

func (g *Gateway) leave(id daemon.ID) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.counts[id]--; g.counts[id] == 0 {
		delete(g.counts, id)
	}
}
