package bouvet

import (
	"context"
	"net"

	"github.com/bouvet-run/bouvet/wire"
)

// A command needs a connection of its own, whose handshake costs a tenth of what
// a small command takes. So the next one is dialled while a command runs. Only an
// agent of ours is given one: an agent that serves one connection at a time
// (checklist L22) would never come to the next command.

// takeSpare returns the connection to the exec port that was dialled ahead, nil
// if there is none that is fit for use.
func (c *AgentClient) takeSpare() net.Conn {
	c.mu.Lock()
	conn := c.spare
	c.spare = nil
	c.mu.Unlock()
	if conn == nil || quiet(conn) {
		return conn
	}
	_ = conn.Close()
	return nil
}

// refillSpare dials one ahead in the background, unless there is one or somebody
// is at it. It ends with the client.
func (c *AgentClient) refillSpare() {
	c.mu.Lock()
	needed := c.spare == nil && !c.dialling && c.life.Err() == nil
	c.dialling = c.dialling || needed
	c.mu.Unlock()
	if !needed {
		return
	}
	go func() {
		ctx, stop := c.bind(context.Background())
		defer stop()
		conn, err := c.dial(ctx, wire.PortExec)
		c.mu.Lock()
		c.dialling = false
		keep := err == nil && c.life.Err() == nil
		if keep {
			c.spare = conn
		}
		c.mu.Unlock()
		if err == nil && !keep {
			_ = conn.Close()
		}
	}()
}

// dialExec returns a connection to the exec port for one command.
func (c *AgentClient) dialExec(ctx context.Context) (net.Conn, error) {
	if conn := c.takeSpare(); conn != nil {
		return conn, nil
	}
	return c.dial(ctx, wire.PortExec)
}
