package vsock

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"sync/atomic"

	"github.com/mdlayher/vsock"
)

// devicePath is the guest's vsock device.
var devicePath = "/dev/vsock"

// ErrNoDevice carries the text of seed 002 (checklist C2). In a guest the module
// is vmw_vsock_virtio_transport; vhost_vsock, which the seed names, is the
// host's (checklist L14).
var ErrNoDevice = errors.New("/dev/vsock does not exist - vsock kernel module may not be loaded")

// Listen opens an AF_VSOCK port for the host. It binds to any context ID, because
// a restored guest may get a new one, and drops connections that do not come
// from the host: programs in the guest can reach the port, too (threat T25).
func Listen(port uint32) (net.Listener, error) {
	if _, err := os.Stat(devicePath); errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNoDevice
	}
	const anyCID = 0xFFFFFFFF // VMADDR_CID_ANY
	l, err := vsock.ListenContextID(anyCID, port, nil)
	if err != nil {
		return nil, fmt.Errorf("cannot listen on vsock port %d: %w", port, err)
	}
	return &hostOnly{Listener: l}, nil
}

// hostOnly drops what does not come from the host.
type hostOnly struct {
	net.Listener
	closed atomic.Bool
}

// Close implements net.Listener.
func (l *hostOnly) Close() error {
	l.closed.Store(true)
	return l.Listener.Close()
}

// Accept implements net.Listener.
func (l *hostOnly) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if l.closed.Load() && err != nil {
			return nil, net.ErrClosed // the socket may say EBADF
		}
		if err != nil {
			return nil, err
		}
		if a, ok := c.RemoteAddr().(*vsock.Addr); ok && a.ContextID == vsock.Host {
			return c, nil
		}
		_ = c.Close()
	}
}
