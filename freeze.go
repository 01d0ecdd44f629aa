package bouvet

import (
	"context"
	"crypto/rand"
	"time"

	"github.com/bouvet-run/bouvet/wire"
)

const (
	// freezeTimeout bounds a Freeze: the agent gives up after 25 s.
	freezeTimeout = 40 * time.Second
	// thawTimeout bounds a Thaw.
	thawTimeout = 30 * time.Second
	// thawEntropyLen is how many random bytes a guest gets that begins to be another.
	thawEntropyLen = 64
)

// Freeze stops every process of the guest but the agent and flushes its file systems,
// so that the machine can be copied. Until Thaw the agent starts nothing and changes no
// file. When it fails nothing is frozen; when ctx ends first, a Thaw makes sure of that.
// [Sandbox.Snapshot] does it all.
func (c *AgentClient) Freeze(ctx context.Context) error {
	return c.call(ctx, call{method: wire.MethodFreeze, timeout: max(freezeTimeout, c.opts.RPCTimeout), idempotent: true, extension: true}, &wire.FreezeResult{})
}

// ThawOptions are the options of Thaw.
type ThawOptions struct {
	// Clone says that the guest is a copy of another: it gets a machine-id of its own,
	// and the commands of the other's host end.
	Clone bool
	// Hostname is the guest's new host name; empty leaves it as it is.
	Hostname string
}

// Thaw gives the guest fresh entropy and the right time, and what the options say, and
// then lets its processes go on. An error names what could not be renewed; the
// processes stay frozen then.
func (c *AgentClient) Thaw(ctx context.Context, o ThawOptions) error {
	p := wire.ThawParams{Entropy: make([]byte, thawEntropyLen), Hostname: o.Hostname, Clone: o.Clone}
	_, _ = rand.Read(p.Entropy) // never fails
	p.UnixNS = time.Now().UnixNano()
	return c.call(ctx, call{method: wire.MethodThaw, params: p, timeout: max(thawTimeout, c.opts.RPCTimeout), idempotent: true, extension: true}, nil)
}
