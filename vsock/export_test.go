package vsock

import (
	"bufio"
	"io"
	"net"
	"testing"
)

// Parts that tests reach from outside.
var (
	NextPreamble  = nextPreamble
	WritePreamble = writePreamble
	VerbHello     = verbHello
	VerbStart     = verbStart
	VerbGo        = verbGo
	ErrMuxFrame   = errMuxFrame
)

const MaxMuxData = maxMuxData

// NewMuxGuard returns what a session would read from, and a function that mutes a
// stream.
func NewMuxGuard(r io.Reader, host bool) (io.Reader, func(id uint32)) {
	g := &muxGuard{r: bufio.NewReader(r), host: host}
	return g, g.mute
}

// SetDevice replaces the vsock device while a test runs.
func SetDevice(t *testing.T, path string) {
	old := devicePath
	devicePath = path
	t.Cleanup(func() { devicePath = old })
}

// HostOnly returns l as Listen guards it.
func HostOnly(l net.Listener) net.Listener { return &hostOnly{Listener: l} }
