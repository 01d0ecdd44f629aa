package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/bouvet-run/bouvet/vsock"
	"github.com/bouvet-run/bouvet/wire"
)

// serveVsock serves each port on a socket of its own.
func (p *Program) serveVsock(ctx context.Context, s *Server, o *options, log *slog.Logger) error {
	ports := []uint32{wire.PortRPC, o.execPort}
	var listeners []net.Listener
	for _, port := range ports {
		l, err := vsock.Listen(port)
		if err != nil {
			for _, l := range listeners {
				_ = l.Close()
			}
			return err
		}
		listeners = append(listeners, l)
		log.Info("listening", slog.String("network", "vsock"), slog.Any("port", port))
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	errs := make([]error, len(ports))
	var serving sync.WaitGroup
	for i, l := range listeners {
		serving.Go(func() {
			errs[i] = s.Serve(ctx, l, ports[i])
			cancel() // half an agent is none
		})
	}
	serving.Wait()
	return errors.Join(errs...)
}

// serveUnix serves both ports on one socket, which only its owner can use.
func (p *Program) serveUnix(ctx context.Context, s *Server, address string, log *slog.Logger) error {
	path, ok := strings.CutPrefix(address, "unix:")
	if !ok || path == "" {
		return fmt.Errorf("cannot listen on %q: want unix:PATH", address)
	}
	if err := removeStale(ctx, path); err != nil {
		return fmt.Errorf("cannot listen on %s: %w", path, err)
	}
	// The socket gets its mode from the umask, so that there is no moment in which
	// others could connect.
	old := unix.Umask(0o177)
	var c net.ListenConfig
	l, err := c.Listen(ctx, "unix", path)
	unix.Umask(old)
	if err != nil {
		return fmt.Errorf("cannot listen on %s: %w", path, bare(err))
	}
	log.Info("listening", slog.String("network", "unix"), slog.String("path", path))
	return s.Serve(ctx, l, 0)
}

// removeStale removes a socket that nobody serves, and nothing else.
func removeStale(ctx context.Context, path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return bare(err)
	case info.Mode()&fs.ModeSocket == 0:
		return errors.New("it exists and is not a socket")
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err == nil {
		_ = conn.Close()
		return errors.New("another program is listening there")
	}
	if !errors.Is(err, unix.ECONNREFUSED) {
		return bare(err)
	}
	return os.Remove(path)
}

// serveMux serves the streams that the host opens on one channel.
func (p *Program) serveMux(ctx context.Context, s *Server, o *options, log *slog.Logger) error {
	ch, err := openChannel(ctx, o.mux)
	if err != nil {
		return err
	}
	if o.lane != "" {
		lane, stop := context.WithCancel(ctx)
		var serving sync.WaitGroup
		serving.Go(func() { p.serveLane(lane, s, o.lane, log) })
		defer serving.Wait()
		defer stop()
	}
	switch err := s.Serve(ctx, vsock.NewMuxListener(ch), 0); {
	case err == nil:
		return nil
	case o.hostBound && errors.Is(err, io.EOF):
		return nil // the host is gone, and that was the agreement
	case o.hostBound:
		return err
	}
	// The host may be gone for now. What runs goes on until somebody ends us.
	<-ctx.Done()
	return nil
}

// serveLane serves the streams of a lane. An agent without one is whole.
func (p *Program) serveLane(ctx context.Context, s *Server, name string, log *slog.Logger) {
	ch, err := openChannel(ctx, name)
	if err == nil {
		err = s.Serve(ctx, vsock.NewLaneListener(ch), 0)
	}
	if err != nil && ctx.Err() == nil {
		log.Info("lane ended", slog.Any("error", err))
	}
}

// openChannel opens what -mux names.
func openChannel(ctx context.Context, name string) (vsock.Channel, error) {
	if number, ok := strings.CutPrefix(name, "fd:"); ok {
		fd, err := strconv.ParseUint(number, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("cannot use %q as a channel: want fd:N", name)
		}
		return channelFromFD(int(fd), name)
	}
	if port, ok := strings.CutPrefix(name, "virtio:"); ok {
		return openPort(ctx, port)
	}
	info, err := os.Stat(name)
	if err != nil {
		return nil, fmt.Errorf("cannot open channel: %w", err)
	}
	if info.Mode()&fs.ModeSocket != 0 {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", name)
		if err != nil {
			return nil, fmt.Errorf("cannot open channel: %w", err)
		}
		return conn, nil
	}
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("cannot open channel %s: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}

// channelFromFD takes over an inherited descriptor, which programs that the agent
// starts must not inherit in turn.
func channelFromFD(fd int, name string) (vsock.Channel, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, fmt.Errorf("cannot use %s as a channel: %w", name, err)
	}
	unix.CloseOnExec(fd)
	if st.Mode&unix.S_IFMT == unix.S_IFSOCK {
		f := os.NewFile(uintptr(fd), name)
		conn, err := net.FileConn(f) // a duplicate
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("cannot use %s as a channel: %w", name, err)
		}
		return conn, nil
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, fmt.Errorf("cannot use %s as a channel: %w", name, err)
	}
	return os.NewFile(uintptr(fd), name), nil
}
