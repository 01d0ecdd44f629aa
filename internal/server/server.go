package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/bouvet-run/bouvet/e2b/gateway"
	"github.com/bouvet-run/bouvet/internal/daemon"
	"github.com/bouvet-run/bouvet/internal/statedir"
	"github.com/bouvet-run/bouvet/internal/store"
)

// Options are what Serve works with.
type Options struct {
	Config Config
	// Exe is the one of local.Options.
	Exe string
	// Stderr is where people are told of keys and addresses, and where the log goes.
	Stderr io.Writer
	// Lower opens what the sandboxes run on; nil for this machine's.
	Lower func(ctx context.Context, c *Config, dir string, log *slog.Logger) (Lower, error)
	// Ready is called once requests are answered; nil for nobody.
	Ready func(Addresses)
}

// Addresses are where a daemon answers; empty where it does not.
type Addresses struct{ Socket, TCP, TLS, CA string }

const (
	// headerTimeout bounds the time of a request's header, idleTimeout that between two
	// requests, and maxHeader the header's bytes (T49).
	headerTimeout = 10 * time.Second
	idleTimeout   = 2 * time.Minute
	maxHeader     = 64 << 10
	// closeTimeout bounds the end of the sandboxes' machines at shutdown.
	closeTimeout = 2 * time.Minute
)

// A server is a daemon that runs.
type server struct {
	o       Options
	log     *slog.Logger
	dir     string // private to the daemon, within the state directory
	state   string
	service *daemon.Service
	gateway *gateway.Gateway
	servers []*http.Server
	serving sync.WaitGroup
	failed  chan error

	operations *prometheus.HistogramVec
	crowds     []*crowd
	at         Addresses
}

// Serve runs a daemon until ctx ends, and then ends it in order: it creates nothing more,
// lets requests end in the time for that, and does with the sandboxes what the
// configuration says. ErrConfig and ErrRunning tell of what a user can do about.
func Serve(ctx context.Context, o Options) (err error) {
	if err := o.Config.check(); err != nil {
		return err
	}
	s := &server{o: o, log: newLog(&o.Config, o.Stderr), failed: make(chan error, 4), operations: newOperations()}
	if s.state = o.Config.StateDir; s.state == "" {
		if s.state, err = statedir.Default(); err != nil {
			return err
		}
	}
	if s.dir, err = statedir.Daemon(s.state); err != nil {
		return err
	}
	unlock, err := awaitLock(ctx, s.dir)
	if err != nil {
		return err
	}
	defer unlock()
	db, err := store.Open(ctx, filepath.Join(s.dir, dbName), true)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	lower := o.Lower
	if lower == nil {
		lower = thisMachine(o.Exe)
	}
	base, err := lower(ctx, &o.Config, s.dir, s.log)
	if err != nil {
		return err
	}
	s.service, err = daemon.New(ctx, daemon.Options{
		Manager: base.Manager, Features: base.Driver.Features(), Store: db, Snapshots: base.Snapshots, Images: base.Images, Pins: base.Pins, Sweep: base.Sweep,
		Limits: o.Config.Limits, MemoryMiB: o.Config.MemoryMiB, VCPUs: o.Config.VCPUs, DiskMiB: o.Config.DiskMiB, Observe: s.observe, Log: s.log,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.end(context.WithoutCancel(ctx))) }()
	if err := s.firstKey(ctx, db); err != nil {
		return err
	}
	if err := s.listen(ctx); err != nil {
		return err
	}
	s.ready(ctx, base)
	select {
	case <-ctx.Done():
		return nil
	case err := <-s.failed:
		return err
	}
}

func newLog(c *Config, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: c.LogLevel}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// firstKey makes the first API key, and shows it, once.
func (s *server) firstKey(ctx context.Context, db *store.Store) error {
	keys, err := daemon.Keys(ctx, db)
	if err != nil || len(keys) > 0 {
		return err
	}
	key, _, err := daemon.NewKey(ctx, db, "first", "", false)
	if err != nil {
		return err
	}
	s.say("the first API key, which is not shown again: %s\n(bouvet key create makes others, bouvet key revoke ends one)\n", key)
	return nil
}

func (s *server) say(format string, args ...any) { _, _ = fmt.Fprintf(s.o.Stderr, format, args...) }

// listen opens the listeners and serves on them.
func (s *server) listen(ctx context.Context) error {
	c := &s.o.Config
	socket := filepath.Join(s.state, socketName)
	l, err := listenUnix(ctx, s.dir, socket, s.log)
	if err != nil {
		return err
	}
	s.at.Socket = socket
	handler := s.handler()
	s.serve(l, handler, nil, func(ctx context.Context, _ net.Conn) context.Context {
		return daemon.WithOwner(ctx, daemon.Local())
	})
	var lc net.ListenConfig
	if c.Listen != NoListener {
		l, err := lc.Listen(ctx, "tcp", c.Listen)
		if err != nil {
			return fmt.Errorf("cannot listen on %s: %w; choose another --listen", c.Listen, err)
		}
		s.at.TCP = l.Addr().String()
		s.serve(l, handler, nil, nil)
	}
	if c.Domain == "" {
		return nil
	}
	config, err := s.tls(ctx)
	if err != nil {
		return err
	}
	if l, err = lc.Listen(ctx, "tcp", c.TLSListen); err != nil {
		return fmt.Errorf("cannot listen on %s: %w; choose another --tls-listen", c.TLSListen, err)
	}
	s.at.TLS = l.Addr().String()
	s.serve(l, handler, config, nil)
	return nil
}

// newHTTPServer returns a server with the bounds of all listeners.
func newHTTPServer(c *crowd, h http.Handler) *http.Server {
	return &http.Server{
		Handler: h, ConnState: c.state,
		ReadHeaderTimeout: headerTimeout, IdleTimeout: idleTimeout, MaxHeaderBytes: maxHeader,
	}
}

// serve answers requests that a listener accepts.
func (s *server) serve(l net.Listener, h http.Handler, config *tls.Config, connContext func(context.Context, net.Conn) context.Context) {
	c := newCrowd(s.o.Config.Connections)
	srv := newHTTPServer(c, h)
	srv.TLSConfig, srv.ConnContext = config, connContext
	srv.ErrorLog = slog.NewLogLogger(s.log.Handler(), slog.LevelDebug)
	s.servers, s.crowds = append(s.servers, srv), append(s.crowds, c)
	s.serving.Go(func() {
		var err error
		if config != nil {
			err = srv.ServeTLS(l, "", "")
		} else {
			err = srv.Serve(l)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			s.failed <- fmt.Errorf("cannot serve on %s: %w", l.Addr(), err)
		}
	})
}

// ready tells everybody who waits that requests are answered.
func (s *server) ready(ctx context.Context, base Lower) {
	s.log.LogAttrs(ctx, slog.LevelInfo, "ready", slog.String("socket", s.at.Socket), slog.String("tcp", s.at.TCP), slog.String("tls", s.at.TLS), slog.String("driver", base.Driver.Name()))
	if s.at.CA != "" {
		s.say("clients trust this daemon's certificates with NODE_EXTRA_CA_CERTS=%s\n", s.at.CA)
	}
	if err := notify(ctx, "READY=1"); err != nil {
		s.log.LogAttrs(ctx, slog.LevelWarn, "cannot tell the service manager", slog.Any("error", err))
	}
	if s.o.Ready != nil {
		s.o.Ready(s.at)
	}
}

// end ends the daemon in order.
func (s *server) end(ctx context.Context) error {
	s.log.LogAttrs(ctx, slog.LevelInfo, "ending")
	_ = notify(ctx, "STOPPING=1") // it will see
	s.service.Drain()
	drain, cancel := context.WithTimeout(ctx, s.o.Config.Drain)
	defer cancel()
	var all sync.WaitGroup
	for _, srv := range s.servers {
		all.Go(func() { _ = srv.Shutdown(drain) }) // those that do not end are cut below
	}
	all.Wait()
	limit, cancel := context.WithTimeout(ctx, closeTimeout)
	defer cancel()
	errs := []error{s.service.Close(limit, s.o.Config.AtExit)}
	for _, srv := range s.servers {
		errs = append(errs, srv.Close())
	}
	s.serving.Wait()
	if s.gateway != nil {
		s.gateway.Close()
	}
	s.log.LogAttrs(ctx, slog.LevelInfo, "ended")
	return errors.Join(errs...)
}

// notify tells systemd, if that has started us; see sd_notify(3).
func notify(ctx context.Context, state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	d := net.Dialer{Timeout: time.Second}
	c, err := d.DialContext(ctx, "unixgram", path)
	if err != nil {
		return err
	}
	_, err = c.Write([]byte(state))
	return errors.Join(err, c.Close())
}
